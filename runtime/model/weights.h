// Weights on a device, in the form that operators take. Bound once by the layers, then immutable.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/model/model_description.h"

namespace cairn {

/// A linear layer, or several that read the same input and write side by side: out rows are [part 0 | part 1 | ...].
struct LinearGroup {
  struct Part {
    const LinearWeight* weight;
    std::int64_t offset;  ///< first output column
  };
  std::vector<Part> parts;
  std::int64_t width = 0;             ///< all outputs
  std::vector<std::int64_t> offsets;  ///< of each name that was bound, in their order
};

/// Raw rows, such as the embedding or M0.
struct WeightTable {
  const void* data = nullptr;
  DType dtype = DType::kF32;
};

/// Binds tensors of a description to a device. A backend with host memory uses the file's bytes in place; others get
/// copies. The description's storage must outlive this object where memory is used in place.
class Weights {
 public:
  Weights(std::shared_ptr<const Device> device, const ModelDescription& description);
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  /// name: without ".weight"; a tensor name + ".bias" is used when the description has it.
  Result<const LinearWeight*> linear(const std::string& name);
  /// Neighbours with the same element type and no bias become one matrix.
  Result<LinearGroup> linear_group(const std::vector<std::string>& names);
  /// All elements as f32 (norm weights, convolutions, gates); plus `add` (1 for zero-centred norms).
  Result<const float*> vector(const std::string& tensor_name, float add = 0);
  /// Several vectors one after the other, as f32.
  Result<const float*> joined_vector(const std::vector<std::string>& tensor_names);
  Result<WeightTable> table(const std::string& tensor_name);

  bool has(const std::string& tensor_name) const { return description_.find(tensor_name) != nullptr; }
  std::uint64_t bytes_held() const { return bytes_held_; }

 private:
  Result<const void*> place(const void* host_data, std::size_t size_bytes, bool may_use_in_place);
  Result<const LinearWeight*> finish_linear(LinearWeight weight);
  Result<std::vector<float>> as_f32(const std::string& tensor_name) const;
  Result<const LinearWeight*> joined_linear(const std::vector<const TensorEntry*>& tensors);

  std::shared_ptr<const Device> device_;
  const ModelDescription& description_;
  std::unique_ptr<Queue> queue_;
  std::map<std::string, std::unique_ptr<LinearWeight>> linears_;
  std::vector<std::unique_ptr<LinearWeight>> joined_;
  std::map<std::string, WeightTable> tables_;
  std::vector<DeviceBuffer> buffers_;
  std::uint64_t bytes_held_ = 0;
};

}  // namespace cairn
