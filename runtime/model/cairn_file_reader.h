// Reads a `.cairn` model file (schema/FORMAT.md) into a ModelDescription. Nothing in the file is trusted.
#pragma once

#include <memory>
#include <string>

#include "runtime/model/container_format.h"
#include "runtime/model/model_limits.h"
#include "runtime/support/byte_source.h"

namespace cairn {

struct CairnFileReadOptions {
  ModelLimits limits;
  bool verify_payload = true;  ///< false: structure and meaning only (CAIRN_VERIFY_STRUCTURE); reads no payload
  bool no_mmap = false;
  bool check_finite = false;  ///< NUMERIC
  ByteProgress progress;      ///< bytes of the payload
};

/// Maps the file unless no_mmap; the description keeps it alive. The fingerprint is always checked against the tensor
/// table and the block checksums.
Result<ModelDescription> read_cairn_file(const std::string& path, const CairnFileReadOptions& options = {});

/// From the bytes of a file, which are copied.
Result<ModelDescription> read_cairn_memory(const void* data, std::uint64_t size_bytes,
                                           const CairnFileReadOptions& options = {});

/// From a source with memory(), which the description keeps.
Result<ModelDescription> read_cairn_source(std::shared_ptr<const ByteSource> source,
                                           const CairnFileReadOptions& options);

}  // namespace cairn
