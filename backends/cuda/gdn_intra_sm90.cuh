// gdn_intra: everything of a chunk that does not need the state, for the value heads of one key head.
//   Computes  M = I + strict_lower(beta_t <k_t, k_s> 2^(g_t - g_s));  T' = M^-1 diag(beta);
//             A' = scale lower(<q_i, k_j> 2^(g_i - g_j));  g = cumulative log2-decay          (spec 2)
//   Launch    persistent blocks of 3 independent warpgroups; a warpgroup takes every n-th (chunk, key head), chunk-major,
//             so that chunks come out in the order in which the scan wants them
//   Traffic   per token: q, k 8 KB for 16 heads; T', A' 6 KB for 32 value heads, by the copy engine
//   Numerics  KK^T, QK^T bf16 x bf16 -> f32 (exact products); the inverse as gdn_inverse has it; T', A' rounded to bf16.
//             Exponents are differences before 2^x; masks are selections; nothing above the diagonal of M is read
//   Measured  (H200, 65,536 tokens, one run) 315 us (322 with A' as whole tiles); 467 with A' by stores of 4 bytes and a
//             barrier of the warpgroup for each step of the inverse. Cycles of an item, without A' and with 4
//             warpgroups: 2,600 the diagonal blocks, 1,750 their merges, 1,400 the gates, 1,850 products and waiting for them
//   Tried     without Q and A', 4 warpgroups: predicted 190 us, measured 190; but whoever forms A' then pays as much
//             (gdn_heads). With A' and 4 warpgroups: 423, why is not known (60 bytes of registers spilled).
//             A warp does a whole head (products by mma, inverse in registers, no barriers, 10 warps, half the
//             instructions): right, predicted 0.18 ms, measured 0.53 beside 0.374
#pragma once

#include "backends/cuda/gdn_inverse_sm90.cuh"

namespace cairn::gpu::sm90 {

inline constexpr int kIntraGroups = 3;

/// Shared memory of one warpgroup. The queries come to where the first matrix will be, the scores to where the keys
/// were.
struct IntraSlab {
  unsigned char k[2 * kTileBytes];
  float matrix[2][kChunk * kMatrixStride];
  float g[2][4][kChunk], beta[2][4][kChunk];  ///< of two items, so that warps need not wait for each other between them
};
static_assert(sizeof(IntraSlab) % 1024 == 0 && sizeof(float[kChunk * kMatrixStride]) >= 2 * kTileBytes,
              "room for tiles");
inline constexpr int kIntraSharedBytes = kIntraGroups * sizeof(IntraSlab) + 64;
static_assert(kIntraSharedBytes <= 232448, "one block for each multiprocessor");

/// What a warpgroup works on in one turn; read once, since arguments at a computed index are slow to read.
struct IntraItem {
  int sequence, chunk, key_head;
  ChunkRows rows;
};
/// Of a sequence not before `sequence`.
__device__ __forceinline__ IntraItem intra_item(const GdnPrefillArgs& a, int item, int sequence) {
  const int chunk = item / a.key_heads;
  while (chunk >= a.chunk_begin[sequence + 1]) ++sequence;
  return {sequence, chunk, item - chunk * a.key_heads, chunk_rows(a, sequence, chunk)};
}

__device__ __forceinline__ void load_keys_and_queries(const GdnPrefillArgs& a, IntraSlab& slab, const IntraItem& item,
                                                      std::uint32_t barrier) {
  const int column = item.key_head * kDim, row = item.rows.first;
  barrier_expect(barrier, 4 * kTileBytes);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    load_tile(shared_address(slab.k) + i * kTileBytes, &a.k, column + i * 64, row, barrier);
    load_tile(shared_address(slab.matrix[0]) + i * kTileBytes, &a.q, column + i * 64, row, barrier);
  }
}

__device__ __forceinline__ GatePair load_gates(const GdnPrefillArgs& a, const IntraItem& item, int warp, int lane) {
  GatePair gates = {};
  const int heads_per_key = a.value_heads / a.key_heads;
  if (warp >= heads_per_key) return gates;
  const ChunkRows rows = item.rows;
  const int head = item.key_head * heads_per_key + warp;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    if (t >= rows.count) continue;
    const std::int64_t at = static_cast<std::int64_t>(rows.first + t) * a.value_heads + head;
    gates.decay[i] = a.log_decay ? a.log_decay[at] : 0.0f;
    gates.beta[i] = a.beta[at];
  }
  return gates;
}

