// A' = scale lower(Q K^T 2^(g_i - g_j)) of a chunk in 16 x 16 blocks: gdn_intra writes it for gdn_scan, gdn_heads
// forms its own, with the same bits.
#pragma once

#include "backends/cuda/gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90 {

/// Of the words of a block on the diagonal: what is not above it.
__device__ __forceinline__ void diagonal_mask(std::uint32_t (&mask)[4], int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int above = 2 * (lane % 4) + i / 2 * 8 - lane / 4 - i % 2 * 8;  // of the word's first entry
    mask[i] = (above <= 0 ? 0xffffu : 0) | (above <= -1 ? 0xffff0000u : 0);
  }
}

/// The exponents of a warp's rows 16 warp + lane / 4 (+ 8). The scale is in them: it is positive.
struct ScoreRows {
  float g0, g1;
  __device__ __forceinline__ ScoreRows(const float* g, float log2_scale, int warp, int lane)
      : g0(g[gate_place(16 * warp + lane / 4)] + log2_scale),
        g1(g[gate_place(16 * warp + lane / 4 + 8)] + log2_scale) {}
};

/// The words of block (warp, block), block <= warp, from the warp's rows of Q K^T. The mask is a selection, so that
/// what lies above the diagonal may be anything.
__device__ __forceinline__ void form_scores(std::uint32_t (&words)[4], const float (&qk)[32], const float* g,
                                            const ScoreRows& rows, const std::uint32_t (&mask)[4], int block, int warp,
                                            int lane) {
  const float4 g_both = *reinterpret_cast<const float4*>(g + 16 * block + 4 * (lane % 4));
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float* of = qk + 8 * block + 4 * n;
    const float2 g_s = n ? make_float2(g_both.z, g_both.w) : make_float2(g_both.x, g_both.y);
    words[2 * n] = pack_bf16(of[0] * exp2_fast(rows.g0 - g_s.x), of[1] * exp2_fast(rows.g0 - g_s.y));
    words[2 * n + 1] = pack_bf16(of[2] * exp2_fast(rows.g1 - g_s.x), of[3] * exp2_fast(rows.g1 - g_s.y));
  }
  if (block == warp) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] &= mask[i];
  }
}

}  // namespace cairn::gpu::sm90
