// gla_chunk_scan: delta_chunk_scan where nothing is erased: walks the chunks of a list with 64 value columns.
//   Computes  O = Q_in S + A V;  S <- decay S + K_out^T V
//   Launch    grid (slices, HV, lists * sequences). Each of 4 groups of 32 lanes has 16 columns of S^T in registers in
//             f32 and makes its outputs itself: updates are values, so nothing of a chunk waits. kChunkLoaders groups
//             copy the operands of the two chunks ahead. One barrier a chunk
//   Numerics  S f32, rounded to bf16 as operand of the outputs; sums f32 in an order that no slice width changes
//   Measured  (H200, SSE n4k1, 16 heads of 128 x 128) about 360 us for 8K tokens, by what is left of the whole; 628 by
//             the form before, delta_chunk_scan with outputs in groups of their own, where three stages in place of two
//             changed nothing. Both have 160 blocks on 132 multiprocessors, one on each at a time
//   Tried     the whole at 32K, us: this one 2,946; outputs before the state, not in turns, 2,893 in another run; 128
//             columns a block, so 80 blocks, but spills: 3,517, and 3,624 in turns (the scan of 8K 517); two blocks a
//             multiprocessor with two stages each 3,254, in turns 3,535; four stages with two groups that copy 3,552
#pragma once

#include "backends/gpu/kernels/delta_chunk_walk.cuh"

namespace cairn::gpu {

inline constexpr int kGlaGroups = 4, kGlaColumns = 16 * kGlaGroups, kGlaStages = 3;
inline constexpr int kGlaScanThreads = (kGlaGroups + kChunkLoaders) * kMatrixLanes;

template <int KD>
struct GlaScanShared {
  struct Stage {
    std::uint16_t key[kChunkTokens][KD + 8], query[kChunkTokens][KD + 8], attend[kChunkTokens][kChunkStride];
    std::uint16_t value[kChunkTokens][kGlaColumns + 8];
    float decay[KD];
  };
  alignas(16) Stage stage[kGlaStages];
  ChunkPlace place[kSegmentWindows];
  std::int32_t count[kSegmentWindows];
};

template <int KD>
__device__ __forceinline__ void load_gla_stage(const DeltaChunkArgs& a, const ChunkScan& scan, const ChunkPlace& place,
                                               typename GlaScanShared<KD>::Stage& to, int lane) {
  const std::int64_t row = tile_row(a, place, scan.h);
  const int rows = (place.count + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
  copy_values<kGlaColumns, false>(a, scan, place, a.v, to.value, lane);
  copy_rows<KD, false>(to.key, a.tiles.key + row * KD, rows, lane);
  copy_rows<KD, false>(to.query, a.tiles.query + row * KD, rows, lane);
  copy_lower_blocks<false>(to.attend, a.tiles.attend + row * kChunkTokens, rows, lane);
  const float* decay = chunk_factors(a, place.window, scan.list, scan.h, KD);
  if (lane < KD / 4) copy_16_async(&to.decay[4 * lane], decay + 4 * lane, true);
}

/// One chunk: outputs and the state, in turns, so that no product waits for the sums of the one before.
template <int KD>
__device__ __forceinline__ void advance_gla(const DeltaChunkArgs& a, const ChunkScan& scan, const ChunkPlace& place,
                                            const typename GlaScanShared<KD>::Stage& stage, int group,
                                            ChainState<KD>& chain) {
  constexpr int kSteps = KD / 16;
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes, pair = lane % 4 * 2;
  std::uint32_t state[kSteps][4], update[kChunkBlocks][4];
#pragma unroll
  for (int t = 0; t < kChunkBlocks; ++t) {
    if (16 * t < place.count)
      load_left_transposed(update[t], [&](int r, int c) { return &stage.value[16 * t + r][16 * group + c]; });
  }
#pragma unroll
  for (int k = 0; k < kSteps; ++k) pack_left(state[k], chain.s[2 * k], chain.s[2 * k + 1]);
#pragma unroll
  for (int j = 0; j < KD / 8; ++j) {
    const TwoFloats d = load_floats(&stage.decay[8 * j + pair]);
    chain.s[j][0] *= d.x, chain.s[j][1] *= d.y, chain.s[j][2] *= d.x, chain.s[j][3] *= d.y;
  }
  const std::int64_t width = static_cast<std::int64_t>(a.value_heads) * a.value_dim;
  const int v = scan.first_column + 16 * group + lane / 4;
  float* const out = a.list_out + static_cast<std::int64_t>(place.block) * kBlockTokens * width +
                     static_cast<std::int64_t>(scan.h) * a.value_dim + v;
#pragma unroll
  for (int t = 0; t < kChunkBlocks; ++t) {
    if (16 * t >= place.count) break;
    float far[2][4] = {}, near[2][4] = {};
    const auto add_near = [&](int s) {
      std::uint32_t right[4];
      load_right(right, [&](int r, int c) { return &stage.attend[16 * t + r][16 * s + c]; });
      multiply_16x8(near[0], update[s], right[0], right[1]);
      multiply_16x8(near[1], update[s], right[2], right[3]);
    };
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      std::uint32_t query[4], key[4];
      load_right(query, [&](int r, int c) { return &stage.query[16 * t + r][16 * k + c]; });
      load_right_transposed(key, [&](int r, int c) { return &stage.key[16 * t + r][16 * k + c]; });
      multiply_16x8(far[0], state[k], query[0], query[1]);
      multiply_16x8(chain.s[2 * k], update[t], key[0], key[1]);
      multiply_16x8(far[1], state[k], query[2], query[3]);
      multiply_16x8(chain.s[2 * k + 1], update[t], key[2], key[3]);
      if (k <= t) add_near(k);
    }
#pragma unroll
    for (int s = kSteps; s <= t; ++s) add_near(s);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = 16 * t + 8 * n + pair + e % 2, c = e / 2 * 8;
        if (i < place.count && v + c < a.value_dim) out[i * width + c] = far[n][e] + near[n][e];
      }
    }
  }
}

