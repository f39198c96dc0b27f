// A' = scale lower(Q K^T 2^(g_i - h_j)) of a chunk in 16 x 16 blocks: gdn_intra writes it for gdn_scan, gdn_heads
// forms its own, with the same bits. Where h is gamma for all tokens, rows have one factor each.
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

/// Of a warp's rows 16 warp + lane / 4 (+ 8): their exponents, and their factors if there is one frame. The scale is in
/// them: it is positive.
struct ScoreRows {
  float g0, g1, factor0, factor1;
  __device__ __forceinline__ ScoreRows(const float* g, float log2_scale, int warp, int lane)
      : g0(g[gate_place(16 * warp + lane / 4)] + log2_scale),
        g1(g[gate_place(16 * warp + lane / 4 + 8)] + log2_scale),
        factor0(exp2_fast(g0 - g[kChunk - 1])),
        factor1(exp2_fast(g1 - g[kChunk - 1])) {}
};

/// The words of block (warp, block), block <= warp, from the warp's rows of Q K^T. The mask is a selection, so that
/// what lies above the diagonal may be anything.
template <bool kOneFrame>
__device__ __forceinline__ void form_scores(std::uint32_t (&words)[4], const float (&qk)[32], const float* h,
                                            const ScoreRows& rows, const std::uint32_t (&mask)[4], int block, int warp,
                                            int lane) {
  float4 factor0 = make_float4(rows.factor0, rows.factor0, rows.factor0, rows.factor0),
         factor1 = make_float4(rows.factor1, rows.factor1, rows.factor1, rows.factor1);
  if constexpr (!kOneFrame) {
    const float4 h_s = *reinterpret_cast<const float4*>(h + 16 * block + 4 * (lane % 4));
    factor0 = make_float4(exp2_fast(rows.g0 - h_s.x), exp2_fast(rows.g0 - h_s.y), exp2_fast(rows.g0 - h_s.z),
                          exp2_fast(rows.g0 - h_s.w));
    factor1 = make_float4(exp2_fast(rows.g1 - h_s.x), exp2_fast(rows.g1 - h_s.y), exp2_fast(rows.g1 - h_s.z),
                          exp2_fast(rows.g1 - h_s.w));
  }
  const float* of = qk + 8 * block;
  words[0] = pack_bf16(of[0] * factor0.x, of[1] * factor0.y);
  words[1] = pack_bf16(of[2] * factor1.x, of[3] * factor1.y);
  words[2] = pack_bf16(of[4] * factor0.z, of[5] * factor0.w);
  words[3] = pack_bf16(of[6] * factor1.z, of[7] * factor1.w);
  if (block == warp) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] &= mask[i];
  }
}

/// All blocks of a warp's rows to where `address_of(block)` says, for store_matrices.
template <class AddressOf>
__device__ __forceinline__ void store_scores(const float (&qk)[32], const float* g, const float* h, float log2_scale,
                                             const std::uint32_t (&mask)[4], int warp, int lane,
                                             const AddressOf& address_of) {
  const ScoreRows rows(g, log2_scale, warp, lane);
  const auto store = [&](auto form) {
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      if (block > warp) break;
      std::uint32_t words[4];
      form(words, block);
      store_matrices(address_of(block), words);
    }
  };
  if (has_one_frame(g[kChunk - 1])) {
    store([&](std::uint32_t(&words)[4], int block) { form_scores<true>(words, qk, h, rows, mask, block, warp, lane); });
  } else {
    store(
        [&](std::uint32_t(&words)[4], int block) { form_scores<false>(words, qk, h, rows, mask, block, warp, lane); });
  }
}

}  // namespace cairn::gpu::sm90
