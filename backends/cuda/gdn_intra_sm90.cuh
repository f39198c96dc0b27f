// gdn_intra: everything of a chunk that does not need the state, for the value heads of one key head.
//   Computes  g = cumulative log2-decay, h_t = max(gamma, g_t - 96);  M = I + strict_lower(beta_t <k_t, k_s>
//             2^(h_t - h_s));  T' = M^-1 diag(2^(h - g) beta);  with scores  A' = scale lower(<q_i, k_j> 2^(g_i - h_j))
//             So T' R = 2^(h - g) U' of spec 2, and M has no gates at all where gamma >= -96
//   Launch    persistent blocks of up to 6 independent warpgroups, 4 with scores; a warpgroup takes every n-th (chunk,
//             key head), in the order of chunks, as the scan wants them; two value heads at a time, each inverted by
//             two warps
//   Traffic   per token: k 4 KB of 16 heads, T' 2.5 KB of 32 value heads; with scores q and A' as well
//   Numerics  KK^T, QK^T bf16 x bf16 -> f32 (exact products); the inverse as in gdn_inverse; T', A' rounded to bf16.
//             Exponents are differences before 2^x; masks are selections; nothing above the diagonal of M is read
//   Measured  (H200, 65,536 tokens, in turns) without scores alone, the chip cool, 118 us: loads and stores by
//             themselves, 3.8 TB/s. Within a batch, the chip warm at 1.4 GHz, the way to shared memory bound it. The
//             inverse in f16 has half of that traffic: predicted 125 us for 150; measured together with gdn_heads, 8 x
//             8,192 tokens, 638 to 665 us for 668 to 677, on other machines 693 to 695 for 711, 694 to 700 for 695 to
//             715. 6 warpgroups in place of 4, predicted nothing: 665 to 690 for 677 to 696 (5: 667 to 689; 3: 696 to
//             713), though alone on a cool chip 5 take 128. With scores 240, the form before 291
//             Beside the scan of 32,768 tokens 2 warpgroups: 560 us together, 3: 575, 4: 590; 1: 538, and 4,096 tokens
//             82.4 where 2 take 84.7
//             M without gates where gamma >= -96: 150 where the form before takes 163 (chip warm)
//   Tried     Late chunks first, so that the cache has what gdn_heads begins with: 698 to 701.
//             Of the form before f16: gates of rows 48 to 63 partly on warps 0 and 1, since K K^T is symmetric, bits
//             and all: 124.1 beside 123.4; with tiles of their own for T', a barrier less: 126.0. K K^T below the
//             diagonal stored once for both heads, its factors on C and the sums, all left operands by ldmatrix, even
//             work for all warps: 680 instructions of a warp an item in place of 1,050, and 147 us where this took 135:
//             more of the shared memory. Keys loaded to leave the cache first: 146. A warp does a whole head (products
//             by mma, inverse in registers, no barriers, 10 warps, half the instructions): right, predicted 0.18 ms,
//             measured 0.53 beside 0.374
//             A warp does its 16 rows of both heads, -M in the registers of the products, tiles of C^T handed on: a
//             quarter less of the shared memory, the same errors against f64; predicted 125 where this takes 150 (chip
//             warm), measured 160 to 180, and alone beside the scan a turn of 2.5 to 6 us for 2. 1,450 instructions of
//             a warp an item for 1,050 (addresses of a row known at run time, selections), or with each row's code
//             written out 62 KB of it, three times as slow
#pragma once

#include "backends/cuda/gdn_inverse_sm90.cuh"
#include "backends/cuda/gdn_scores_sm90.cuh"

namespace cairn::gpu::sm90 {

/// Warpgroups of a block, at most: a launch may take fewer. Scores need the registers of more.
template <bool kScores>
inline constexpr int kIntraGroups = kScores ? 4 : 6;

/// Shared memory of one warpgroup. The queries come to where the matrices will be, a tile to each; the scores to where
/// the keys were.
struct IntraSlab {
  unsigned char k[2 * kTileBytes];
  LowerMatrix matrix[2];
  /// Of two turns, so that warps need not wait for each other between them.
  float g[2][2][kChunk], h[2][2][kChunk], beta[2][2][kChunk], weights[2][2][kChunk];
};
static_assert(sizeof(IntraSlab) % 1024 == 0 && 2 * sizeof(LowerTile) <= 2 * kTileBytes, "room for tiles");
template <bool kScores>
inline constexpr int kIntraSharedBytes = kIntraGroups<kScores> * sizeof(IntraSlab) + 64;
static_assert(kIntraSharedBytes<false> <= 232448, "one block for each multiprocessor");

/// What a warpgroup works on in one turn: two value heads of a (chunk, key head). Kept up from turn to turn, since
/// divisions and arguments at a computed index are slow.
struct IntraItem {
  int at;                               ///< of all (chunk, key head)
  int sequence, chunk, key_head, pair;  ///< pair: its first head of the key head's
  ChunkRows rows;
};
/// Sets the rows of the item's chunk, which is not of a sequence before item.sequence.
__device__ __forceinline__ void find_rows(const GdnPrefillArgs& a, IntraItem& item) {
  while (item.chunk >= a.chunk_begin[item.sequence + 1]) ++item.sequence;
  item.rows = chunk_rows(a, item.sequence, item.chunk);
}

/// How a warpgroup walks the items: its next one lies chunk_step chunks and head_step key heads on.
struct IntraWalk {
  int item_count, step, chunk_step, head_step, heads_per_key;

