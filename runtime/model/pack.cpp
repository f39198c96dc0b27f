#include "runtime/model/pack.h"

#include <algorithm>
#include <cstring>

#include "runtime/import/import_folder.h"
#include "runtime/model/cairn_file_reader.h"
#include "runtime/model/cairn_file_writer.h"
#include "runtime/model/element_conversion.h"
#include "runtime/support/log.h"

namespace cairn {
namespace {

std::uint64_t element_count(const TensorEntry& tensor) {
  std::uint64_t count = 1;
  for (std::int64_t dim : tensor.shape) count *= static_cast<std::uint64_t>(dim);
  return count;
}

bool is_floating(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

/// The element type that a tensor gets.
DType target_dtype(const TensorEntry& tensor, bool is_matrix, const PackOptions& options) {
  if (!is_floating(tensor.dtype)) return tensor.dtype;
  const bool is_table = tensor.name == "embed.weight";
  switch (options.format) {
    case WeightFormat::kKeep: return tensor.dtype;
    case WeightFormat::kF32: return is_matrix || is_table ? DType::kF32 : tensor.dtype;
    case WeightFormat::kBf16: return is_matrix || is_table ? DType::kBF16 : tensor.dtype;
    case WeightFormat::kI8: return is_matrix ? DType::kI8 : tensor.dtype;
    case WeightFormat::kI4:
      if (!is_matrix) return tensor.dtype;
      return tensor.shape[1] % options.group_size == 0 ? DType::kI4 : DType::kI8;
  }
  return tensor.dtype;
}

/// A description with the new element types and sizes; data still in the old one's.
ModelDescription planned_description(const ModelDescription& source, const PackOptions& options) {
  ModelDescription target = source;
  const std::vector<TensorSpec> specs = expected_tensors(source);
  for (std::size_t i = 0; i < target.tensors.size(); ++i) {  // check_tensors: specs and tensors are parallel
    TensorEntry& tensor = target.tensors[i];
    const DType dtype = target_dtype(tensor, specs[i].is_matrix, options);
    if (dtype == tensor.dtype) continue;
    const std::uint64_t count = element_count(tensor);
    tensor.dtype = dtype;
    tensor.size_bytes = count * static_cast<std::uint64_t>(dtype_bits(dtype)) / 8;
    tensor.data = nullptr;
    if (dtype == DType::kI8) tensor.scales_bytes = static_cast<std::uint64_t>(tensor.shape[0]) * sizeof(float);
    if (dtype == DType::kI4) {
      tensor.group_size = options.group_size;
      tensor.scales_bytes = count / static_cast<std::uint64_t>(options.group_size) * sizeof(float);
    }
  }
  return target;
}

/// Converts one tensor at a time, so that a model of any size needs the memory of its largest tensor.
class Converter {
 public:
  Converter(const ModelDescription& source, const ModelDescription& target, const PackOptions& options)
      : source_(source), target_(target), options_(options) {}

  Result<TensorBytes> load(std::size_t index) {
    const TensorEntry& from = source_.tensors[index];
    const TensorEntry& to = target_.tensors[index];
    QuantizationError error;
    TensorBytes bytes{from.data, from.scales};
    if (from.dtype != to.dtype) {
      convert(from, to, index >= reported_ ? &error : nullptr);
      bytes = {matrix_.data.data(), matrix_.scales.empty() ? nullptr : matrix_.scales.data()};
    }
    if (index >= reported_) {  // the first of the two passes
      reported_ = index + 1;
      if (from.dtype != to.dtype) {
        log_message(CAIRN_LOG_INFO, "pack", "%s: %s to %s, relative error %.5f, largest %.3g", to.name.c_str(),
                    dtype_name(from.dtype), dtype_name(to.dtype), error.relative_rms, error.max_abs);
      }
      if (options_.report) {
        options_.report({to.name, from.dtype, to.dtype, from.size_bytes + from.scales_bytes,
                         to.size_bytes + to.scales_bytes, error});
      }
    }
    return bytes;
  }

 private:
  void convert(const TensorEntry& from, const TensorEntry& to, QuantizationError* error) {
    const std::uint64_t count = element_count(from);
    const std::int64_t rows = from.shape[0], columns = static_cast<std::int64_t>(count) / rows;
    values_.resize(count);
    convert_to_f32(from.data, from.dtype, count, values_.data());
    if (error) rounded_.resize(count);
    switch (to.dtype) {
      case DType::kI8:
        matrix_ = quantize_i8(values_.data(), rows, columns);
        if (error) dequantize_i8(matrix_, rows, columns, rounded_.data());
        break;
      case DType::kI4:
        matrix_ = quantize_i4(values_.data(), rows, columns, options_.group_size);
        if (error) dequantize_i4(matrix_, rows, columns, options_.group_size, rounded_.data());
        break;
      case DType::kBF16: round_to_bf16(error != nullptr); break;
      default:
        matrix_ = {std::vector<std::uint8_t>(count * sizeof(float)), {}};
        std::memcpy(matrix_.data.data(), values_.data(), matrix_.data.size());
        if (error) rounded_ = values_;
        break;
    }
    if (error) *error = quantization_error(values_.data(), rounded_.data(), count);
  }

  void round_to_bf16(bool wants_rounded) {
    matrix_ = {std::vector<std::uint8_t>(values_.size() * 2), {}};
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const std::uint16_t bits = f32_to_bf16(values_[i]);
      std::memcpy(matrix_.data.data() + 2 * i, &bits, 2);
      if (wants_rounded) rounded_[i] = bf16_to_f32(bits);
    }
  }

  const ModelDescription& source_;
  const ModelDescription& target_;
  const PackOptions& options_;
  std::size_t reported_ = 0;
  QuantizedMatrix matrix_;
  std::vector<float> values_, rounded_;
};

Status check_options(const PackOptions& options) {
  if (options.group_size == 32 || options.group_size == 64) return {};
  return Status::invalid_argument("group size %d (supported: 32, 64)", options.group_size);
}

/// Rounding needs finite numbers: a NaN would spoil its whole row.
Status check_rounding(const ModelDescription& description, const PackOptions& options) {
  if (options.format != WeightFormat::kI8 && options.format != WeightFormat::kI4) return {};
  return check_finite(description);
}

}  // namespace

Status pack_description(const ModelDescription& description, const std::string& path, const PackOptions& options) {
  CAIRN_TRY(check_options(options));
  CAIRN_TRY(validate(description, options.limits));
  CAIRN_TRY(check_tensors(description));
  CAIRN_TRY(check_rounding(description, options));
  const ModelDescription target = planned_description(description, options);
  Converter converter(description, target, options);
  CairnFileWriteOptions write;
  write.provider = [&converter](std::size_t index) { return converter.load(index); };
  write.progress = options.progress;
  // What a loader will say of the new file: its structure and meaning (its bytes have been compared by then).
  CairnFileReadOptions read;
  read.limits = options.limits;
  read.verify_payload = false;
  const auto check = [&read](const std::string& written) { return read_cairn_file(written, read).status(); };
  return write_cairn_file(target, path, {AtomicFile::Verify::kAlways, check}, write);
}

Status pack(const std::string& folder, const std::string& path, const PackOptions& options) {
  CAIRN_TRY(check_options(options));
  ImportOptions import;
  import.limits = options.limits;
  import.wants_fingerprint = false;  // the writer computes it of what it writes
  CAIRN_TRY_ASSIGN(const ModelDescription description, import_folder(folder, import));
  return pack_description(description, path, options);
}

}  // namespace cairn