/// Sums the log2-decays of the warp's head over its 64 tokens. Clamped at -120: 2^-173 is 0 as well.
__device__ __forceinline__ void scan_gates(const GatePair& gates, float (*g)[kChunk], float (*beta)[kChunk],
                                           int head_count, int warp, int lane) {
  if (warp >= head_count) return;
  const float first = fmaxf(gates.decay[0], -120.0f) * 1.4426950408889634f;
  const float both = first + fmaxf(gates.decay[1], -120.0f) * 1.4426950408889634f;
  float sum = both;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, sum, distance);
    if (lane >= distance) sum += other;
  }
  float before = __shfl_up_sync(0xffffffffu, sum, 1);
  if (lane == 0) before = 0;
  *reinterpret_cast<float2*>(g[warp] + 2 * lane) = make_float2(before + first, before + both);
  *reinterpret_cast<float2*>(beta[warp] + 2 * lane) = make_float2(gates.beta[0], gates.beta[1]);
}

/// From the products of a chunk: the blocks of M up to the diagonal to shared memory. Thread (warp, lane) owns rows
/// 16 warp + lane / 4 (+ 8) and columns 8 j + 2 (lane % 4) (+ 1), the layout of the products. What comes to lie above
/// the diagonal is never read.
__device__ __forceinline__ void apply_gates(const float (&kk)[32], const float* g, const float* beta, float* matrix,
                                            int warp, int lane) {
  const int row = 16 * warp + lane / 4, column = 2 * (lane % 4);
  const float g0 = g[row], g1 = g[row + 8], beta0 = beta[row], beta1 = beta[row + 8];
  float2 g_s[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) g_s[j] = *reinterpret_cast<const float2*>(g + 8 * j + column);
  float* to = matrix + row * kMatrixStride + column;
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    if (block > warp) break;
#pragma unroll
    for (int j = 2 * block; j < 2 * block + 2; ++j) {
      const float2 upper =
          make_float2(beta0 * kk[4 * j] * exp2_fast(g0 - g_s[j].x), beta0 * kk[4 * j + 1] * exp2_fast(g0 - g_s[j].y));
      const float2 lower = make_float2(beta1 * kk[4 * j + 2] * exp2_fast(g1 - g_s[j].x),
                                       beta1 * kk[4 * j + 3] * exp2_fast(g1 - g_s[j].y));
      *reinterpret_cast<float2*>(to + 8 * j) = upper;
      *reinterpret_cast<float2*>(to + 8 * j + 8 * kMatrixStride) = lower;
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

/// A' = scale lower(Q K^T 2^(g_i - g_j)) of one head to the tile `to`. A thread has rows 16 warp + lane / 4 (+ 8) of Q
/// K^T. The mask is a selection, so that rows past the end do not count.
__device__ __forceinline__ void store_scores(const float (&qk)[32], const float* g, float scale, const LowerTile& to,
                                             int warp, int lane) {
  const float g0 = g[16 * warp + lane / 4], g1 = g[16 * warp + lane / 4 + 8];
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    if (block >= 2 && warp < 2) break;  // the tile does not have that quarter
    std::uint32_t words[4] = {};
    if (block <= warp) {
      const int before = block < warp ? 16 : lane / 4 - 2 * (lane % 4);  // of the block's column s, row r: s <= r
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* of = qk + 8 * block + 4 * n;
        const float2 g_s = *reinterpret_cast<const float2*>(g + 16 * block + 8 * n + 2 * (lane % 4));
        const float a0 = scale * of[0] * exp2_fast(g0 - g_s.x), a1 = scale * of[1] * exp2_fast(g0 - g_s.y);
        const float a2 = scale * of[2] * exp2_fast(g1 - g_s.x), a3 = scale * of[3] * exp2_fast(g1 - g_s.y);
        const int row0 = before - 8 * n, row1 = row0 + 8;
        words[2 * n] = pack_bf16(row0 >= 0 ? a0 : 0.0f, row0 >= 1 ? a1 : 0.0f);
        words[2 * n + 1] = pack_bf16(row1 >= 0 ? a2 : 0.0f, row1 >= 1 ? a3 : 0.0f);
      }
    }
    store_matrices(block_address(to, warp, block, lane), words);
  }
}