  __device__ __forceinline__ IntraWalk(const GdnPrefillArgs& a, int step)
      : item_count(a.chunk_begin[a.sequence_count] * a.key_heads),
        step(step),
        chunk_step(step / a.key_heads),
        head_step(step - chunk_step * a.key_heads),
        heads_per_key(a.value_heads / a.key_heads) {}
  __device__ __forceinline__ bool is_last_pair(const IntraItem& item) const { return item.pair + 2 >= heads_per_key; }
  /// Whether there is a next one.
  __device__ __forceinline__ bool advance(const GdnPrefillArgs& a, IntraItem& item) const {
    if (!is_last_pair(item)) {
      item.pair += 2;
      return true;
    }
    item.pair = 0;
    item.at += step, item.chunk += chunk_step, item.key_head += head_step;
    if (item.key_head >= a.key_heads) item.key_head -= a.key_heads, ++item.chunk;
    if (item.at >= item_count) return false;
    find_rows(a, item);
    return true;
  }
};

/// Log-decays and betas of four tokens, 4 (lane / 2) and on, of the pair's head lane % 2: neighbouring heads lie
/// together.
struct IntraGates {
  float decay[4], beta[4];
};
__device__ __forceinline__ IntraGates load_gates(const GdnPrefillArgs& a, const IntraItem& item, int heads_per_key,
                                                 int lane) {
  IntraGates gates = {};
  const int head = item.pair + lane % 2;
  if (head >= heads_per_key) return gates;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = lane / 2 * 4 + i;
    if (t >= item.rows.count) continue;
    const std::int64_t at =
        static_cast<std::int64_t>(item.rows.first + t) * a.value_heads + item.key_head * heads_per_key + head;
    gates.decay[i] = a.log_decay ? a.log_decay[at] : 0.0f;
    gates.beta[i] = a.beta[at];
  }
  return gates;
}

/// Sums the log2-decays of both heads over the 64 tokens. Clamped at -120: 2^-173 is 0 as well.
__device__ __forceinline__ void scan_gates(const IntraGates& gates, float (*g)[kChunk], float (*h)[kChunk],
                                           float (*beta)[kChunk], float (*weights)[kChunk], int lane) {
  float first[2], both[2], sum[2], before[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    first[i] = clamp_decay(gates.decay[2 * i]) * 1.4426950408889634f;
    both[i] = first[i] + clamp_decay(gates.decay[2 * i + 1]) * 1.4426950408889634f;
  }
  const float other = __shfl_up_sync(0xffffffffu, both[1], 2);
  sum[0] = lane < 2 ? both[0] : both[0] + other;
  sum[1] = both[1] + both[0];
#pragma unroll
  for (int distance = 2; distance < 32; distance *= 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float other = __shfl_up_sync(0xffffffffu, sum[i], distance);
      if (lane >= distance) sum[i] += other;
    }
  }
  before[0] = __shfl_up_sync(0xffffffffu, sum[1], 2), before[1] = sum[0];
  if (lane < 2) before[0] = 0;
  const float all[4] = {before[0] + first[0], before[0] + both[0], before[1] + first[1], before[1] + both[1]};
  const float gamma = __shfl_sync(0xffffffffu, all[3], 30 + lane % 2);
  float frames[4], weight[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    frames[i] = frame_of(all[i], gamma);
    weight[i] = gates.beta[i] * exp2_fast(frames[i] - all[i]);
  }
  const int place = gate_place(lane / 2 * 4);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    *reinterpret_cast<float2*>(g[lane % 2] + place + 4 * i) = make_float2(all[2 * i], all[2 * i + 1]);
    *reinterpret_cast<float2*>(h[lane % 2] + place + 4 * i) = make_float2(frames[2 * i], frames[2 * i + 1]);
  }
  *reinterpret_cast<float4*>(beta[lane % 2] + lane / 2 * 4) =
      make_float4(gates.beta[0], gates.beta[1], gates.beta[2], gates.beta[3]);
  *reinterpret_cast<float4*>(weights[lane % 2] + lane / 2 * 4) =
      make_float4(weight[0], weight[1], weight[2], weight[3]);
}