template <int KD>
__global__ void __launch_bounds__(kGlaScanThreads, 1) gla_chunk_scan_kernel(DeltaChunkArgs a) {
  auto& shared = *reinterpret_cast<GlaScanShared<KD>*>(dynamic_shared());
  const int thread = static_cast<int>(threadIdx.x), group = thread / kMatrixLanes;
  const bool is_chain = group < kGlaGroups;
  const ChunkScan scan = chunk_scan(a, kGlaColumns);
  if (scan.begin >= scan.end) return;
  const int chunks = find_chunks(a, scan, shared);
  if (chunks == 0) return;
  const int column = scan.first_column + 16 * group;
  ChainState<KD> chain;
  const auto load = [&](int i) {
    if (i < chunks)
      load_gla_stage<KD>(a, scan, shared.place[i], shared.stage[i % kGlaStages], thread - kGlaGroups * kMatrixLanes);
    commit_copies();
  };
  if (is_chain) {
#pragma unroll
    for (int j = 0; j < KD / 8; ++j) chain.s[j][0] = chain.s[j][1] = chain.s[j][2] = chain.s[j][3] = 0;
    chain.for_each(a, column, [&](float& s, std::int64_t at) { s = scan.state[at]; });
  } else {
    for (int i = 0; i < kGlaStages - 1; ++i) load(i);
    wait_for_copies<kGlaStages - 2>();
  }
  __syncthreads();
  for (int i = 0; i < chunks; ++i) {
    if (is_chain) {
      advance_gla<KD>(a, scan, shared.place[i], shared.stage[i % kGlaStages], group, chain);
    } else {
      load(i + kGlaStages - 1);  // where chunk i - 1 was
      wait_for_copies<kGlaStages - 2>();
    }
    __syncthreads();
  }
  if (is_chain) chain.for_each(a, column, [&](float& s, std::int64_t at) { scan.state[at] = s; });
}

}  // namespace cairn::gpu
