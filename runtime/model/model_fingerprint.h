// The identity of a model: what its states depend on. Defined byte by byte in schema/FORMAT.md, "Fingerprint".
//
// Covers the numbers of the configuration and every tensor (name, element type, shape, content through its 1 MiB block
// checksums); not names, texts and tokenizers. A folder and the file packed from it unchanged have the same
// fingerprint.
#pragma once

#include <vector>

#include "runtime/model/container_format.h"
#include "runtime/model/model_description.h"
#include "runtime/support/checksum.h"

namespace cairn {

/// Block checksums of one tensor.
struct TensorContent {
  std::vector<std::uint64_t> data, scales;
};

/// contents: one per tensor of the description, in its order. Reads no tensor.
Digest model_fingerprint(const ModelDescription& description, const std::vector<TensorContent>& contents);

/// Reads every tensor and sets description.fingerprint. CANCELLED.
Status compute_fingerprint(ModelDescription& description, const ByteProgress& progress = nullptr);

}  // namespace cairn