/// From the products of a chunk: the tiles of -M up to the diagonal to shared memory. Thread (warp, lane) owns rows
/// 16 warp + lane / 4 (+ 8) and columns 8 j + 2 (lane % 4) (+ 1), the layout of the products. What comes to lie above
/// the diagonal is never read.
template <bool kOneFrame>
__device__ __forceinline__ void apply_gates(const float (&kk)[32], const float* h, const float* beta,
                                            LowerMatrix& matrix, int warp, int lane) {
  const int row = 16 * warp + lane / 4, column = 2 * (lane % 4);
  const float h0 = h[gate_place(row)], h1 = h[gate_place(row) + 2], beta0 = -beta[row], beta1 = -beta[row + 8];
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    if (block > warp) break;
    const float4 h_both = *reinterpret_cast<const float4*>(h + 16 * block + 2 * column);
    float2 m0[2], m1[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int j = 2 * block + n;
      m0[n] = make_float2(beta0 * kk[4 * j], beta0 * kk[4 * j + 1]);
      m1[n] = make_float2(beta1 * kk[4 * j + 2], beta1 * kk[4 * j + 3]);
      if constexpr (!kOneFrame) {
        const float2 h_s = n ? make_float2(h_both.z, h_both.w) : make_float2(h_both.x, h_both.y);
        m0[n].x *= exp2_fast(h0 - h_s.x), m0[n].y *= exp2_fast(h0 - h_s.y);
        m1[n].x *= exp2_fast(h1 - h_s.x), m1[n].y *= exp2_fast(h1 - h_s.y);
      }
    }
    if (block < warp) {
      const std::uint32_t words[4] = {pack_f16(m0[0].x, m0[0].y), pack_f16(m1[0].x, m1[0].y),
                                      pack_f16(m0[1].x, m0[1].y), pack_f16(m1[1].x, m1[1].y)};
      store_matrices(block_address(matrix.tile, warp, block, lane), words);
    } else {
      float* const strip = matrix.diagonal[warp / 2];
      const int place = strip_place(lane) ^ warp % 2 * 16;
      *reinterpret_cast<float2*>(strip + place) = m0[0];
      *reinterpret_cast<float2*>(strip + (place ^ 8)) = m1[1];
      store_tile_entries(shared_address(matrix.tile.blocks[lower_block(warp, warp)]), 1, 0, lane,
                         pack_f16(m1[0].x, m1[0].y));
    }
  }
}

/// Rows past the end of a sequence belong to its neighbour: not even a zero of ours may meet them.
__device__ __forceinline__ void clear_keys(unsigned char* k, int count, int thread) {
  for (int i = thread; i < (kChunk - count) * 8; i += 128) {
    const int at = (count + i / 8) * 128 + i % 8 * 16;
    *reinterpret_cast<uint4*>(k + at) = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(k + kTileBytes + at) = make_uint4(0, 0, 0, 0);
  }
  fence_engines();
}

/// One of each of a chunk's factors.
template <bool kScores>
__device__ __forceinline__ void store_factors(const GdnPrefillArgs& a, std::int64_t index, const float* g, int place) {
  float* to = a.work.factors + index * (kScores ? 2 : 1) * kChunk + place;
  if constexpr (kScores) {
    const float in = exp2_fast(g[place]);
    to[0] = in;
    to[kChunk] = a.scale * in;
  } else {
    to[0] = g[place];
  }
}

/// K K^T and Q K^T, committed.
template <bool kScores>
__device__ __forceinline__ void multiply_keys(IntraSlab& slab, float (&kk)[32], float (&qk)[32]) {
  const std::uint64_t k = operand(shared_address(slab.k));
  products_begin();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    multiply_64x64(kk, columns(k, i), columns(k, i), i > 0);
    if constexpr (kScores)
      multiply_64x64(qk, further(operand(shared_address(&slab.matrix[i / 4])), i % 4 * 32), columns(k, i), i > 0);
  }
  products_commit();
}

