#include "runtime/import/imported_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/model/container_format.h"
#include "runtime/model/element_conversion.h"
#include "runtime/support/allocator.h"
#include "runtime/support/checked_math.h"

namespace cairn {
namespace {

using Shape = std::vector<std::int64_t>;

std::uint64_t element_count(const Shape& shape) {
  std::uint64_t count = 1;
  for (std::int64_t dim : shape) count *= static_cast<std::uint64_t>(dim);  // checked when the file was read
  return count;
}

Shape without_ones(const Shape& shape) {
  Shape rest;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(rest), [](std::int64_t dim) { return dim != 1; });
  return rest;
}

/// F8 to bf16: sign, exponent and fraction of both kinds fit.
std::uint16_t f8_to_bf16(std::uint8_t bits, int fraction_bits, int bias, bool has_infinity) {
  const int exponent_mask = (1 << (7 - fraction_bits)) - 1;
  const int exponent = bits >> fraction_bits & exponent_mask;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const bool is_nan = has_infinity ? exponent == exponent_mask && fraction != 0
                                   : exponent == exponent_mask && fraction == (1 << fraction_bits) - 1;
  const bool is_infinite = has_infinity && exponent == exponent_mask && fraction == 0;
  const auto sign = static_cast<std::uint16_t>((bits & 0x80U) << 8);
  if (is_nan) return static_cast<std::uint16_t>(sign | 0x7fc0U);
  if (is_infinite) return static_cast<std::uint16_t>(sign | 0x7f80U);
  const int shift = exponent == 0 ? 1 - bias - fraction_bits : exponent - bias - fraction_bits;
  const int significand = exponent == 0 ? fraction : fraction | 1 << fraction_bits;
  return static_cast<std::uint16_t>(sign | f32_to_bf16(std::ldexp(static_cast<float>(significand), shift)));
}

}  // namespace

Shape ImportedTensors::shape(const std::string& source) const {
  const auto found = sources_.find(source);
  return found == sources_.end() ? Shape{} : found->second.shape;
}

Result<const SafetensorsEntry*> ImportedTensors::require(const std::string& source) const {
  const auto found = sources_.find(source);
  if (found == sources_.end()) return Status::format_error("tensor '%s' is missing", source.c_str());
  return &found->second;
}

/// `data`, which `owner` keeps alive, as the tensor `target`; converted where Cairn has no such element type.
Status ImportedTensors::add_view(const std::string& target, const Shape& shape, SafetensorsType type,
                                 const std::byte* data, std::shared_ptr<const void> owner) {
  const std::uint64_t count = element_count(shape);
  TensorEntry tensor;
  tensor.name = target;
  tensor.shape = shape;
  const auto use_in_place = [&](DType dtype) {
    tensor.dtype = dtype;
    tensor.data = data;
    tensor.size_bytes = count * static_cast<std::uint64_t>(dtype_bits(dtype)) / 8;
    description_.storage.push_back(std::move(owner));
    description_.tensors.push_back(std::move(tensor));
    return Status();
  };
  switch (type) {
    case SafetensorsType::kF32: return use_in_place(DType::kF32);
    case SafetensorsType::kBF16: return use_in_place(DType::kBF16);
    case SafetensorsType::kF16: return use_in_place(DType::kF16);
    case SafetensorsType::kF64: {
      std::vector<float> values(count);
      convert_to_f32(data, DType::kF64, count, values.data());
      return add(target, DType::kF32, shape, values.data(), count * 4);
    }
    case SafetensorsType::kF8E4M3:
    case SafetensorsType::kF8E5M2: {
      const bool is_e5m2 = type == SafetensorsType::kF8E5M2;
      std::vector<std::uint16_t> values(count);
      for (std::uint64_t i = 0; i < count; ++i) {
        values[i] = f8_to_bf16(static_cast<std::uint8_t>(data[i]), is_e5m2 ? 2 : 3, is_e5m2 ? 15 : 7, is_e5m2);
      }
      return add(target, DType::kBF16, shape, values.data(), count * 2);
    }
    default:
      return Status::unsupported("tensor '%s': %s elements are no weights (quantised checkpoints: use the original)",
                                 target.c_str(), safetensors_type_name(type));
  }
}

Status ImportedTensors::take(const std::string& source, const std::string& target, const Shape& shape) {
  CAIRN_TRY_ASSIGN(const SafetensorsEntry* entry, require(source));
  if (without_ones(entry->shape) != without_ones(shape)) {
    return Status::format_error("tensor '%s' has shape %s (expected %s)", source.c_str(),
                                shape_text(entry->shape).c_str(), shape_text(shape).c_str());
  }
  used_.insert(source);
  return add_view(target, shape, entry->type, entry->data, entry->source);
}

