// Elements whose type is known at run time, as f32, and a token's sequence: what the general kernels need. One kernel then
// serves every type; the branch is the same for all threads.
#pragma once

#include "backends/gpu/kernels/element.cuh"
#include "backends/interface/op_args.h"

namespace cairn::gpu {

__device__ inline float f16_value(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1fu, fraction = bits & 0x3ffu;
  if (exponent == 0x1f) return bits_to_float(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return bits_to_float(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2^-24: subnormal
  return sign ? -magnitude : magnitude;
}

/// Element i of f32, bf16 or f16 data.
__device__ inline float load(const void* data, DType type, std::int64_t i) {
  if (type == DType::kF32) return static_cast<const float*>(data)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
  return type == DType::kBF16 ? load_element(Bf16{bits}) : f16_value(bits);
}

/// f32 or bf16.
__device__ inline void store(void* data, DType type, std::int64_t i, float value) {
  if (type == DType::kF32) {
    static_cast<float*>(data)[i] = value;
  } else {
    store_element(static_cast<Bf16*>(data) + i, value);
  }
}

__device__ inline float load(const ConstRows& rows, DType type, std::int64_t row, std::int64_t column) {
  return load(rows.data, type, row * rows.stride + column);
}
__device__ inline float load(const Rows& rows, DType type, std::int64_t row, std::int64_t column) {
  return load(rows.data, type, row * rows.stride + column);
}
__device__ inline void store(const Rows& rows, DType type, std::int64_t row, std::int64_t column, float value) {
  store(rows.data, type, row * rows.stride + column, value);
}

/// Element (row, column) of a weight matrix of any stored type.
__device__ inline float weight_value(const LinearWeight& weight, std::int64_t row, std::int64_t column) {
  const std::int64_t i = row * weight.in_dim + column;
  if (weight.dtype == DType::kI8) return weight.scales[row] * static_cast<const std::int8_t*>(weight.data)[i];
  if (weight.dtype == DType::kI4) {
    const std::uint8_t pair = static_cast<const std::uint8_t*>(weight.data)[i / 2];
    const int nibble = i % 2 == 0 ? pair & 15 : pair >> 4;
    return weight.scales[row * (weight.in_dim / weight.group_size) + column / weight.group_size] *
           static_cast<float>(nibble >= 8 ? nibble - 16 : nibble);
  }
  return load(weight.data, weight.dtype, i);
}

/// The sequence that owns token t: the last b with offsets[b] <= t that is not empty.
__device__ inline int sequence_of(const std::int32_t* offsets, int sequence_count, int t) {
  int low = 0, high = sequence_count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (offsets[middle] <= t) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__device__ inline float apply_gate(GateKind kind, float x) {
  return kind == GateKind::kNone ? 1.0f : kind == GateKind::kSilu ? silu(x) : sigmoid(x);
}

}  // namespace cairn::gpu
