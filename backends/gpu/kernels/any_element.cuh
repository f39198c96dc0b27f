// Elements whose type is known at run time, as f32, and a token's sequence: what the general kernels need. One kernel then
// serves every type; the branch is the same for all threads.
#pragma once

#include "backends/gpu/kernels/element.cuh"
#include "backends/gpu/platform/gpu_matrix.h"
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

/// Eight neighbouring elements of f32 or bf16 data; their place is a multiple of 8 elements from a 16-byte boundary.
__device__ inline void load_eight(const void* data, DType type, std::int64_t i, float (&x)[8]) {
  if (type == DType::kF32) {
    const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(data) + i);
    const float4 low = from[0], high = from[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    return;
  }
  const float4 piece = *reinterpret_cast<const float4*>(static_cast<const std::uint16_t*>(data) + i);
  const std::uint32_t words[4] = {float_to_bits(piece.x), float_to_bits(piece.y), float_to_bits(piece.z), float_to_bits(piece.w)};
#pragma unroll
  for (int j = 0; j < 4; ++j) x[2 * j] = low_bf16(words[j]), x[2 * j + 1] = high_bf16(words[j]);
}
__device__ inline void store_eight(void* data, DType type, std::int64_t i, const float (&x)[8]) {
  float4 piece;
  if (type == DType::kF32) {
    float4* to = reinterpret_cast<float4*>(static_cast<float*>(data) + i);
    piece.x = x[0], piece.y = x[1], piece.z = x[2], piece.w = x[3];
    to[0] = piece;
    piece.x = x[4], piece.y = x[5], piece.z = x[6], piece.w = x[7];
    to[1] = piece;
    return;
  }
  piece.x = bits_to_float(pack_bf16(x[0], x[1])), piece.y = bits_to_float(pack_bf16(x[2], x[3]));
  piece.z = bits_to_float(pack_bf16(x[4], x[5])), piece.w = bits_to_float(pack_bf16(x[6], x[7]));
  *reinterpret_cast<float4*>(static_cast<std::uint16_t*>(data) + i) = piece;
}

/// True when load_eight may be used at every multiple of 8 columns.
inline bool is_in_eights(const void* data, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}
inline bool is_in_eights(const ConstRows& rows) { return is_in_eights(rows.data, rows.stride); }
inline bool is_in_eights(const Rows& rows) { return is_in_eights(rows.data, rows.stride); }

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