template <bool kScores>
__global__ void __launch_bounds__(128 * kIntraGroups<kScores>, 1)
    gdn_intra_kernel(const __grid_constant__ GdnPrefillArgs a) {
  const int groups = blockDim.x / 128;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int uniform = uniform_warp();
  const int group = uniform / 4, warp = uniform % 4, thread = threadIdx.x % 128, lane = thread % 32;
  IntraSlab& slab = reinterpret_cast<IntraSlab*>(shared)[group];
  const bool is_storing = warp % 2 == 0 && lane == 0;  // of its matrix
  const std::uint32_t full = shared_address(shared + kIntraGroups<kScores> * sizeof(IntraSlab)) + 8 * group;
  const int barrier = 1 + group, mine = warp / 2;
  const IntraWalk walk(a, gridDim.x * groups);
  const int heads_per_key = walk.heads_per_key, begin = blockIdx.x * groups + group;
  let_next_kernel_start();
  if (!a.overlapped && blockIdx.x == 0) {  // for gdn_heads, which waits for the whole of this kernel
    for (int i = threadIdx.x; i <= 2 * a.heads_blocks; i += blockDim.x) a.work.ready[i] = 0;
  }
  if (begin >= walk.item_count) return;
  IntraItem item = {begin, 0, begin / a.key_heads, begin % a.key_heads, 0, {}};
  find_rows(a, item);
  const auto load_keys = [&] {  // by thread 0
    barrier_expect(full, (kScores ? 4 : 2) * kTileBytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_tile(shared_address(slab.k) + i * kTileBytes, &a.k, item.key_head * kDim + 64 * i, item.rows.first, full);
    }
  };
  // Each by the thread that has seen the stores from there. Its bytes may count before thread 0 expects them: the
  // arrival of thread 0 is still to come.
  const auto load_queries = [&] {
    if (kScores && is_storing)
      load_tile(shared_address(&slab.matrix[mine]), &a.q, item.key_head * kDim + 64 * mine, item.rows.first, full);
  };
  if (thread == 0) {
    barrier_init(full, 1);
    fence_barrier_init();
    load_keys();
  }
  warpgroup_barrier(barrier);
  load_queries();

  IntraGates gates = {};  // of warp 0
  if (warp == 0) gates = load_gates(a, item, heads_per_key, lane);
  bool has_next = true;
  for (int parity = 0; has_next; parity ^= 1) {
    const int pair = item.pair, count = min(2, heads_per_key - pair), at = item.at;
    const bool is_last_pair = walk.is_last_pair(item);
    const std::int64_t first =
        static_cast<std::int64_t>(item.chunk) * a.value_heads + item.key_head * heads_per_key + pair;
    const ChunkRows rows = item.rows;
    float(*const g)[kChunk] = slab.g[parity];
    float(*const h)[kChunk] = slab.h[parity];
    float(*const beta)[kChunk] = slab.beta[parity];
    float(*const weights)[kChunk] = slab.weights[parity];
    if (warp == 0) scan_gates(gates, g, h, beta, weights, lane);
    barrier_wait(full, parity);
    if (rows.count < kChunk) {
      clear_keys(slab.k, rows.count, thread);
      warpgroup_barrier(barrier);
    }
    float kk[32], qk[32];
    multiply_keys<kScores>(slab, kk, qk);
    has_next = walk.advance(a, item);
    if (has_next && warp == 0) gates = load_gates(a, item, heads_per_key, lane);
    products_wait<0>();
    pin(kk);
    if constexpr (kScores) pin(qk);
    if (!kScores && is_storing) stores_wait_read<0>();  // of the last turn
    warpgroup_barrier(barrier);
    if (!kScores && thread == 0 && has_next) load_keys();

    if constexpr (kScores) {
      LowerTile* const scores = reinterpret_cast<LowerTile*>(slab.k);
      std::uint32_t mask[4];
      diagonal_mask(mask, lane);
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        store_scores(qk, g[i], h[i], a.log2_scale, mask, warp, lane,
                     [&](int block) { return block_address(scores[i], warp, block, lane); });
      }
      fence_engines();
    }
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if (has_one_frame(g[i][kChunk - 1])) {
        apply_gates<true>(kk, h[i], beta[i], slab.matrix[i], warp, lane);
      } else {
        apply_gates<false>(kk, h[i], beta[i], slab.matrix[i], warp, lane);
      }
    }
    warpgroup_barrier(barrier);
    if (kScores && thread == 0) {
      store_bytes(a.work.scores + first, shared_address(slab.k), count * sizeof(LowerTile));
      stores_commit();
    }
    Inverter(slab.matrix[mine], warp, lane).run(weights[mine], barrier);  // of a single head the other half for nothing
    if (mine < count) {
      if (is_storing) {
        store_bytes(a.work.inverses + first + mine, shared_address(&slab.matrix[mine]), sizeof(LowerTile));
        stores_commit();
      }
      store_factors<kScores>(a, first + mine, g[mine], thread % 64);
    }
    if (kScores && is_storing && has_next) {
      stores_wait_read<0>();
      if (warp == 0) load_keys();
      load_queries();
    }
    if (a.overlapped && is_last_pair) {
      if (is_storing) stores_wait<0>();
      warpgroup_barrier(barrier);
      if (thread == 0) publish(a.work.ready + at, 1);
    }
  }
  if (is_storing) stores_wait<0>();
}

}  // namespace cairn::gpu::sm90
