#include "runtime/model/quantize.h"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

float largest_magnitude(const float* values, std::int64_t count) {
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::abs(values[i]) > std::abs(largest)) largest = values[i];
  }
  return largest;
}

/// Nearest integer in [low, high]; ties to even.
int rounded(float value, float inverse_scale, int low, int high) {
  const float scaled = std::nearbyint(value * inverse_scale);
  return static_cast<int>(std::clamp(scaled, static_cast<float>(low), static_cast<float>(high)));
}

/// Integers of one group under `scale`, and the scale that fits them best in the least-squares sense.
float round_group(const float* values, std::int32_t count, float scale, int* integers) {
  const float inverse = scale != 0 ? 1 / scale : 0;
  double cross = 0, square = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    integers[i] = std::isfinite(inverse) ? rounded(values[i], inverse, -8, 7) : 0;
    cross += static_cast<double>(values[i]) * integers[i];
    square += static_cast<double>(integers[i]) * integers[i];
  }
  return square > 0 ? static_cast<float>(cross / square) : 0;
}

double group_error(const float* values, std::int32_t count, float scale, const int* integers) {
  double error = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(values[i]) - static_cast<double>(scale) * integers[i];
    error += difference * difference;
  }
  return error;
}

/// Tries scales from the full range of both signs to a slightly clipped one, and keeps the best.
float best_group(const float* values, std::int32_t count, int* best_integers) {
  const float largest = largest_magnitude(values, count);
  float best_scale = 0;
  double best_error = -1;
  std::vector<int> integers(static_cast<std::size_t>(count));
  for (const float levels : {-8.0F, -7.5F, -7.0F, 7.0F, 7.5F}) {
    const float scale = round_group(values, count, largest / levels, integers.data());
    const double error = group_error(values, count, scale, integers.data());
    if (best_error < 0 || error < best_error) {
      best_error = error;
      best_scale = scale;
      std::copy(integers.begin(), integers.end(), best_integers);
    }
  }
  return best_scale;
}

int nibble(std::uint8_t byte, bool is_high) {
  const int bits = is_high ? byte >> 4 : byte & 0xf;
  return bits >= 8 ? bits - 16 : bits;
}

}  // namespace

QuantizedMatrix quantize_i8(const float* values, std::int64_t rows, std::int64_t columns) {
  QuantizedMatrix matrix;
  matrix.data.resize(static_cast<std::size_t>(rows * columns));
  matrix.scales.resize(static_cast<std::size_t>(rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* from = values + row * columns;
    const float scale = std::abs(largest_magnitude(from, columns)) / 127;
    const float inverse = scale != 0 && std::isfinite(1 / scale) ? 1 / scale : 0;
    matrix.scales[static_cast<std::size_t>(row)] = scale;
    for (std::int64_t column = 0; column < columns; ++column) {
      const auto integer = static_cast<std::int8_t>(rounded(from[column], inverse, -127, 127));
      matrix.data[static_cast<std::size_t>(row * columns + column)] = static_cast<std::uint8_t>(integer);
    }
  }
  return matrix;
}

QuantizedMatrix quantize_i4(const float* values, std::int64_t rows, std::int64_t columns, std::int32_t group_size) {
  QuantizedMatrix matrix;
  matrix.data.resize(static_cast<std::size_t>(rows * columns / 2));
  matrix.scales.resize(static_cast<std::size_t>(rows * (columns / group_size)));
  std::vector<int> integers(static_cast<std::size_t>(group_size));
  for (std::size_t group = 0; group < matrix.scales.size(); ++group) {
    const std::size_t first = group * static_cast<std::size_t>(group_size);
    matrix.scales[group] = best_group(values + first, group_size, integers.data());
    for (std::size_t i = 0; i < integers.size(); i += 2) {
      matrix.data[(first + i) / 2] = static_cast<std::uint8_t>((integers[i] & 0xf) | (integers[i + 1] & 0xf) << 4);
    }
  }
  return matrix;
}

void dequantize_i8(const QuantizedMatrix& matrix, std::int64_t rows, std::int64_t columns, float* values) {
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    values[i] = static_cast<float>(static_cast<std::int8_t>(matrix.data[static_cast<std::size_t>(i)])) *
                matrix.scales[static_cast<std::size_t>(i / columns)];
  }
}

void dequantize_i4(const QuantizedMatrix& matrix, std::int64_t rows, std::int64_t columns, std::int32_t group_size,
                   float* values) {
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    values[i] = static_cast<float>(nibble(matrix.data[static_cast<std::size_t>(i / 2)], i % 2 != 0)) *
                matrix.scales[static_cast<std::size_t>(i / group_size)];
  }
}

QuantizationError quantization_error(const float* original, const float* rounded, std::uint64_t count) {
  double error = 0, square = 0, max_abs = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(original[i]) - rounded[i];
    error += difference * difference;
    square += static_cast<double>(original[i]) * original[i];
    max_abs = std::max(max_abs, std::abs(difference));
  }
  return {square > 0 ? std::sqrt(error / square) : 0, max_abs};
}

}  // namespace cairn
