// Element-wise pieces in double, safe at both ends of the range.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "backends/interface/op_args.h"

namespace cairn::reference {

inline double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }
inline double log_sigmoid(double x) { return -softplus(-x); }
inline double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
inline double silu(double x) { return x * sigmoid(x); }

inline double activate(GateKind kind, double x) {
  switch (kind) {
    case GateKind::kNone: return 1;
    case GateKind::kSilu: return silu(x);
    case GateKind::kSigmoid: return sigmoid(x);
  }
  return 1;
}

inline double bf16_value(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

/// Round to nearest even; NaN stays NaN.
inline std::uint16_t to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline double f16_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return exponent == 0 ? sign * std::ldexp(mantissa, -24) : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

/// Element `index` of f32, bf16 or f16 data.
inline double element(const void* data, DType type, std::int64_t index) {
  switch (type) {
    case DType::kBF16: return bf16_value(static_cast<const std::uint16_t*>(data)[index]);
    case DType::kF16: return f16_value(static_cast<const std::uint16_t*>(data)[index]);
    default: return static_cast<const float*>(data)[index];
  }
}

inline bool is_float_storage(DType type) { return type == DType::kF32 || type == DType::kBF16 || type == DType::kF16; }

}  // namespace cairn::reference
