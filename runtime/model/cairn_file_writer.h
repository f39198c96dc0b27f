// Writes a model as a `.cairn` file (schema/FORMAT.md).
#pragma once

#include <functional>
#include <string>

#include "runtime/model/container_format.h"
#include "runtime/model/model_description.h"
#include "runtime/support/byte_sink.h"

namespace cairn {

/// The bytes of one tensor, valid until the next one is asked for.
struct TensorBytes {
  const void* data = nullptr;
  const float* scales = nullptr;
};

/// Gives the bytes of tensor `index` of the description: called twice for each, in order. Sizes are the entry's.
using TensorProvider = std::function<Result<TensorBytes>(std::size_t index)>;

struct CairnFileWriteOptions {
  TensorProvider provider;  ///< null: the entries' own pointers
  ByteProgress progress;    ///< bytes read for checksums and bytes written, together
};

/// Writes front to back; the fingerprint is computed anew. The description must be valid.
Status write_cairn(const ModelDescription& description, ByteSink& sink, const CairnFileWriteOptions& options = {});

/// Writes and replaces the file at `path` atomically, reading it back and checking it when asked.
Status write_cairn_file(const ModelDescription& description, const std::string& path,
                        const AtomicFile::CommitOptions& commit, const CairnFileWriteOptions& options = {});

}  // namespace cairn
