// delta_chunk_pairs: the products of token pairs of a quad, level by level, for delta_chunk_intra, whose header says what
// a level is.
#pragma once

#include "backends/gpu/kernels/delta_chunk_inverse.cuh"
#include "backends/gpu/kernels/delta_chunk_plan.cuh"

namespace cairn::gpu {

/// Rows of a level: 32 columns' keys, then 64 of the rows' erase keys and queries. Levels 32 and 16: 32 erase keys, 32
/// queries. Below: for each block of 16 tokens 8 erase keys, 8 queries.
inline constexpr int kLevelRows = 96, kLevelsAtOnce = 3;

template <int KD>
struct ChunkIntraShared {
  std::uint16_t level[kLevelsAtOnce][kLevelRows][KD + 8];
  float triangle[kChunkTokens][kTriangleStride];  ///< first the parts of the diagonal's sums
  std::uint16_t attend[kChunkTokens][kChunkStride];
  float total[kChunkBlocks][KD];          ///< decay of each block
  float diagonal[KD / 32][kChunkTokens];  ///< parts of <q_t, k_t>
  float erase_weight[kChunkTokens], key_weight[kChunkTokens], query_weight[kChunkTokens], beta[kChunkTokens];
  std::int32_t token[kChunkTokens];
  ChunkBlock block[kChunkBlocks];

  __device__ bool has_rows(int s) const { return block[s].count > (s - block[s].base) * kBlockTokens; }
  __device__ bool are_joined(int s, int t) const { return block[s].list == block[t].list; }
};

__device__ __forceinline__ void put_words(std::uint16_t* row, int c, float x, float y) {
  *reinterpret_cast<std::uint32_t*>(row + c) = pack_bf16(x, y);
}

/// What the sum of a pair is multiplied with. Erase pairs get b of the column.
struct PairWeights {
  float row, column;
};
template <int KD>
__device__ __forceinline__ PairWeights erase_weights(const ChunkIntraShared<KD>& shared, int i, int j) {
  return {shared.erase_weight[i], shared.key_weight[j] * shared.beta[j]};
}
template <int KD>
__device__ __forceinline__ PairWeights query_weights(const ChunkIntraShared<KD>& shared, int i, int j) {
  return {shared.query_weight[i], shared.key_weight[j]};
}

/// A 16 x 16 product of rows [row, row + 16) and columns [column, column + 16) of a far level, to pairs from (i, j) on;
/// zeros between two lists.
template <int KD>
__device__ __forceinline__ void multiply_far(ChunkIntraShared<KD>& shared, int level, int row, int column,
                                             bool is_erase, int i, int j) {
  const bool are_joined = shared.are_joined(i / kBlockTokens, j / kBlockTokens);
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes;
  float sum[2][4] = {};
#pragma unroll
  for (int k = 0; k < KD; k += 16) {
    std::uint32_t left[4], right[4];
    load_left(left, [&](int r, int c) { return &shared.level[level][row + r][k + c]; });
    load_right(right, [&](int r, int c) { return &shared.level[level][column + r][k + c]; });
    multiply_16x8(sum[0], left, right[0], right[1]);
    multiply_16x8(sum[1], left, right[2], right[3]);
  }
  const int to_i = i + lane / 4, to_j = j + lane % 4 * 2;
  PairWeights weights[2][4];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int place_i = to_i + e / 2 * 8, place_j = to_j + 8 * n + e % 2;
      weights[n][e] = is_erase ? erase_weights(shared, place_i, place_j) : query_weights(shared, place_i, place_j);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = sum[n][2 * half] * weights[n][2 * half].row * weights[n][2 * half].column;
      float y = sum[n][2 * half + 1] * weights[n][2 * half + 1].row * weights[n][2 * half + 1].column;
      x = are_joined ? x : 0, y = are_joined ? y : 0;
      if (is_erase) {
        store_floats(&shared.triangle[to_i + 8 * half][to_j + 8 * n], {x, y});
      } else {
        put_words(shared.attend[to_i + 8 * half], to_j + 8 * n, x, y);
      }
    }
  }
}

