// delta_chunk_scan: walks the chunks of a list with 16 kColumns value columns of one state (delta_chunk_plan.cuh).
//   Computes  X = V - E_in S;  R = T X;  U = b R;  O = Q_in S + A U;  S <- decay S + K_out^T U
//   Launch    grid (slices, HV, lists * sequences). Groups of 32 lanes: kColumns of the chain, each with 16 columns of
//             S^T [16 columns x KD] in registers in f32, so that a chain waits for nobody: sums of one product are the
//             left operand of the next. As many write the outputs of the chunk before; their S and U come as the
//             chain's operands, which lie as right operands need them. kChunkLoaders copy the operands of the chunk
//             after. One barrier a chunk
//   Traffic   KD 128: 68 KB a chunk and slice of 32 columns, 72 KB of 64; the slices of a head share it in the L2 cache
//   Numerics  S f32; S, X and U are rounded to bf16 as operands; sums f32 in an order that no slice width changes
//   Predicted 1,800 cycles, 1.0 us a chunk (32 columns, 128 blocks)
//   Measured  (H200, KDA, 32 heads of 128 x 128, 512 chunks, us a chunk) 3.2 with 32 columns, 3.5 with 64; 3.8 and 4.1
//             with addresses computed for every copy. Without the loads 2.1, without the chain 2.6, without the outputs
//             2.5, the loads alone 2.2: they are waited for within the chunk that asks for them, about 4 TB/s over all
//             blocks
#pragma once

#include "backends/gpu/kernels/delta_chunk_walk.cuh"

