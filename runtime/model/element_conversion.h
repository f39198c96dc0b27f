// Floating-point element types to f32 and back.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "backends/interface/tensor_view.h"

namespace cairn {

inline float bf16_to_f32(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

/// Round to nearest even; NaN stays NaN.
inline std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

inline float f16_to_f32(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;  // subnormal
  return sign ? -magnitude : magnitude;
}

/// False for an element type that is not floating point.
inline bool convert_to_f32(const void* from, DType dtype, std::size_t count, float* to) {
  const auto* bytes = static_cast<const std::byte*>(from);
  const auto load = [bytes](auto& element, std::size_t i) {
    std::memcpy(&element, bytes + i * sizeof element, sizeof element);
  };
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half = 0;
    double wide = 0;
    switch (dtype) {
      case DType::kF32: load(to[i], i); break;
      case DType::kBF16:
        load(half, i);
        to[i] = bf16_to_f32(half);
        break;
      case DType::kF16:
        load(half, i);
        to[i] = f16_to_f32(half);
        break;
      case DType::kF64:
        load(wide, i);
        to[i] = static_cast<float>(wide);
        break;
      default: return false;
    }
  }
  return true;
}

}  // namespace cairn