Status ImportedTensors::take_transposed(const std::string& source, const std::string& target, const Shape& shape) {
  CAIRN_TRY_ASSIGN(const SafetensorsEntry* entry, require(source));
  const Shape turned = {shape[1], shape[0]};
  if (without_ones(entry->shape) != without_ones(turned)) {
    return Status::format_error("tensor '%s' has shape %s (expected %s)", source.c_str(),
                                shape_text(entry->shape).c_str(), shape_text(turned).c_str());
  }
  used_.insert(source);
  CAIRN_TRY_ASSIGN(HostBuffer memory, HostBuffer::allocate(entry->size_bytes, target.c_str()));
  const auto width = static_cast<std::size_t>(safetensors_type_bytes(entry->type));
  const auto rows = static_cast<std::size_t>(shape[0]), columns = static_cast<std::size_t>(shape[1]);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j)
      std::memcpy(memory.data() + (i * columns + j) * width, entry->data + (j * rows + i) * width, width);
  }
  const auto owner = std::make_shared<const HostBuffer>(std::move(memory));
  return add_view(target, shape, entry->type, owner->data(), owner);
}

Status ImportedTensors::take_rows(const std::string& source, std::int64_t source_rows, std::int64_t first,
                                  const std::string& target, const Shape& shape) {
  CAIRN_TRY_ASSIGN(const SafetensorsEntry* entry, require(source));
  Shape whole = shape;
  whole[0] = source_rows;
  if (without_ones(entry->shape) != without_ones(whole)) {
    return Status::format_error("tensor '%s' has shape %s (expected %s)", source.c_str(),
                                shape_text(entry->shape).c_str(), shape_text(whole).c_str());
  }
  if (first < 0 || shape[0] < 0 || first > source_rows - shape[0]) {
    return Status::error(CAIRN_STATUS_INTERNAL, "rows [%lld, +%lld) of tensor '%s', which has %lld",
                         static_cast<long long>(first), static_cast<long long>(shape[0]), source.c_str(),
                         static_cast<long long>(source_rows));
  }
  used_.insert(source);
  const std::uint64_t row_bytes = source_rows > 0 ? entry->size_bytes / static_cast<std::uint64_t>(source_rows) : 0;
  return add_view(target, shape, entry->type, entry->data + static_cast<std::uint64_t>(first) * row_bytes,
                  entry->source);
}

Status ImportedTensors::take_part(const std::string& source, const Shape& source_shape, std::uint64_t first_element,
                                  const std::string& target, const Shape& shape) {
  CAIRN_TRY_ASSIGN(const SafetensorsEntry* entry, require(source));
  if (entry->shape != source_shape) {
    return Status::format_error("tensor '%s' has shape %s (expected %s)", source.c_str(),
                                shape_text(entry->shape).c_str(), shape_text(source_shape).c_str());
  }
  if (!range_fits(first_element, element_count(shape), element_count(source_shape))) {
    return Status::error(CAIRN_STATUS_INTERNAL, "elements from %llu of tensor '%s' for '%s'",
                         static_cast<unsigned long long>(first_element), source.c_str(), target.c_str());
  }
  used_.insert(source);
  const auto width = static_cast<std::uint64_t>(safetensors_type_bytes(entry->type));
  return add_view(target, shape, entry->type, entry->data + first_element * width, entry->source);
}

Status ImportedTensors::add(const std::string& target, DType dtype, Shape shape, const void* elements,
                            std::uint64_t size_bytes) {
  CAIRN_TRY_ASSIGN(HostBuffer memory, HostBuffer::allocate(size_bytes, target.c_str()));
  if (size_bytes) std::memcpy(memory.data(), elements, size_bytes);
  auto owner = std::make_shared<const HostBuffer>(std::move(memory));
  TensorEntry tensor;
  tensor.name = target;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.data = owner->data();
  tensor.size_bytes = size_bytes;
  description_.storage.push_back(std::move(owner));
  description_.tensors.push_back(std::move(tensor));
  return {};
}

Result<std::vector<float>> ImportedTensors::as_f32(const std::string& source) const {
  CAIRN_TRY_ASSIGN(const SafetensorsEntry* entry, require(source));
  std::vector<float> values(element_count(entry->shape));
  DType dtype = DType::kF32;
  switch (entry->type) {
    case SafetensorsType::kF32: break;
    case SafetensorsType::kBF16: dtype = DType::kBF16; break;
    case SafetensorsType::kF16: dtype = DType::kF16; break;
    case SafetensorsType::kF64: dtype = DType::kF64; break;
    default:
      return Status::unsupported("tensor '%s': %s elements are not supported here", source.c_str(),
                                 safetensors_type_name(entry->type));
  }
  convert_to_f32(entry->data, dtype, values.size(), values.data());
  return values;
}

void ImportedTensors::ignore_prefix(const std::string& prefix) {
  for (auto found = sources_.lower_bound(prefix); found != sources_.end() && found->first.starts_with(prefix);
       ++found) {
    used_.insert(found->first);
  }
}

Status ImportedTensors::finish() {
  for (const auto& [name, entry] : sources_) {
    if (!used_.contains(name)) return Status::format_error("tensor '%s' is not part of this model", name.c_str());
  }
  auto& tensors = description_.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  auto& storage = description_.storage;  // one owner for each file is enough
  std::sort(storage.begin(), storage.end());
  storage.erase(std::unique(storage.begin(), storage.end()), storage.end());
  return {};
}

}  // namespace cairn
