// sparse_gdn_intra: stage 1 of SparseGDN, everything of a chunk that needs neither the state nor the queries.
//   Computes  the 7 kept blocks of M^-1, T' = diag(2^e) M^-1 diag(beta) with e = max(gamma - g, -96); cumulative
//             decays; the tail score, the norm of U's last 16 rows = M^-1[48..63, 32..63] (beta V)[32..63] (spec 3.1)
//   Launch    persistent blocks of one warpgroup; a block takes every n-th (chunk, key head). Warp w owns block row w:
//             its part of K K^T comes out of the product in its own registers
//   Traffic   per token: k 4 KB, half of v 4 KB, T' twice 1.8 KB for 16 key and 32 value heads
//   Numerics  K K^T bf16 x bf16 -> f32 (exact products). Diagonal blocks solved in f32; the adjacent blocks by products
//             of tf32 pairs (21 bits); scores from T' without 2^e as pairs of bf16 (16 bits) and exact V, sums f32:
//             masks follow the scores. T' is rounded to bf16 only when stored
//   Measured  (H200, 131,072 tokens) 377 us with one copy of T' beside 398 for the form before; 412 with both copies.
//             Loads and K K^T alone take 293 (3.7 TB/s), each stage after them 80 more. What the stages share is the
//             way to shared memory, by count 2,300 of 2,900 cycles an item. So: the two heads' blocks in different
//             banks, tails of one head a warp, no tests for short chunks (their keys are cleared)
//   Tried     5 blocks a multiprocessor (96 registers) 394 to 436, 6 with values in the place of keys 432, 7 slower
//             still; 4 warpgroups in one block 533, in step with each other 552. Tails split into bf16 by the one warp
//             that has them 446. Gates summed while K K^T is multiplied: the same. Gates loaded by all warps: 4 us
//             less, but other bits. Loads that make way in the L2 cache: 476 for 442
#pragma once

#include "backends/cuda/sparse_gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90::sparse {

inline constexpr int kIntraBlocksPerProcessor = 4, kBlockStride = 20, kTailStride = 40, kHalfTileBytes = 32 * 128;

/// Diagonal blocks of M of one head, then of its inverse.
struct IntraBlocks {
  float of[4][16 * kBlockStride];
  float unused[16];  ///< the other head's lie in other banks: half a warp inverts each
};

struct IntraShared {
  unsigned char k[2 * kTileBytes];
  unsigned char v[2][2 * kHalfTileBytes];  ///< of two heads: tokens 32 to 63
  IntraBlocks blocks[2];
  float tail[2][16 * kTailStride];  ///< T'[48..63, 32..63]
  float g[kMaxHeadsPerKey][kChunk], beta[kMaxHeadsPerKey][kChunk];
  float squares[2][4];
  std::uint64_t k_full, v_full;
};

/// What a block works on in one turn.
struct IntraItem {
  int chunk, key_head, sequence;
  ChunkRows rows;
};
/// `chunks` and `heads` on, at most one key head's turn: no division, and the sequence is not before the last one.
__device__ __forceinline__ IntraItem item_after(const SparsePrefillArgs& a, IntraItem item, int chunks, int heads) {
  item.chunk += chunks, item.key_head += heads;
  if (item.key_head >= a.key_heads) item.key_head -= a.key_heads, ++item.chunk;
  while (item.chunk >= a.select.chunk_begin[item.sequence + 1]) ++item.sequence;
  item.rows = chunk_rows(a, item.sequence, item.chunk);
  return item;
}

__device__ __forceinline__ void load_keys(const SparsePrefillArgs& a, IntraShared& shared, const IntraItem& item) {
  const std::uint32_t barrier = shared_address(&shared.k_full);
  barrier_expect(barrier, 2 * kTileBytes);
#pragma unroll
  for (int i = 0; i < 2; ++i)
    load_tile(shared_address(shared.k) + i * kTileBytes, &a.k, item.key_head * kDim + 64 * i, item.rows.first, barrier);
}
/// Values of up to two heads of a key head from `pair` on, of the chunk whose first token is `row`.
__device__ __forceinline__ void load_tail(const SparsePrefillArgs& a, IntraShared& shared, int key_head, int row,
                                          int pair) {
  const std::uint32_t barrier = shared_address(&shared.v_full), to = shared_address(shared.v[0]);
  const int count = min(2, a.per_group() - pair), column = (key_head * a.per_group() + pair) * kDim;
  barrier_expect(barrier, count * 2 * kHalfTileBytes);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < 2 * count) load_tile(to + i * kHalfTileBytes, &a.v_tail, column + 64 * i, row + 32, barrier);
  }
}