__global__ void __launch_bounds__(128 * kIntraGroups, 1) gdn_intra_kernel(const __grid_constant__ GdnPrefillArgs a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int uniform = uniform_warp();
  const int group = uniform / 4, warp = uniform % 4, thread = threadIdx.x % 128, lane = thread % 32;
  IntraSlab& slab = reinterpret_cast<IntraSlab*>(shared)[group];
  const bool is_storing = warp % 2 == 0 && lane == 0;  // of its matrix
  const std::uint32_t full = shared_address(shared + kIntraGroups * sizeof(IntraSlab)) + 8 * group;
  const int barrier = 1 + group, mine = warp / 2, pair_barrier = 1 + kIntraGroups + 2 * group + mine;
  const int heads_per_key = a.value_heads / a.key_heads;
  const int item_count = a.chunk_begin[a.sequence_count] * a.key_heads, step = gridDim.x * kIntraGroups;
  let_next_kernel_start();
  int at = blockIdx.x * kIntraGroups + group;
  IntraItem item = {};
  if (at < item_count) item = intra_item(a, at, 0);
  if (thread == 0) {
    barrier_init(full, 1);
    fence_barrier_init();
    if (at < item_count) load_keys_and_queries(a, slab, item, full);
  }
  __syncthreads();

  GatePair gates = {};
  if (at < item_count) gates = load_gates(a, item, warp, lane);
  for (int parity = 0; at < item_count; at += step, parity ^= 1) {
    const std::int64_t first = static_cast<std::int64_t>(item.chunk) * a.value_heads + item.key_head * heads_per_key;
    const ChunkRows rows = item.rows;
    const bool has_next = at + step < item_count;
    float(*const g)[kChunk] = slab.g[parity];
    float(*const beta)[kChunk] = slab.beta[parity];
    scan_gates(gates, g, beta, heads_per_key, warp, lane);
    barrier_wait(full, parity);
    if (rows.count < kChunk) {
      clear_keys(slab.k, rows.count, thread);
      warpgroup_barrier(barrier);
    }
    float kk[32], qk[32];
    const std::uint64_t k = operand(shared_address(slab.k)), q = operand(shared_address(slab.matrix[0]));
    products_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      multiply_64x64(kk, columns(k, i), columns(k, i), i > 0);
      multiply_64x64(qk, columns(q, i), columns(k, i), i > 0);
    }
    products_commit();
    if (has_next) {
      item = intra_item(a, at + step, item.sequence);
      gates = load_gates(a, item, warp, lane);
    }
    products_wait<0>();
    pin(kk), pin(qk);
    if (is_storing) stores_wait_read<0>();  // of the last item
    warpgroup_barrier(barrier);

    LowerTile* const scores = reinterpret_cast<LowerTile*>(slab.k);
    const auto send_scores = [&](int head, int count) {
      if (thread != 0) return;
      store_bytes(a.work.scores + first + head, shared_address(scores), count * sizeof(LowerTile));
      stores_commit();
    };
    for (int head = 2; head < heads_per_key; ++head) {  // of more than two heads the others first, one by one
      store_scores(qk, g[head], a.scale, *scores, warp, lane);
      fence_engines();
      warpgroup_barrier(barrier);
      send_scores(head, 1);
      if (thread == 0) stores_wait_read<0>();
      warpgroup_barrier(barrier);
    }
#pragma unroll 1
    for (int i = 0; i < min(2, heads_per_key); ++i) {
      store_scores(qk, g[i], a.scale, scores[i], warp, lane);
    }
    fence_engines();

    for (int pair = 0; pair < heads_per_key; pair += 2) {
      const int count = min(2, heads_per_key - pair), head = pair + mine;
      if (pair > 0) {
        if (is_storing) stores_wait_read<0>();
        warpgroup_barrier(barrier);
      }
#pragma unroll 1
      for (int i = 0; i < count; ++i) apply_gates(kk, g[pair + i], beta[pair + i], slab.matrix[i], warp, lane);
      warpgroup_barrier(barrier);
      if (pair == 0) send_scores(0, count);
      if (mine < count) {
        Inverter{slab.matrix[mine], warp % 2, lane}.run(beta[head], pair_barrier);
        if (is_storing) {
          store_bytes(a.work.inverses + first + head, shared_address(slab.matrix[mine]), sizeof(LowerTile));
          stores_commit();
        }
        const float g_t = g[head][thread % 64], last = g[head][kChunk - 1];
        float* factors = a.work.factors + (first + head) * 3 * kChunk + thread % 64;
        factors[0] = g_t;
        factors[kChunk] = exp2_fast(g_t);
        factors[2 * kChunk] = exp2_fast(last - g_t);
      }
    }
    if (thread == 0 && has_next) {
      stores_wait_read<0>();
      load_keys_and_queries(a, slab, item, full);
    }
    if (a.overlapped) {
      if (is_storing) stores_wait<0>();
      warpgroup_barrier(barrier);
      if (thread == 0) publish(a.work.ready + at, 1);
    }
  }
  if (is_storing) stores_wait<0>();
}

}  // namespace cairn::gpu::sm90
