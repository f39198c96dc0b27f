// Weight matrices in fewer bits: bf16, i8 with a scale per row, i4 with a scale per group of a row.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/interface/tensor_view.h"

namespace cairn {

/// How far the rounded matrix is from the original.
struct QuantizationError {
  double relative_rms = 0;  ///< sqrt(sum (w - q)^2 / sum w^2); 0 for a zero matrix
  double max_abs = 0;
};

/// A matrix [rows, columns] in its new element type.
struct QuantizedMatrix {
  std::vector<std::uint8_t> data;
  std::vector<float> scales;  ///< i8: [rows]; i4: [rows, columns / group_size]
};

/// values [rows, columns] f32, finite. i8: q = round(w / scale), scale = max|w| / 127. i4: the scale of a group is
/// -w / 8 of its element of largest magnitude, refined for least squares: q in [-8, 7], low nibble first.
/// Columns must be even, and a multiple of group_size, for i4.
QuantizedMatrix quantize_i8(const float* values, std::int64_t rows, std::int64_t columns);
QuantizedMatrix quantize_i4(const float* values, std::int64_t rows, std::int64_t columns, std::int32_t group_size);

/// The matrix that a kernel sees.
void dequantize_i8(const QuantizedMatrix& matrix, std::int64_t rows, std::int64_t columns, float* values);
void dequantize_i4(const QuantizedMatrix& matrix, std::int64_t rows, std::int64_t columns, std::int32_t group_size,
                   float* values);

QuantizationError quantization_error(const float* original, const float* rounded, std::uint64_t count);

}  // namespace cairn
