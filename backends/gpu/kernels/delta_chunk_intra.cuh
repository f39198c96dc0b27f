// delta_chunk_intra: everything of a chunk that does not need the state (delta_chunk_plan.cuh), one head of one
// quad of blocks.
//   Pairs     token pairs by their highest differing bit: at level L (32, 16, .. 1) i has bit L, j has not, bits above
//             are equal. Between them lies a border; the row's factor is the decay from the border to i, the column's
//             from j to the border. Both are products of decays <= 1: nothing overflows at any decay, no exponent is
//             formed as a difference, and every pair is part of a matrix product
//   Launch    grid (HV, windows * quads), 2 KD threads: a thread owns two key rows of 16 tokens; then products by 32
//             lanes. The short lists of SSE share a quad; no bit depends on which do
//   Traffic   KD 128, per token and head: reads q, k 512, log-decays 512; writes operands 768, solve and attend
//             160 bytes
//   Numerics  decays and their products f32, one exponential a token and row; operands of the pair products bf16, sums
//             f32; the triangle is inverted in f32, blocks merged with operands split in two bf16 parts (2^-16)
//   Predicted 5,000 cycles a chunk and multiprocessor, 0.36 ms for KDA at 32K tokens; its bytes alone take 0.5 ms
//   Measured  (H200, 32 heads of 128 x 128) 1.10 ms, GDN2 1.27 ms; 1.53 ms with a branch before each token's loads. Why
//             it is twice its bytes has not been measured. Without an erase, for SSE n4k1, 16 heads, 8K tokens: 313 us,
//             391 with a quad for each list
#pragma once

#include "backends/gpu/kernels/clamp_decay.cuh"
#include "backends/gpu/kernels/delta_chunk_inverse.cuh"
#include "backends/gpu/kernels/delta_chunk_pairs.cuh"

namespace cairn::gpu {

/// Two key rows of the 16 tokens of one block.
template <ChunkEdit kEdit>
struct ChunkColumns {
  static constexpr bool kHasErase = kEdit == ChunkEdit::kDecoupled;
  std::uint32_t q[kBlockTokens], k[kBlockTokens], b[kHasErase ? kBlockTokens : 1];
  float decay[kBlockTokens][2];

