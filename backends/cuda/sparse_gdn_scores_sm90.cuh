// sparse_gdn_scores: Q K^T of two chunks and the weights of U' in their outputs.
#pragma once

#include "backends/cuda/sparse_gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90::sparse {

/// Q K^T of two chunks' tiles: 8 products.
__device__ __forceinline__ void multiply_keys(float (&d)[32], const unsigned char* q, const unsigned char* k) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t at = i / 4 * kTileBytes + i % 4 * 32;
    multiply_64x64(d, operand(shared_address(q) + at), operand(shared_address(k) + at), i > 0);
  }
}

/// Weights of a chunk with itself: scale <q_i, k_j> 2^(g_i - h_j), j <= i.
template <bool kOneFrame>
__device__ __forceinline__ void weigh_own(const float (&qk)[32], const float* g, float scale, int warp, int lane,
                                          std::uint32_t (&a)[4][4]) {
  const float gamma = g[kChunk - 1];
  float g_t[2], row[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    g_t[r] = g[16 * warp + lane / 4 + 8 * r];
    row[r] = kOneFrame ? scale * exp2_fast(g_t[r] - gamma) : scale;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int s = 8 * j + 2 * (lane % 4);
    const float2 g_s = kOneFrame ? float2{} : *reinterpret_cast<const float2*>(g + s);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = 16 * warp + lane / 4 + 8 * r;
      std::uint32_t pair = 0;
      if (8 * j < 16 * warp + 16) {  // else above the diagonal for all rows of this warp
        float first = row[r] * qk[4 * j + 2 * r], second = row[r] * qk[4 * j + 2 * r + 1];
        if (!kOneFrame) {
          first *= exp2_fast(fminf(g_t[r] - frame_of(g_s.x, gamma), kFrameBits));
          second *= exp2_fast(fminf(g_t[r] - frame_of(g_s.y, gamma), kFrameBits));
        }
        pair = pack_bf16(s <= t ? first : 0.0f, s + 1 <= t ? second : 0.0f);
      }
      a[j / 2][j % 2 * 2 + r] = pair;
    }
  }
}

/// Weights of the odd chunk with the even one: rows scaled by 2^(g of the odd chunk).
__device__ __forceinline__ void weigh_cross(const float (&qk)[32], const float* odd, float scale, int warp, int lane,
                                            std::uint32_t (&a)[4][4]) {
  float row[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) row[r] = scale * exp2_fast(odd[16 * warp + lane / 4 + 8 * r]);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      a[j / 2][j % 2 * 2 + r] = pack_bf16(row[r] * qk[4 * j + 2 * r], row[r] * qk[4 * j + 2 * r + 1]);
  }
}

}  // namespace cairn::gpu::sm90::sparse