/// Log-decays and betas of two tokens of one value head: warp w of a group has head w of the key head's (at most 4).
struct GatePair {
  float decay[2], beta[2];
};

__device__ __forceinline__ GatePair load_gates(const SparsePrefillArgs& a, const IntraItem& item, int warp, int lane) {
  GatePair gates = {};
  if (warp >= a.per_group()) return gates;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    if (t >= item.rows.count) continue;
    const std::int64_t at =
        static_cast<std::int64_t>(item.rows.first + t) * a.value_heads + item.key_head * a.per_group() + warp;
    gates.decay[i] = a.log_decay ? a.log_decay[at] : 0.0f;
    gates.beta[i] = a.beta[at];
  }
  return gates;
}

/// Sums the log2-decays of the warp's head, clamped at -120 a token: 2^-173 is 0 as well. The selector gets the sum as
/// it is.
__device__ __forceinline__ void scan_gates(const SparsePrefillArgs& a, const GatePair& gates, IntraShared& shared,
                                           const IntraItem& item, int warp, int lane) {
  if (warp >= a.per_group()) return;
  constexpr float kLog2E = 1.4426950408889634f;
  const float first = clamp_decay(gates.decay[0]) * kLog2E, both = first + clamp_decay(gates.decay[1]) * kLog2E;
  float sum = both, whole = (gates.decay[0] + gates.decay[1]) * kLog2E;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, sum, distance),
                more = __shfl_xor_sync(0xffffffffu, whole, distance);
    if (lane >= distance) sum += other;
    whole += more;
  }
  float before = __shfl_up_sync(0xffffffffu, sum, 1);
  if (lane == 0) before = 0;
  const float2 g = make_float2(before + first, before + both);
  const std::int64_t cell =
      static_cast<std::int64_t>(item.chunk) * a.value_heads + item.key_head * a.per_group() + warp;
  *reinterpret_cast<float2*>(shared.g[warp] + 2 * lane) = g;
  *reinterpret_cast<float2*>(shared.beta[warp] + 2 * lane) = make_float2(gates.beta[0], gates.beta[1]);
  *reinterpret_cast<float2*>(a.work.decay + cell * kChunk + 2 * lane) = g;
  if (lane == 0) a.select.s.gamma[cell] = whole;
}

// Blocks of 16 x 16 in registers: element 4 n + 2 r + e of a lane is row lane / 4 + 8 r, column 8 n + 2 (lane % 4) + e.

/// The warp's two blocks of K K^T: the diagonal one and the one left of it (of warp 0 anything).
__device__ __forceinline__ void take_blocks(const float (&kk)[32], int warp, float (&own)[8], float (&left)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float even = warp < 2 ? kk[i] : kk[16 + i], odd = warp < 2 ? kk[8 + i] : kk[24 + i];
    own[i] = warp % 2 ? odd : even;
    left[i] = warp % 2 ? even : kk[8 + i];
  }
}

