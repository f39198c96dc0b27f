// A folder (or any description) becomes one `.cairn` file, its matrices in the element type asked for.
#pragma once

#include <functional>
#include <string>

#include "runtime/model/container_format.h"
#include "runtime/model/model_limits.h"
#include "runtime/model/quantize.h"

namespace cairn {

/// The values are those of cairn_weight_format.
enum class WeightFormat : std::uint8_t { kKeep = 0, kF32 = 1, kBf16 = 2, kI8 = 3, kI4 = 4 };

/// What became of one tensor.
struct PackedTensor {
  const std::string& name;
  DType from, to;
  std::uint64_t from_bytes, to_bytes;  ///< with scales
  QuantizationError error;             ///< zero where nothing was rounded
};

/// Which tensors change, by format:
///   kF32, kBf16   every tensor of the linear layers, the embedding and the head; vectors and SDM's M0 stay as they are
///   kI8, kI4      the weights of linear layers (TensorSpec::is_matrix): projections, MLPs, an untied head. Embeddings,
///   also
///                 tied ones, M0, decays, betas and routers stay: they are small or read by row, and everything hangs
///                 on them. kI4 makes i8 of a matrix whose rows are no multiple of the group.
struct PackOptions {
  ModelLimits limits;
  WeightFormat format = WeightFormat::kKeep;
  std::int32_t group_size = 32;                     ///< kI4: 32 or 64
  ByteProgress progress;                            ///< bytes
  std::function<void(const PackedTensor&)> report;  ///< each tensor once, in order of names
};

/// Imports the folder, converts, writes atomically and reads back what it wrote. CANCELLED leaves no file behind. The
/// error of each tensor that was rounded also goes to the log (INFO, component "pack"): that is how C programs see it.
Status pack(const std::string& folder, const std::string& path, const PackOptions& options);

/// The same from a description.
Status pack_description(const ModelDescription& description, const std::string& path, const PackOptions& options);

}  // namespace cairn
