#include "runtime/model/weights.h"

#include <cstring>

#include "runtime/model/element_conversion.h"

namespace cairn {

Weights::Weights(std::shared_ptr<const Device> device, const ModelDescription& description)
    : device_(std::move(device)), description_(description) {}

Weights::~Weights() {
  for (auto& [name, weight] : linears_) device_->backend().unpack_linear(device_->handle(), weight.get());
  for (auto& weight : joined_) device_->backend().unpack_linear(device_->handle(), weight.get());
}

/// Device memory with these bytes: the host's own when allowed, else a copy.
Result<const void*> Weights::place(const void* host_data, std::size_t size_bytes, bool may_use_in_place) {
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(host_data) % 64 == 0;
  if (device_->backend().host_memory && may_use_in_place && is_aligned) {
    bytes_held_ += size_bytes;
    return host_data;
  }
  CAIRN_TRY_ASSIGN(DeviceBuffer buffer, device_->allocate(size_bytes));
  if (!queue_) {
    CAIRN_TRY_ASSIGN(queue_, Queue::create(device_));
  }
  CAIRN_TRY(queue_->copy(buffer.data(), host_data, size_bytes, CopyKind::kHostToDevice));
  CAIRN_TRY(queue_->synchronize());
  bytes_held_ += size_bytes;
  buffers_.push_back(std::move(buffer));
  return static_cast<const void*>(buffers_.back().data());
}

Result<const LinearWeight*> Weights::finish_linear(LinearWeight weight) {
  BackendError error;
  joined_.push_back(std::make_unique<LinearWeight>(weight));
  if (!device_->backend().pack_linear(device_->handle(), joined_.back().get(), &error)) {
    joined_.pop_back();  // what stays is packed
    return Status(error.status, error.text);
  }
  return static_cast<const LinearWeight*>(joined_.back().get());
}

Result<const LinearWeight*> Weights::linear(const std::string& name) {
  if (auto found = linears_.find(name); found != linears_.end())
    return static_cast<const LinearWeight*>(found->second.get());
  const TensorEntry* tensor = description_.find(name + ".weight");
  if (!tensor) return Status::format_error("tensor '%s.weight' is missing", name.c_str());
  LinearWeight weight;
  weight.dtype = tensor->dtype;
  weight.out_dim = static_cast<std::int32_t>(tensor->shape[0]);
  weight.in_dim = static_cast<std::int32_t>(tensor->shape[1]);
  weight.group_size = tensor->group_size;
  CAIRN_TRY_ASSIGN(weight.data, place(tensor->data, tensor->size_bytes, true));
  if (tensor->scales) {
    CAIRN_TRY_ASSIGN(const void* scales, place(tensor->scales, tensor->scales_bytes, true));
    weight.scales = static_cast<const float*>(scales);
  }
  if (has(name + ".bias")) {
    CAIRN_TRY_ASSIGN(weight.bias, vector(name + ".bias"));
  }
  BackendError error;
  const auto place_for = linears_.emplace(name, std::make_unique<LinearWeight>(weight)).first;
  if (!device_->backend().pack_linear(device_->handle(), place_for->second.get(), &error)) {
    linears_.erase(place_for);
    return Status(error.status, error.text).with_context(name);
  }
  return static_cast<const LinearWeight*>(place_for->second.get());
}

Result<const LinearWeight*> Weights::joined_linear(const std::vector<const TensorEntry*>& tensors) {
  std::vector<std::byte> bytes;
  LinearWeight weight;
  weight.dtype = tensors.front()->dtype;
  weight.in_dim = static_cast<std::int32_t>(tensors.front()->shape[1]);
  for (const TensorEntry* tensor : tensors) {
    const auto* from = static_cast<const std::byte*>(tensor->data);
    bytes.insert(bytes.end(), from, from + tensor->size_bytes);
    weight.out_dim += static_cast<std::int32_t>(tensor->shape[0]);
  }
  CAIRN_TRY_ASSIGN(weight.data, place(bytes.data(), bytes.size(), false));
  return finish_linear(weight);
}

Result<LinearGroup> Weights::linear_group(const std::vector<std::string>& names) {
  LinearGroup group;
  std::vector<const TensorEntry*> run;  // neighbours to be joined
  std::int64_t run_offset = 0;
  const auto end_run = [&](const std::string& last_name) -> Status {
    if (run.empty()) return {};
    const LinearWeight* weight = nullptr;
    if (run.size() == 1) {
      CAIRN_TRY_ASSIGN(weight, linear(last_name));
    } else {
      CAIRN_TRY_ASSIGN(weight, joined_linear(run));
    }
    group.parts.push_back({weight, run_offset});
    run.clear();
    return {};
  };
  const auto can_join = [&](const TensorEntry* tensor, const std::string& name) {
    return !tensor->scales && !has(name + ".bias");
  };
  std::string last_name;
  for (const std::string& name : names) {
    const TensorEntry* tensor = description_.find(name + ".weight");
    if (!tensor) return Status::format_error("tensor '%s.weight' is missing", name.c_str());
    const bool joins = !run.empty() && can_join(tensor, name) && can_join(run.front(), last_name) &&
                       tensor->dtype == run.front()->dtype && tensor->shape[1] == run.front()->shape[1];
    if (!joins) {
      CAIRN_TRY(end_run(last_name));
      run_offset = group.width;
    }
    run.push_back(tensor);
    group.offsets.push_back(group.width);
    group.width += tensor->shape[0];
    last_name = name;
  }
  CAIRN_TRY(end_run(last_name));
  return group;
}

Result<std::vector<float>> Weights::as_f32(const std::string& tensor_name) const {
  const TensorEntry* tensor = description_.find(tensor_name);
  if (!tensor) return Status::format_error("tensor '%s' is missing", tensor_name.c_str());
  std::size_t count = 1;
  for (std::int64_t dim : tensor->shape) count *= static_cast<std::size_t>(dim);
  std::vector<float> values(count);
  if (!convert_to_f32(tensor->data, tensor->dtype, count, values.data())) {
    return Status::unsupported("tensor '%s': element type %s is not supported here (supported: f32, bf16, f16, f64)",
                               tensor_name.c_str(), dtype_name(tensor->dtype));
  }
  return values;
}

Result<const float*> Weights::vector(const std::string& tensor_name, float add) {
  CAIRN_TRY_ASSIGN(std::vector<float> values, as_f32(tensor_name));
  for (float& value : values) value += add;
  CAIRN_TRY_ASSIGN(const void* placed, place(values.data(), values.size() * sizeof(float), false));
  return static_cast<const float*>(placed);
}

Result<const float*> Weights::joined_vector(const std::vector<std::string>& tensor_names) {
  std::vector<float> all;
  for (const std::string& name : tensor_names) {
    CAIRN_TRY_ASSIGN(std::vector<float> values, as_f32(name));
    all.insert(all.end(), values.begin(), values.end());
  }
  CAIRN_TRY_ASSIGN(const void* placed, place(all.data(), all.size() * sizeof(float), false));
  return static_cast<const float*>(placed);
}

Result<WeightTable> Weights::table(const std::string& tensor_name) {
  if (auto found = tables_.find(tensor_name); found != tables_.end()) return found->second;
  const TensorEntry* tensor = description_.find(tensor_name);
  if (!tensor) return Status::format_error("tensor '%s' is missing", tensor_name.c_str());
  WeightTable table;
  table.dtype = tensor->dtype;
  CAIRN_TRY_ASSIGN(table.data, place(tensor->data, tensor->size_bytes, true));
  tables_[tensor_name] = table;
  return table;
}

}  // namespace cairn