/// M of one head: its diagonal block to shared memory, the one left of it in registers. Keys past the end are zeros.
__device__ __forceinline__ void apply_gates(const float (&own)[8], const float (&left)[8], const float* g,
                                            const float* beta, float* block, float (&below)[8], int warp, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r, t = 16 * warp + row;
    const float g_t = g[t], beta_t = beta[t];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int column = 8 * n + 2 * (lane % 4), s = 16 * warp + column;
      float2 m = make_float2(0, 0);
      if (n <= r) {
        const float2 g_s = *reinterpret_cast<const float2*>(g + s);
        const float first = beta_t * own[4 * n + 2 * r] * exp2_fast(fminf(g_t - g_s.x, 0.0f)),
                    second = beta_t * own[4 * n + 2 * r + 1] * exp2_fast(fminf(g_t - g_s.y, 0.0f));
        m.x = n < r || column < row ? first : 0.0f;
        m.y = n < r || column + 1 < row ? second : 0.0f;
      }
      *reinterpret_cast<float2*>(block + row * kBlockStride + column) = m;
      // Of warp 0 for nothing.
      const float2 g_s = *reinterpret_cast<const float2*>(g + max(s - 16, 0));
      below[4 * n + 2 * r] = beta_t * left[4 * n + 2 * r] * exp2_fast(fminf(g_t - g_s.x, 0.0f));
      below[4 * n + 2 * r + 1] = beta_t * left[4 * n + 2 * r + 1] * exp2_fast(fminf(g_t - g_s.y, 0.0f));
    }
  }
}

/// Inverts a unit lower triangular block in place: 16 lanes, one a column.
__device__ __forceinline__ void invert_block(float* block, int column) {
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 m = *reinterpret_cast<const float4*>(block + i * kBlockStride + j);
      sum -= m.x * x[j];
      if (j + 1 < i) sum -= m.y * x[j + 1];
      if (j + 2 < i) sum -= m.z * x[j + 2];
      if (j + 3 < i) sum -= m.w * x[j + 3];
    }
    x[i] = sum;
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16; ++i) block[i * kBlockStride + column] = x[i];
}

/// A block as two tf32 parts of 11 bits each.
struct SplitBlock {
  std::uint32_t high[8], low[8];
};
__device__ __forceinline__ SplitBlock split(const float (&x)[8]) {
  SplitBlock s;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    s.high[i] = __float_as_uint(x[i]) & 0xFFFFE000u;
    s.low[i] = __float_as_uint(x[i] - __uint_as_float(s.high[i]));
  }
  return s;
}

/// d = a b with b given as its transpose. The summed index is permuted alike on both sides: lane % 4 stands for column
/// 2 (lane % 4), and lane % 4 + 4 for the one after it.
__device__ __forceinline__ void multiply_blocks(float (&d)[8], const SplitBlock& a, const SplitBlock& b) {
  float sums[2][4] = {};
#pragma unroll
  for (int part = 0; part < 3; ++part) {  // low high, high low, high high: small first
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const std::uint32_t* x = (part == 0 ? a.low : a.high) + 4 * step;
      const std::uint32_t left[4] = {x[0], x[2], x[1], x[3]};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const std::uint32_t* y = (part == 1 ? b.low : b.high) + 4 * step + 2 * n;
        const std::uint32_t right[2] = {y[0], y[1]};
        multiply_16x8_tf32(sums[n], left, right);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) d[n] = sums[n / 4][n % 4];
}

__device__ __forceinline__ void load_block(const float* block, int lane, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = *reinterpret_cast<const float2*>(block + (lane / 4 + 8 * (i % 2)) * kBlockStride + 8 * (i / 2) +
                                                         2 * (lane % 4));
    x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
  }
}
__device__ __forceinline__ void load_transposed_block(const float* block, int lane, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
    x[i] = block[(8 * (i / 4) + 2 * (lane % 4) + i % 2) * kBlockStride + lane / 4 + 8 * (i / 2 % 2)];
}

/// x *= sign beta of its columns.
__device__ __forceinline__ void apply_beta(float (&x)[8], float sign, const float* beta, int lane) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float2 b = *reinterpret_cast<const float2*>(beta + 8 * n + 2 * (lane % 4));
    const float first = sign * b.x, second = sign * b.y;
    x[4 * n] *= first, x[4 * n + 1] *= second, x[4 * n + 2] *= first, x[4 * n + 3] *= second;
  }
}
/// Rows times their weights, as words of a left operand.
__device__ __forceinline__ void weigh_block(const float (&x)[8], const float (&weight)[2], std::uint32_t (&words)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = pack_bf16(weight[i % 2] * x[2 * i], weight[i % 2] * x[2 * i + 1]);
}
__device__ __forceinline__ void keep_tail(const float (&x)[8], float* tail, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<float2*>(tail + (lane / 4 + 8 * (i % 2)) * kTailStride + 8 * (i / 2) + 2 * (lane % 4)) =
        make_float2(x[2 * i], x[2 * i + 1]);
  }
}

