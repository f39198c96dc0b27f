// Elements of activations: f32, or bf16 as its bits. All arithmetic is f32.
#pragma once

#include "backends/gpu/platform/gpu_platform.h"
#include "backends/interface/tensor_view.h"

namespace cairn::gpu {

struct Bf16 {
  std::uint16_t bits;
};

__device__ inline float load_element(float x) { return x; }
__device__ inline float load_element(Bf16 x) { return bits_to_float(static_cast<std::uint32_t>(x.bits) << 16); }

/// Round to nearest, ties to even; NaN stays NaN.
__device__ inline Bf16 to_bf16(float x) {
  const std::uint32_t bits = float_to_bits(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<std::uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16)};
}
__device__ inline void store_element(float* to, float x) { *to = x; }
__device__ inline void store_element(Bf16* to, float x) { *to = to_bf16(x); }

template <class Element>
__device__ const Element* row_of(const ConstRows& rows, std::int64_t t) {
  return static_cast<const Element*>(rows.data) + t * rows.stride;
}
template <class Element>
__device__ Element* row_of(const Rows& rows, std::int64_t t) {
  return static_cast<Element*>(rows.data) + t * rows.stride;
}

/// Four neighbouring f32 at a 16-byte aligned address.
__device__ inline void load_four(const float* from, float (&x)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}
__device__ inline void store_four(float* to, const float (&x)[4]) {
  float4 four;
  four.x = x[0], four.y = x[1], four.z = x[2], four.w = x[3];
  *reinterpret_cast<float4*>(to) = four;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float silu(float x) { return x * sigmoid(x); }
__device__ inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/// Calls `run` with a value of the element type of `dtype`:  with_element(a.dtype, [&](auto element) { ... decltype(element) ... }).
template <class Run>
void with_element(DType dtype, const Run& run) {
  if (dtype == DType::kBF16) {
    run(Bf16{});
  } else {
    run(float{});
  }
}

}  // namespace cairn::gpu