  __device__ __forceinline__ float query(int i, int c) const { return c ? high_bf16(q[i]) : low_bf16(q[i]); }
  __device__ __forceinline__ float key(int i, int c) const { return c ? high_bf16(k[i]) : low_bf16(k[i]); }
  __device__ __forceinline__ float erase(int i, int c) const {
    if constexpr (kHasErase) return key(i, c) * (c ? high_bf16(b[i]) : low_bf16(b[i]));
    return key(i, c);
  }
};

/// Elements c, c + 1 of a row of `width`, as one word where rows are aligned for that.
__device__ __forceinline__ std::uint32_t load_row_pair(const std::uint16_t* row, int c, int width, bool has_words) {
  if (has_words) return *reinterpret_cast<const std::uint32_t*>(row + c);
  return row[c] | static_cast<std::uint32_t>(row[c + 1 < width ? c + 1 : c]) << 16;
}

__device__ __forceinline__ float decay_of(float g) { return exp2f(clamp_decay(g) * 1.4426950408889634f); }

/// Rows from column c on; token(i) names the tokens. Every load is made, so that all are under way at once: what is not
/// there is some other row, for finish_columns to clear. Decays are still logarithms.
template <ChunkEdit kEdit, class Token>
__device__ __forceinline__ void load_columns(const DeltaChunkArgs& a, const ChunkSide& side, const Token& token, int h,
                                             int c, ChunkColumns<kEdit>& x) {
  const std::int64_t key_at = static_cast<std::int64_t>(h / (a.value_heads / a.key_heads)) * a.key_dim;
  const bool is_column = c < a.key_dim, has_words = a.has_key_words;
  const int from = is_column ? c : 0;
  const auto row = [&](const ConstRows& rows, std::int64_t t) {
    return static_cast<const std::uint16_t*>(rows.data) + t * rows.stride;
  };
#pragma unroll
  for (int i = 0; i < kBlockTokens; ++i) {
    const std::int64_t t = token(i);
    x.q[i] = load_row_pair(row(side.q, t) + key_at, from, a.key_dim, has_words);
    x.k[i] = load_row_pair(row(side.k, t) + key_at, from, a.key_dim, has_words);
    if constexpr (ChunkColumns<kEdit>::kHasErase) {
      x.b[i] = load_row_pair(row(a.erase, t) + static_cast<std::int64_t>(h) * a.key_dim, from, a.key_dim, has_words);
    }
  }
  if (a.decay == ChunkDecay::kRow) {
#pragma unroll
    for (int i = 0; i < kBlockTokens; ++i) {
      const float* g = side.log_decay + (static_cast<std::int64_t>(token(i)) * a.value_heads + h) * a.key_dim + from;
      if (has_words) {
        const TwoFloats pair = load_floats(g);
        x.decay[i][0] = pair.x, x.decay[i][1] = pair.y;
      } else {
        x.decay[i][0] = g[0], x.decay[i][1] = g[from + 1 < a.key_dim ? 1 : 0];
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kBlockTokens; ++i) {
      x.decay[i][0] = a.decay == ChunkDecay::kToken
                          ? side.log_decay[static_cast<std::int64_t>(token(i)) * a.value_heads + h]
                          : 0.0f;
      x.decay[i][1] = x.decay[i][0];
    }
  }
}
/// Clears tokens from `count` on and columns past K; decays to factors, 1 where there is nothing.
template <ChunkEdit kEdit>
__device__ __forceinline__ void finish_columns(const DeltaChunkArgs& a, int count, int c, ChunkColumns<kEdit>& x) {
  const std::uint32_t columns = c >= a.key_dim ? 0 : c + 1 < a.key_dim ? 0xFFFFFFFFu : 0xFFFFu;
#pragma unroll
  for (int i = 0; i < kBlockTokens; ++i) {
    const std::uint32_t kept = i < count ? columns : 0;
    x.q[i] &= kept, x.k[i] &= kept;
    if constexpr (ChunkColumns<kEdit>::kHasErase) x.b[i] &= kept;
    x.decay[i][0] = kept ? decay_of(x.decay[i][0]) : 1.0f;
    x.decay[i][1] = kept ? decay_of(x.decay[i][1]) : 1.0f;
  }
}

/// Levels 32 and 16, and the operands of the scan, of block s from column c on. rows: where the block's tile rows
/// begin.
template <int KD, ChunkEdit kEdit>
__device__ __forceinline__ void write_far_operands(const DeltaChunkArgs& a, const ChunkColumns<kEdit>& x, int s, int c,
                                                   bool is_stored, std::int64_t rows, ChunkIntraShared<KD>& shared) {
  float from[2], to[2], before[2] = {1.0f, 1.0f}, after[2] = {1.0f, 1.0f}, third[2], second[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    for (int block = shared.block[s].base; block < s; ++block) before[i] *= shared.total[block][c + i];
    for (int block = s + 1; block < kChunkBlocks && shared.are_joined(s, block); ++block)
      after[i] *= shared.total[block][c + i];
    third[i] = s == 3 ? shared.total[2][c + i] : 1.0f;   // from the border of level 32 to the block
    second[i] = s == 0 ? shared.total[1][c + i] : 1.0f;  // from the block to that border
    from[i] = to[i] = 1.0f;
  }
  std::uint16_t* const global_query = a.tiles.query + rows * KD + c;
  std::uint16_t* const global_erase = a.tiles.erase + rows * KD + c;
  std::uint16_t* const global_key = a.tiles.key + rows * KD + c;
#pragma unroll
  for (int i = 0; i < kBlockTokens; ++i) {
    from[0] *= x.decay[i][0], from[1] *= x.decay[i][1];
    const float q0 = x.query(i, 0) * from[0], q1 = x.query(i, 1) * from[1];
    const float e0 = x.erase(i, 0) * from[0], e1 = x.erase(i, 1) * from[1];
    const int t = s * kBlockTokens + i;
    if (s & 2) put_words(shared.level[0][64 + t - 32], c, q0 * third[0], q1 * third[1]);
    if (s & 1) put_words(shared.level[1][64 + s / 2 * kBlockTokens + i], c, q0, q1);
    if (is_stored) {
      const float weight = shared.query_weight[t];
      put_words(global_query + i * KD, 0, q0 * before[0] * weight, q1 * before[1] * weight);
    }
    if constexpr (kEdit != ChunkEdit::kNone) {
      if (s & 2) put_words(shared.level[0][32 + t - 32], c, e0 * third[0], e1 * third[1]);
      if (s & 1) put_words(shared.level[1][32 + s / 2 * kBlockTokens + i], c, e0, e1);
      if (is_stored) {
        const float weight = -shared.erase_weight[t];
        put_words(global_erase + i * KD, 0, e0 * before[0] * weight, e1 * before[1] * weight);
      }
    }
  }
#pragma unroll
  for (int i = kBlockTokens - 1; i >= 0; --i) {
    const float k0 = x.key(i, 0) * to[0], k1 = x.key(i, 1) * to[1];
    const int t = s * kBlockTokens + i;
    if (!(s & 2)) put_words(shared.level[0][t], c, k0 * second[0], k1 * second[1]);
    if (!(s & 1)) put_words(shared.level[1][s / 2 * kBlockTokens + i], c, k0, k1);
    if (is_stored) {
      const float weight = shared.key_weight[t];
      put_words(global_key + i * KD, 0, k0 * after[0] * weight, k1 * after[1] * weight);
    }
    to[0] *= x.decay[i][0], to[1] *= x.decay[i][1];
  }
}

/// Level kLevel (8, 4, 2, 1) of block s: place p of the 8 columns and 8 rows is token p / L * 2 L + p % L, rows + L.
template <int kLevel, int KD, ChunkEdit kEdit>
__device__ __forceinline__ void write_near_operands(const ChunkColumns<kEdit>& x, int s, int c,
                                                    std::uint16_t (&level)[kLevelRows][KD + 8]) {
#pragma unroll
  for (int pair = 0; pair < 8 / kLevel; ++pair) {
    const int base = pair * 2 * kLevel;
    float to[2] = {1.0f, 1.0f}, from[2] = {1.0f, 1.0f};
#pragma unroll
    for (int j = kLevel - 1; j >= 0; --j) {
      const int i = base + j;
      put_words(level[8 * s + pair * kLevel + j], c, x.key(i, 0) * to[0], x.key(i, 1) * to[1]);
      to[0] *= x.decay[i][0], to[1] *= x.decay[i][1];
    }
#pragma unroll
    for (int j = 0; j < kLevel; ++j) {
      const int i = base + kLevel + j, row = 32 + 16 * s + pair * kLevel + j;
      from[0] *= x.decay[i][0], from[1] *= x.decay[i][1];
      put_words(level[row + 8], c, x.query(i, 0) * from[0], x.query(i, 1) * from[1]);
      if constexpr (kEdit != ChunkEdit::kNone)
        put_words(level[row], c, x.erase(i, 0) * from[0], x.erase(i, 1) * from[1]);
    }
  }
}

/// The blocks on and below the diagonal of the quad's lists to global memory, 8 elements at a time; every list begins
/// at column 0.
template <int KD, class Piece>
__device__ __forceinline__ void store_lower_blocks(const ChunkIntraShared<KD>& shared, std::uint16_t* to, Piece piece) {
  for (int i = static_cast<int>(threadIdx.x); i < kChunkTokens * 8; i += 2 * KD) {
    const int row = i / 8, column = i % 8 * 8, s = row / kBlockTokens, base = shared.block[s].base;
    if (shared.has_rows(s) && column < (s - base + 1) * kBlockTokens)
      store_words(to + row * kChunkTokens + column, piece(row, base * kBlockTokens + column));
  }
}

/// Decay and b of the lists that begin in the quad.
template <int KD>
__device__ __forceinline__ void store_factors(const DeltaChunkArgs& a, int window, int h,
                                              const ChunkIntraShared<KD>& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int s = 0; s < kChunkBlocks; ++s) {
    if (shared.block[s].base != s || !shared.has_rows(s)) continue;
    float* const factors = chunk_factors(a, window, shared.block[s].list, h, KD);
    int end = s + 1;
    while (end < kChunkBlocks && shared.are_joined(s, end)) ++end;
    if (thread < KD) {
      float decay = shared.total[s][thread];
      for (int block = s + 1; block < end; ++block) decay *= shared.total[block][thread];
      factors[thread] = decay;
    }
    if (thread < kChunkTokens)
      factors[KD + thread] = thread < (end - s) * kBlockTokens ? shared.beta[s * kBlockTokens + thread] : 1.0f;
  }
}

template <int KD, ChunkEdit kEdit>
__global__ void __launch_bounds__(2 * KD, KD > 96 ? 2 : 1) delta_chunk_intra_kernel(DeltaChunkArgs a) {
  constexpr int kThreads = 2 * KD, kPairs = KD / 2;
  constexpr bool kHasErase = kEdit != ChunkEdit::kNone;
  auto& shared = *reinterpret_cast<ChunkIntraShared<KD>*>(dynamic_shared());
  const int thread = static_cast<int>(threadIdx.x), h = static_cast<int>(blockIdx.x);
  const int quads = a.blocks_per_window / kChunkBlocks, window = static_cast<int>(blockIdx.y) / quads,
            quad = static_cast<int>(blockIdx.y) % quads;
  const ChunkBlock quad_begin = chunk_block(a, window, quad, 0);
  if (quad_begin.count == 0) return;
  const bool is_listed_quad = a.lists.members && quad < a.lists.routed_quads;
  const ChunkSide& side = is_listed_quad || !a.lists.members ? a.routed : a.shared;
  const int s = thread / kPairs, c = thread % kPairs * 2;
  // Of a row of the quad: its block, and its place in the list.
  const auto row_in_list = [](const ChunkBlock& block, int row) { return row - block.base * kBlockTokens; };
  const auto member_of = [&](const ChunkBlock& block, int row) {
    const ChunkPlace place{block.first, block.count, 0, window};
    return chunk_member(a, place, block.list, row_in_list(block, row));
  };
  ChunkBlock row_block{};
  ChunkMember member{0, 0, 0, 0};
  bool is_token = false;
  if (is_listed_quad) {
    if (thread < kChunkTokens) {
      row_block = chunk_block(a, window, quad, thread / kBlockTokens);
      is_token = row_in_list(row_block, thread) < row_block.count;
      if (is_token) member = member_of(row_block, thread);
      shared.token[thread] = member.token;
    }
    __syncthreads();
  }
  const ChunkBlock own = is_listed_quad ? chunk_block(a, window, quad, s) : quad_begin;
  const int left = own.count - row_in_list(own, s * kBlockTokens);
  const bool is_stored = left > 0, takes_part = kHasErase || is_stored;
  ChunkColumns<kEdit> x{};
  if (is_stored) {
    const auto token = [&](int i) {
      const int row = s * kBlockTokens + (i < left ? i : 0);
      return is_listed_quad ? shared.token[row] : own.first + row;
    };
    load_columns<kEdit>(a, side, token, h, c, x);
  }
  if (thread < kChunkTokens) {
    if (!is_listed_quad) {
      row_block = quad_begin;
      is_token = thread < row_block.count;
      if (is_token) member = member_of(row_block, thread);
    }
    if (thread % kBlockTokens == 0) shared.block[thread / kBlockTokens] = row_block;
    shared.erase_weight[thread] = member.erase_weight;
    shared.key_weight[thread] = member.key_weight;
    shared.query_weight[thread] = member.query_weight * a.scale;
    shared.beta[thread] =
        is_token && side.beta ? side.beta[static_cast<std::int64_t>(member.token) * a.value_heads + h] : 1.0f;
  }
  for (int i = thread; i < kChunkTokens * 8; i += kThreads) store_words(&shared.attend[i / 8][i % 8 * 8], FourWords{});
  finish_columns<kEdit>(a, left, c, x);
  float total[2] = {1.0f, 1.0f};
#pragma unroll
  for (int i = 0; i < kBlockTokens; ++i) {
    total[0] *= x.decay[i][0], total[1] *= x.decay[i][1];
    shared.triangle[s * kBlockTokens + i][c / 2] = x.query(i, 0) * x.key(i, 0) + x.query(i, 1) * x.key(i, 1);
  }
  shared.total[s][c] = total[0], shared.total[s][c + 1] = total[1];
  __syncthreads();

  float part = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) part += shared.triangle[thread % kChunkTokens][thread / kChunkTokens * 16 + i];
  shared.diagonal[thread / kChunkTokens][thread % kChunkTokens] = part;
  store_factors<KD>(a, window, h, shared);
  const ChunkPlace rows{0, 0, window * a.blocks_per_window + quad * kChunkBlocks, window};
  const std::int64_t row = tile_row(a, rows, h);
  if (takes_part) {
    write_far_operands<KD, kEdit>(a, x, s, c, is_stored, row + s * kBlockTokens, shared);
    write_near_operands<8, KD, kEdit>(x, s, c, shared.level[2]);
  }
  __syncthreads();
  multiply_levels<KD, kEdit>(shared, true);
  __syncthreads();
  if (takes_part) {
    write_near_operands<4, KD, kEdit>(x, s, c, shared.level[0]);
    write_near_operands<2, KD, kEdit>(x, s, c, shared.level[1]);
    write_near_operands<1, KD, kEdit>(x, s, c, shared.level[2]);
  }
  __syncthreads();
  multiply_levels<KD, kEdit>(shared, false);
  if (thread < kChunkTokens) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < KD / 32; ++i) sum += shared.diagonal[i][thread];
    const PairWeights weights = query_weights(shared, thread, thread);
    shared.attend[thread][thread] = to_bf16(sum * weights.row * weights.column).bits;
  }
  __syncthreads();
  store_lower_blocks<KD>(shared, a.tiles.attend + row * kChunkTokens,
                         [&](int i, int j) { return load_words(&shared.attend[i][j]); });
  if constexpr (kHasErase) {
    invert_unit_triangle<kThreads / kMatrixLanes>(shared.triangle);
    store_lower_blocks<KD>(shared, a.tiles.solve + row * kChunkTokens, [&](int i, int j) {
      const float* m = &shared.triangle[i][j];
      return FourWords{{pack_bf16(m[0], m[1]), pack_bf16(m[2], m[3]), pack_bf16(m[4], m[5]), pack_bf16(m[6], m[7])}};
    });
  }
}

}  // namespace cairn::gpu