/// Block row `warp` of T' of a head: the diagonal block, and C_{i,i-1} = -C_ii (M_{i,i-1} C_{i-1,i-1}) left of it. Its
/// last 16 rows go to `tail` without their weights.
__device__ __forceinline__ void form_block_row(const InverseLines& lines, int head, const IntraBlocks& blocks,
                                               const float* g, const float* beta, const float (&below)[8], float* tail,
                                               int warp, int lane) {
  float weight[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float g_r = g[16 * warp + lane / 4 + 8 * r];
    weight[r] = exp2_fast(frame_of(g_r, g[kChunk - 1]) - g_r);
  }
  float own[8];
  std::uint32_t words[4];
  load_block(blocks.of[warp], lane, own);
  if (warp > 0) {
    float x[8];
    load_transposed_block(blocks.of[warp - 1], lane, x);
    multiply_blocks(x, split(x), split(below));  // (M C)^T = C^T M^T
    multiply_blocks(x, split(own), split(x));
    apply_beta(x, -1, beta + 16 * (warp - 1), lane);
    weigh_block(x, weight, words);
    const std::uint32_t place = lines.place(head, warp - 1, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) lines.store(place, InverseBlocks::left_line(n), words[n]);
    if (warp == 3) keep_tail(x, tail, lane);
  }
  apply_beta(own, 1, beta + 16 * warp, lane);
  weigh_block(own, weight, words);
  words[2] = 0;
  const std::uint32_t place = lines.place(head, warp, lane);
#pragma unroll
  for (int n = 0; n < 4; ++n) lines.store(place, InverseBlocks::own_line(warp, n), words[n]);
  if (warp == 3) keep_tail(own, tail + 16, lane);
}

/// Of head warp / 2 of a pair: sums of the squares of U's last 16 rows over 32 of this warp's 64 columns for each half
/// of its lanes. T' as a pair of bf16.
__device__ __forceinline__ float square_tail(const IntraShared& shared, int warp, int lane) {
  const int h = warp / 2;
  float u[8][4] = {};
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    std::uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = *reinterpret_cast<const float2*>(shared.tail[h] + (lane / 4 + 8 * (i % 2)) * kTailStride +
                                                        16 * step + 8 * (i / 2) + 2 * (lane % 4));
      high[i] = pack_bf16(x.x, x.y);
      low[i] = pack_bf16(x.x - low_bf16(high[i]), x.y - high_bf16(high[i]));
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      std::uint32_t values[4];
      load_transposed(values, shared_address(shared.v[h]) + warp % 2 * kHalfTileBytes +
                                  swizzled(16 * step + lane % 16, 2 * n + lane / 16));
      multiply_16x8(u[2 * n], low, values[0], values[1]);
      multiply_16x8(u[2 * n + 1], low, values[2], values[3]);
      multiply_16x8(u[2 * n], high, values[0], values[1]);
      multiply_16x8(u[2 * n + 1], high, values[2], values[3]);
    }
  }
  float sums[2] = {};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n / 4] += u[n][i] * u[n][i];
  }
  const bool is_lower = lane < 16;
  float sum = (is_lower ? sums[0] : sums[1]) + __shfl_xor_sync(0xffffffffu, is_lower ? sums[1] : sums[0], 16);
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  return sum;
}

/// Rows of tokens past the sequence's end: keys, or values of tokens 32 to 63. `rows` of a tile, the first ones good.
__device__ __forceinline__ void clear_tokens(unsigned char* tiles, int bytes, int rows, int good, int thread) {
#pragma unroll 1
  for (int i = 16 * thread; i < bytes; i += 16 * 128) {
    if (i / 128 % rows >= good) *reinterpret_cast<uint4*>(tiles + i) = make_uint4(0, 0, 0, 0);
  }
  fence_engines();
}