/// Blocks s and s + 1 of near level 1 << kShift: 8 erase keys and 8 queries of each against its 8 keys.
template <int kShift, int KD, ChunkEdit kEdit>
__device__ __forceinline__ void multiply_near(ChunkIntraShared<KD>& shared, int at, int s) {
  constexpr int kLevel = 1 << kShift;
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes;
  float sum[2][4] = {};
#pragma unroll
  for (int k = 0; k < KD; k += 16) {
    std::uint32_t left[2][4], right[4];
    load_right(right, [&](int r, int c) { return &shared.level[at][8 * s + r][k + c]; });
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      load_left(left[n], [&](int r, int c) { return &shared.level[at][32 + 16 * (s + n) + r][k + c]; });
      multiply_16x8(sum[n], left[n], right[2 * n], right[2 * n + 1]);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = lane / 4, column = lane % 4 * 2 + e;
      if (row >> kShift != column >> kShift) continue;
      const int base = (s + n) * kBlockTokens + (row >> kShift << (kShift + 1));
      const int i = base + kLevel + (row & (kLevel - 1)), j = base + (column & (kLevel - 1));
      const PairWeights query = query_weights(shared, i, j);
      if constexpr (kEdit != ChunkEdit::kNone) {
        const PairWeights erase = erase_weights(shared, i, j);
        shared.triangle[i][j] = sum[n][e] * erase.row * erase.column;
      }
      shared.attend[i][j] = to_bf16(sum[n][2 + e] * query.row * query.column).bits;
    }
  }
}

/// All products of the levels at hand: 32, 16, 8 (is_far), or 4, 2, 1; shared among groups of 32 lanes. Without an
/// erase only those that are stored.
template <int KD, ChunkEdit kEdit>
__device__ __forceinline__ void multiply_levels(ChunkIntraShared<KD>& shared, bool is_far) {
  constexpr bool kHasErase = kEdit != ChunkEdit::kNone;
  const int group = static_cast<int>(threadIdx.x) / kMatrixLanes, groups = 2 * KD / kMatrixLanes;
  const auto is_wanted = [&](int s, int from) {
    return kHasErase || (shared.has_rows(s) && shared.are_joined(s, from));
  };
  for (int unit = group; unit < (is_far ? 14 : 6); unit += groups) {
    if (is_far && unit < 8) {
      const bool is_erase = unit < 4;
      const int i = unit / 2 % 2 * 16, j = unit % 2 * 16;
      if ((is_erase && !kHasErase) || !is_wanted(2 + i / kBlockTokens, j / kBlockTokens)) continue;
      multiply_far<KD>(shared, 0, (is_erase ? 32 : 64) + i, j, is_erase, 32 + i, j);
    } else if (is_far && unit < 12) {
      const bool is_erase = unit < 10;
      const int half = unit % 2;
      if ((is_erase && !kHasErase) || !is_wanted(2 * half + 1, 2 * half)) continue;
      multiply_far<KD>(shared, 1, (is_erase ? 32 : 64) + half * 16, half * 16, is_erase, half * 32 + 16, half * 32);
    } else {
      const int s = unit % 2 * 2, near = unit / 2;
      if (!is_wanted(s, s) && !is_wanted(s + 1, s + 1)) continue;
      if (is_far) {
        multiply_near<3, KD, kEdit>(shared, 2, s);
      } else if (near == 0) {
        multiply_near<2, KD, kEdit>(shared, 0, s);
      } else if (near == 1) {
        multiply_near<1, KD, kEdit>(shared, 1, s);
      } else {
        multiply_near<0, KD, kEdit>(shared, 2, s);
      }
    }
  }
}

}  // namespace cairn::gpu
