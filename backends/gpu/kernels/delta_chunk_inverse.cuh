// The inverse of a unit lower triangular matrix [64 x 64] in shared memory, by 16 x 16 blocks.
#pragma once

#include "backends/gpu/kernels/element.cuh"
#include "backends/gpu/platform/gpu_matrix.h"

namespace cairn::gpu {

inline constexpr int kTriangleStride = 68;  ///< rows 4 banks apart

/// Two f32 as bf16 and what that leaves, again as bf16: 16 bits of each.
struct SplitPair {
  std::uint32_t high, low;
};
__device__ __forceinline__ SplitPair split_pair(float x, float y) {
  const std::uint32_t high = pack_bf16(x, y);
  return {high, pack_bf16(x - low_bf16(high), y - high_bf16(high))};
}

/// d[16 x 16] = a[16 x 16 kSteps] b[16 kSteps x 16] of 32 lanes; a, b f32 with rows kTriangleStride apart.
template <int kSteps>
__device__ __forceinline__ void multiply_split(float (&d)[2][4], const float* a, const float* b) {
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes, row = lane / 4, pair = lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) d[n][e] = 0;
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    std::uint32_t high[4], low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float* at = a + (row + e % 2 * 8) * kTriangleStride + step * 16 + pair + e / 2 * 8;
      const SplitPair split = split_pair(at[0], at[1]);
      high[e] = split.high, low[e] = split.low;
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* at = b + (step * 16 + pair) * kTriangleStride + n * 8 + row;
      const SplitPair upper = split_pair(at[0], at[kTriangleStride]);
      const SplitPair lower = split_pair(at[8 * kTriangleStride], at[9 * kTriangleStride]);
      multiply_16x8(d[n], low, upper.high, lower.high);
      multiply_16x8(d[n], high, upper.low, lower.low);
      multiply_16x8(d[n], high, upper.high, lower.high);
    }
  }
}
__device__ __forceinline__ void store_block(float* to, const float (&d)[2][4], float sign) {
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float* at = to + lane / 4 * kTriangleStride + n * 8 + lane % 4 * 2;
    at[0] = sign * d[n][0], at[1] = sign * d[n][1];
    at[8 * kTriangleStride] = sign * d[n][2], at[8 * kTriangleStride + 1] = sign * d[n][3];
  }
}

/// One column of the inverse of a diagonal block: thread (block, column) of 64.
__device__ __forceinline__ void invert_diagonal_block(const float* corner, int column, float (&x)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      float m[4];
      load_four(corner + i * kTriangleStride + j, m);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (j + c < i) sum -= m[c] * x[j + c];
      }
    }
    x[i] = sum;
  }
}

/// m -> m^-1 in place: reads the strict lower triangle, writes the blocks on and below the diagonal. All threads of a
/// block of kGroups times 32; what they wrote before is seen after a barrier.
template <int kGroups>
__device__ __forceinline__ void invert_unit_triangle(float (&m)[64][kTriangleStride]) {
  constexpr int kTurns = kGroups >= 4 ? 1 : 4 / kGroups;
  const int thread = static_cast<int>(threadIdx.x), group = thread / kMatrixLanes;
  float x[16], d[kTurns][2][4];
  float* const corner = &m[thread / 16 % 4 * 16][thread / 16 % 4 * 16];
  if (thread < 64) invert_diagonal_block(corner, thread % 16, x);
  for (int i = thread; i < 2 * 16 * 16; i += kGroups * kMatrixLanes)  // blocks (0, 1) and (2, 3), read below
    m[i / 256 * 32 + i / 16 % 16][i / 256 * 32 + 16 + i % 16] = 0;
  __syncthreads();
  if (thread < 64) {
#pragma unroll
    for (int i = 0; i < 16; ++i) corner[i * kTriangleStride + thread % 16] = x[i];
  }
  __syncthreads();
  if (group < 2) {  // blocks (1, 0) and (3, 2):  -C_11 (M_10 C_00)
    float* low = &m[32 * group + 16][32 * group];
    multiply_split<1>(d[0], low, low - 16 * kTriangleStride);
    warp_barrier();
    store_block(low, d[0], 1.0f);
    warp_barrier();
    multiply_split<1>(d[0], low + 16, low);
    warp_barrier();
    store_block(low, d[0], -1.0f);
  }
  __syncthreads();
  // The lower left 32 x 32, one 16 x 16 block a turn.
  const auto at = [&](int turn) {
    return &m[32 + (group + turn * kGroups) / 2 * 16][(group + turn * kGroups) % 2 * 16];
  };
  const auto column = [&](int turn) { return (group + turn * kGroups) % 2 * 16; };
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    if (group < 4) multiply_split<2>(d[turn], at(turn) - column(turn), &m[0][column(turn)]);
  }
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    if (group < 4) store_block(at(turn), d[turn], 1.0f);
  }
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    if (group < 4) multiply_split<2>(d[turn], at(turn) - column(turn) + 32, &m[32][column(turn)]);
  }
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    if (group < 4) store_block(at(turn), d[turn], -1.0f);
  }
  __syncthreads();
}

}  // namespace cairn::gpu