__global__ void __launch_bounds__(128, kIntraBlocksPerProcessor)
    sparse_intra_kernel(const __grid_constant__ SparsePrefillArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  IntraShared& shared = *reinterpret_cast<IntraShared*>(memory);
  const int thread = threadIdx.x, warp = uniform_warp(), lane = thread % 32, per = a.per_group();
  const int item_count = a.select.chunk_begin[a.select.sequence_count] * a.key_heads, step = gridDim.x;
  const int step_chunks = step / a.key_heads, step_heads = step % a.key_heads;
  int at = blockIdx.x;
  if (at >= item_count) return;
  IntraItem item = item_after(a, {}, at / a.key_heads, at % a.key_heads);
  if (thread == 0) {
    barrier_init(shared_address(&shared.k_full), 1);
    barrier_init(shared_address(&shared.v_full), 1);
    fence_barrier_init();
    load_keys(a, shared, item);
    load_tail(a, shared, item.key_head, item.rows.first, 0);
  }
  __syncthreads();
  GatePair gates = load_gates(a, item, warp, lane);
  int k_parity = 0, v_parity = 0;
  for (; at < item_count; at += step) {
    const bool has_next = at + step < item_count;
    scan_gates(a, gates, shared, item, warp, lane);
    float kk[32];
    const std::uint64_t keys = operand(shared_address(shared.k));
    barrier_wait(shared_address(&shared.k_full), k_parity);
    k_parity ^= 1;
    if (item.rows.count < kChunk) {
      clear_tokens(shared.k, 2 * kTileBytes, kChunk, item.rows.count, thread);
      __syncthreads();
    }
    products_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i) multiply_64x64(kk, columns(keys, i), columns(keys, i), i > 0);
    products_commit();
    IntraItem next = item;
    if (has_next) {
      next = item_after(a, item, step_chunks, step_heads);
      gates = load_gates(a, next, warp, lane);
    }
    products_wait<0>();
    pin(kk);
    __syncthreads();  // the keys have been read; gates are seen
    if (warp == 2 && lane == 0 && has_next) load_keys(a, shared, next);
    float own[8], left[8];
    take_blocks(kk, warp, own, left);
    const InverseLines lines = inverse_lines(a, item.sequence, item.rows, item.key_head * per);
#pragma unroll 1
    for (int pair = 0; pair < per; pair += 2) {
      const int count = min(2, per - pair);
      const std::int64_t cell = static_cast<std::int64_t>(item.chunk) * a.value_heads + item.key_head * per + pair;
      float below[2][8];
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // where there is one head, twice the same
        const int head = pair + min(i, count - 1);
        apply_gates(own, left, shared.g[head], shared.beta[head], shared.blocks[i].of[warp], below[i], warp, lane);
      }
      __syncwarp();
      invert_block(shared.blocks[lane / 16].of[warp], lane % 16);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (i < count)
          form_block_row(lines, pair + i, shared.blocks[i], shared.g[pair + i], shared.beta[pair + i], below[i],
                         shared.tail[i], warp, lane);
      }
      barrier_wait(shared_address(&shared.v_full), v_parity);
      v_parity ^= 1;
      if (item.rows.count < kChunk) clear_tokens(shared.v[0], 4 * kHalfTileBytes, 32, item.rows.count - 32, thread);
      __syncthreads();
      const float sum = square_tail(shared, warp, lane);  // where there is one head, the second for nothing
      if (lane % 16 == 0) shared.squares[warp / 2][warp % 2 * 2 + lane / 16] = sum;
      __syncthreads();
      const bool has_more = pair + 2 < per;
      if (warp == 3 && lane == 0 && (has_more || has_next)) {
        load_tail(a, shared, has_more ? item.key_head : next.key_head, has_more ? item.rows.first : next.rows.first,
                  has_more ? pair + 2 : 0);
      }
      if (thread < count) {
        const float* squares = shared.squares[thread];
        a.select.s.scores[cell + thread] = sqrtf(squares[0] + squares[1] + squares[2] + squares[3]);
      }
    }
    item = next;
  }
}

}  // namespace cairn::gpu::sm90::sparse