namespace cairn::gpu {

/// Threads for kColumns groups of 16 columns.
constexpr int chunk_scan_threads(int columns) { return (2 * columns + kChunkLoaders) * kMatrixLanes; }

template <int KD, int kColumns>
struct ChunkScanShared {
  static constexpr int kWidth = 16 * kColumns;
  struct ChainStage {
    std::uint16_t erase[kChunkTokens][KD + 8], key[kChunkTokens][KD + 8], solve[kChunkTokens][kChunkStride];
    std::uint16_t value[kChunkTokens][kWidth + 8], write[kChunkTokens][kWidth + 8];
    float factors[KD + kChunkTokens];  ///< decay, then b
  };
  struct OutputStage {
    std::uint16_t query[kChunkTokens][KD + 8], attend[kChunkTokens][kChunkStride];
  };
  alignas(16) ChainStage chain[2];
  alignas(16) OutputStage output[2];
  FourWords state[2][kColumns][KD / 16][kMatrixLanes];
  FourWords update[2][kColumns][kChunkBlocks][kMatrixLanes];
  ChunkPlace place[kSegmentWindows];
  std::int32_t count[kSegmentWindows];
};

template <int KD, int kColumns>
__device__ __forceinline__ void load_chain_stage(const DeltaChunkArgs& a, const ChunkScan& scan,
                                                 const ChunkPlace& place,
                                                 typename ChunkScanShared<KD, kColumns>::ChainStage& to, int lane) {
  constexpr int kWidth = 16 * kColumns;
  const std::int64_t row = tile_row(a, place, scan.h);
  const int rows = (place.count + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
  copy_values<kWidth>(a, scan, place, a.v, to.value, lane);
  if (a.write.data) copy_values<kWidth>(a, scan, place, a.write, to.write, lane);
  copy_rows<KD>(to.erase, a.tiles.erase + row * KD, rows, lane);
  copy_lower_blocks(to.solve, a.tiles.solve + row * kChunkTokens, rows, lane);
  copy_rows<KD>(to.key, a.tiles.key + row * KD, rows, lane);
  const float* factors = chunk_factors(a, place.window, scan.list, scan.h, KD);
  if (lane < (KD + kChunkTokens) / 4) copy_16_async(&to.factors[4 * lane], factors + 4 * lane, true);
}
template <int KD, int kColumns>
__device__ __forceinline__ void load_output_stage(const DeltaChunkArgs& a, const ChunkScan& scan,
                                                  const ChunkPlace& place,
                                                  typename ChunkScanShared<KD, kColumns>::OutputStage& to, int lane) {
  const std::int64_t row = tile_row(a, place, scan.h);
  const int rows = (place.count + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
  copy_rows<KD>(to.query, a.tiles.query + row * KD, rows, lane);
  copy_lower_blocks(to.attend, a.tiles.attend + row * kChunkTokens, rows, lane);
}

/// Gives operands to the outputs.
__device__ __forceinline__ void hand_over(FourWords& to, const std::uint32_t (&left)[4]) {
  to = FourWords{{left[0], left[1], left[2], left[3]}};
}

/// The update of a chunk as left operands: U^T = b (T (V - E_in S))^T.
template <int KD, int kColumns>
__device__ __forceinline__ void find_update(const DeltaChunkArgs& a, const ChunkScan& scan, const ChunkPlace& place,
                                            const typename ChunkScanShared<KD, kColumns>::ChainStage& stage, int group,
                                            const std::uint32_t (&state)[KD / 16][4],
                                            std::uint32_t (&update)[kChunkBlocks][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes, pair = lane % 4 * 2;
#pragma unroll
  for (int t = 0; t < kChunkBlocks; ++t)
    load_left_transposed(update[t], [&](int r, int c) { return &stage.value[16 * t + r][16 * group + c]; });
  float x[2 * kChunkBlocks][4], r[2 * kChunkBlocks][4];
#pragma unroll
  for (int t = 0; t < kChunkBlocks; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      x[2 * t + e / 2][e % 2 * 2] = low_bf16(update[t][e]);
      x[2 * t + e / 2][e % 2 * 2 + 1] = high_bf16(update[t][e]);
    }
  }
  if (a.write.data) {
#pragma unroll
    for (int t = 0; t < kChunkBlocks; ++t) {
      std::uint32_t write[4];
      load_left_transposed(write, [&](int r, int c) { return &stage.write[16 * t + r][16 * group + c]; });
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x[2 * t + e / 2][e % 2 * 2] *= low_bf16(write[e]);
        x[2 * t + e / 2][e % 2 * 2 + 1] *= high_bf16(write[e]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < KD / 16; ++k) {
#pragma unroll
    for (int t = 0; t < kChunkBlocks; ++t) {
      std::uint32_t right[4];
      load_right(right, [&](int r, int c) { return &stage.erase[16 * t + r][16 * k + c]; });
      multiply_16x8(x[2 * t], state[k], right[0], right[1]);
      multiply_16x8(x[2 * t + 1], state[k], right[2], right[3]);
    }
  }
#pragma unroll
  for (int t = 0; t < 2 * kChunkBlocks; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) r[t][e] = 0;
  }
#pragma unroll
  for (int s = 0; s < kChunkBlocks; ++s) {
    std::uint32_t left[4];
    pack_left(left, x[2 * s], x[2 * s + 1]);
#pragma unroll
    for (int t = s; t < kChunkBlocks; ++t) {
      std::uint32_t right[4];
      load_right(right, [&](int row, int c) { return &stage.solve[16 * t + row][16 * s + c]; });
      multiply_16x8(r[2 * t], left, right[0], right[1]);
      multiply_16x8(r[2 * t + 1], left, right[2], right[3]);
    }
  }
  if (a.residual.data) {
#pragma unroll
    for (int t = 0; t < 2 * kChunkBlocks; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = 8 * t + pair + e % 2, v = scan.first_column + 16 * group + lane / 4 + e / 2 * 8;
        if (i < place.count && v < a.value_dim)
          store_element(row_of<Bf16>(a.residual, place.first + i) + static_cast<std::int64_t>(scan.h) * a.value_dim + v,
                        r[t][e]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < 2 * kChunkBlocks; ++t) {
    const TwoFloats b = load_floats(&stage.factors[KD + 8 * t + pair]);
    r[t][0] *= b.x, r[t][1] *= b.y, r[t][2] *= b.x, r[t][3] *= b.y;
  }
#pragma unroll
  for (int t = 0; t < kChunkBlocks; ++t) pack_left(update[t], r[2 * t], r[2 * t + 1]);
}

/// One chunk of the chain; hands the rounded state before it, and its update, to the outputs.
template <int KD, int kColumns>
__device__ __forceinline__ void advance_chain(const DeltaChunkArgs& a, const ChunkScan& scan, const ChunkPlace& place,
                                              ChunkScanShared<KD, kColumns>& shared, int parity, int group,
                                              ChainState<KD>& chain) {
  const auto& stage = shared.chain[parity];
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes, pair = lane % 4 * 2;
  std::uint32_t update[kChunkBlocks][4];
  {
    std::uint32_t state[KD / 16][4];
#pragma unroll
    for (int k = 0; k < KD / 16; ++k) {
      pack_left(state[k], chain.s[2 * k], chain.s[2 * k + 1]);
      hand_over(shared.state[parity][group][k][lane], state[k]);
    }
    find_update<KD, kColumns>(a, scan, place, stage, group, state, update);
  }
#pragma unroll
  for (int t = 0; t < kChunkBlocks; ++t) hand_over(shared.update[parity][group][t][lane], update[t]);
#pragma unroll
  for (int j = 0; j < KD / 8; ++j) {
    const TwoFloats d = load_floats(&stage.factors[8 * j + pair]);
    chain.s[j][0] *= d.x, chain.s[j][1] *= d.y, chain.s[j][2] *= d.x, chain.s[j][3] *= d.y;
  }
#pragma unroll
  for (int t = 0; t < kChunkBlocks; ++t) {
#pragma unroll
    for (int k = 0; k < KD / 16; ++k) {
      std::uint32_t right[4];
      load_right_transposed(right, [&](int r, int c) { return &stage.key[16 * t + r][16 * k + c]; });
      multiply_16x8(chain.s[2 * k], update[t], right[0], right[1]);
      multiply_16x8(chain.s[2 * k + 1], update[t], right[2], right[3]);
    }
  }
}

/// Rows of outputs of one 16-token block, 32 columns.
template <class Sums>
__device__ __forceinline__ void store_outputs(const DeltaChunkArgs& a, const ChunkScan& scan, const ChunkPlace& place,
                                              int block, int column, const Sums& sum) {
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = 16 * block + lane / 4 + 8 * half;
    if (i >= place.count) continue;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int v = column + 8 * n + lane % 4 * 2;
      const float x = sum[n][2 * half], y = sum[n][2 * half + 1];
      const std::int64_t at = static_cast<std::int64_t>(scan.h) * a.value_dim + v;
      if (a.list_out) {
        float* to =
            a.list_out + (static_cast<std::int64_t>(place.block) * kBlockTokens + i) * a.value_heads * a.value_dim + at;
        if (v < a.value_dim) to[0] = x;
        if (v + 1 < a.value_dim) to[1] = y;
        continue;
      }
      Bf16* to = row_of<Bf16>(a.out, place.first + i) + at;
      if (a.has_out_words) {
        if (v < a.value_dim) *reinterpret_cast<std::uint32_t*>(to) = pack_bf16(x, y);
      } else {
        if (v < a.value_dim) store_element(to, x);
        if (v + 1 < a.value_dim) store_element(to + 1, y);
      }
    }
  }
}

/// Outputs of token blocks b and 3 - b (of like work together), 32 columns: those of chain groups 2 half, 2 half + 1.
template <int KD, int kColumns>
__device__ __forceinline__ void write_outputs(const DeltaChunkArgs& a, const ChunkScan& scan, const ChunkPlace& place,
                                              const ChunkScanShared<KD, kColumns>& shared, int parity, int group) {
  const auto& stage = shared.output[parity];
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes, half = group / 2;
  const int block[2] = {group % 2, 3 - group % 2};
  float sum[2][4][4] = {};
  const auto add = [&](const FourWords& words, int from, int m, const std::uint32_t(&left)[4]) {
    multiply_16x8(sum[m][2 * from], left, words.word[0], words.word[2]);
    multiply_16x8(sum[m][2 * from + 1], left, words.word[1], words.word[3]);
  };
#pragma unroll
  for (int k = 0; k < KD / 16; ++k) {
    const FourWords right[2] = {shared.state[parity][2 * half][k][lane], shared.state[parity][2 * half + 1][k][lane]};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      std::uint32_t left[4];
      load_left(left, [&](int r, int c) { return &stage.query[16 * block[m] + r][16 * k + c]; });
      add(right[0], 0, m, left), add(right[1], 1, m, left);
    }
  }
#pragma unroll
  for (int s = 0; s < kChunkBlocks; ++s) {
    const FourWords right[2] = {shared.update[parity][2 * half][s][lane], shared.update[parity][2 * half + 1][s][lane]};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (s > block[m]) continue;
      std::uint32_t left[4];
      load_left(left, [&](int r, int c) { return &stage.attend[16 * block[m] + r][16 * s + c]; });
      add(right[0], 0, m, left), add(right[1], 1, m, left);
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) store_outputs(a, scan, place, block[m], scan.first_column + 32 * half, sum[m]);
}

template <int KD, int kColumns>
__global__ void __launch_bounds__(chunk_scan_threads(kColumns), 1) delta_chunk_scan_kernel(DeltaChunkArgs a) {
  using Shared = ChunkScanShared<KD, kColumns>;
  auto& shared = *reinterpret_cast<Shared*>(dynamic_shared());
  const int thread = static_cast<int>(threadIdx.x), group = thread / kMatrixLanes;
  const bool is_chain = group < kColumns, is_output = !is_chain && group < 2 * kColumns;
  const int loader = thread - 2 * kColumns * kMatrixLanes;
  const ChunkScan scan = chunk_scan(a, Shared::kWidth);
  if (scan.begin >= scan.end) return;
  const int chunks = find_chunks(a, scan, shared);
  if (chunks == 0) return;
  const int column = scan.first_column + 16 * group;
  ChainState<KD> chain;
  if (is_chain) {
#pragma unroll
    for (int j = 0; j < KD / 8; ++j) chain.s[j][0] = chain.s[j][1] = chain.s[j][2] = chain.s[j][3] = 0;
    chain.for_each(a, column, [&](float& s, std::int64_t at) { s = scan.state[at]; });
  } else if (!is_output) {
    load_chain_stage<KD, kColumns>(a, scan, shared.place[0], shared.chain[0], loader);
    commit_copies();
    wait_for_copies<0>();
  }
  __syncthreads();
  for (int i = 0; i <= chunks; ++i) {
    const int parity = i % 2;
    if (is_chain) {
      if (i < chunks) {
        advance_chain<KD, kColumns>(a, scan, shared.place[i], shared, parity, group, chain);
        const std::int64_t done = scan.first_chunk + shared.place[i].window - scan.begin + 1;
        if (a.checkpoint_chunks && done % a.checkpoint_chunks == 0 && done * kChunkTokens < scan.token_count) {
          float* kept = a.checkpoints[scan.sequence] + ((done / a.checkpoint_chunks - 1) * a.value_heads + scan.h) *
                                                           static_cast<std::int64_t>(a.key_dim) * a.value_dim;
          chain.for_each(a, column, [&](float& s, std::int64_t at) { kept[at] = s; });
        }
      }
    } else if (is_output) {
      if (i > 0) write_outputs<KD, kColumns>(a, scan, shared.place[i - 1], shared, 1 - parity, group - kColumns);
    } else {
      if (i + 1 < chunks)
        load_chain_stage<KD, kColumns>(a, scan, shared.place[i + 1], shared.chain[1 - parity], loader);
      if (i < chunks) load_output_stage<KD, kColumns>(a, scan, shared.place[i], shared.output[parity], loader);
      commit_copies();
      wait_for_copies<0>();
    }
    __syncthreads();
  }
  if (is_chain) chain.for_each(a, column, [&](float& s, std::int64_t at) { scan.state[at] = s; });
}

}  // namespace cairn::gpu
