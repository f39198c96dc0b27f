// gdn_intra: everything of a chunk that does not need the state, for the value heads of one key head.
//   Computes  M = I + strict_lower(beta_t <k_t, k_s> 2^(g_t - g_s));  T' = M^-1 diag(beta);
//             A' = scale lower(<q_i, k_j> 2^(g_i - g_j));  g = cumulative log2-decay          (spec 2)
//   Launch    persistent blocks of 3 independent warpgroups; a warpgroup takes every n-th (chunk, key head), chunk-major,
//             so that chunks come out in the order in which the scan wants them
//   Traffic   per token: q, k 8 KB for 16 heads; T', A' 8 KB for 32 value heads
//   Numerics  KK^T, QK^T bf16 x bf16 -> f32 (exact products); 16 x 16 diagonal blocks solved in f32; the merges of blocks
//             in tf32 (cut, not rounded) with f32 sums; T', A' rounded to bf16. Exponents are differences before 2^x; masks are selections
//   Predicted 2,500 cycles of issue per item and multiprocessor: 0.18 ms for 65,536 tokens on 132 multiprocessors
//   Measured  0.53 ms; 0.41 ms after: products of blocks without rounding to tf32, no work above the diagonal, gates of
//             the next item loaded ahead, one release in place of a fence in every thread. In a later run 0.374, and 0.333
//             with masks in place of a branch for each 8 columns (more exponentials) and places looked up once an item.
//             What bounds it is not known: 0.395 in one run (the same code again: 0.427), without the inverse 0.384,
//             loading and storing always the same 32 chunks 0.411, both 0.340; 1.45 instructions a cycle
//   Tried     M in registers (K K^T is symmetric: a warp's rows also hold its column block of M, transposed), one
//             barrier a head, gates as products of two powers, 4 warpgroups. Passes the float64 check. Predicted
//             0.27 ms; prefill of 8 x 8,192 tokens took 1,081 us with it, 1,071 without (same run), so latencies of
//             few warps are probably not the only bound
//             A warp does a whole head (products by mma, inverse in registers, no barriers, 10 warps, half the
//             instructions): right, predicted 0.18 ms, measured 0.53 beside 0.374. Loops not unrolled: 0.349 beside 0.333.
//             Warpgroups in step (should code fetches bound it): 0.371 beside 0.333
#pragma once

#include "backends/cuda/gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90 {

inline constexpr int kIntraGroups = 3, kMatrixStride = 68;  // 68: rows 4 banks apart

/// Shared memory of one warpgroup.
struct IntraSlab {
  unsigned char k[2 * kTileBytes], q[2 * kTileBytes];
  float matrix[2][kChunk * kMatrixStride];
  float g[4][kChunk], beta[4][kChunk];
};
inline constexpr int kIntraSlabBytes = (sizeof(IntraSlab) + 1023) / 1024 * 1024;
inline constexpr int kIntraSharedBytes = kIntraGroups * kIntraSlabBytes + 64;

/// What a warpgroup works on in one turn; read once, since arguments at a computed index are slow to read.
struct IntraItem {
  int chunk, key_head;
  ChunkRows rows;
};
__device__ __forceinline__ IntraItem intra_item(const GdnPrefillArgs& a, int item) {
  const int chunk = item / a.key_heads;
  return {chunk, item - chunk * a.key_heads, chunk_rows(a, sequence_of(a, chunk), chunk)};
}

__device__ __forceinline__ void load_keys_and_queries(const GdnPrefillArgs& a, IntraSlab& slab, const IntraItem& item,
                                                      std::uint32_t barrier) {
  const int head = item.key_head, row = item.rows.first;
  barrier_expect(barrier, 4 * kTileBytes);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    load_tile(shared_address(slab.k) + i * kTileBytes, &a.k, head * kDim + i * 64, row, barrier);
    load_tile(shared_address(slab.q) + i * kTileBytes, &a.q, head * kDim + i * 64, row, barrier);
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
__device__ __forceinline__ void scan_gates(const GatePair& gates, IntraSlab& slab, int head_count, int warp, int lane) {
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
  *reinterpret_cast<float2*>(slab.g[warp] + 2 * lane) = make_float2(before + first, before + both);
  *reinterpret_cast<float2*>(slab.beta[warp] + 2 * lane) = make_float2(gates.beta[0], gates.beta[1]);
}

/// Inverts the four unit lower triangular 16 x 16 diagonal blocks: thread (block, column) of 64.
__device__ __forceinline__ void invert_diagonal_blocks(float* matrix, int thread, float (&x)[16]) {
  const int block = thread / 16, column = thread % 16;
  const float* corner = matrix + block * 16 * (kMatrixStride + 1);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 m = *reinterpret_cast<const float4*>(corner + i * kMatrixStride + j);
      sum -= m.x * x[j];
      if (j + 1 < i) sum -= m.y * x[j + 1];
      if (j + 2 < i) sum -= m.z * x[j + 2];
      if (j + 3 < i) sum -= m.w * x[j + 3];
    }
    x[i] = sum;
  }
}
__device__ __forceinline__ void store_diagonal_blocks(float* matrix, int thread, const float (&x)[16]) {
  float* corner = matrix + thread / 16 * 16 * (kMatrixStride + 1) + thread % 16;
#pragma unroll
  for (int i = 0; i < 16; ++i) corner[i * kMatrixStride] = x[i];
}

/// d[16 x 16] = a[16 x 8 kSteps] b[8 kSteps x 16] of one warp; a, b f32 in shared memory.
template <int kSteps>
__device__ __forceinline__ void multiply_blocks(float (&d)[2][4], const float* a, const float* b, int lane) {
  const int row = lane / 4, column = lane % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) d[n][i] = 0;
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const float* left = a + row * kMatrixStride + step * 8 + column;
    const std::uint32_t fragment[4] = {__float_as_uint(left[0]), __float_as_uint(left[8 * kMatrixStride]),
                                       __float_as_uint(left[4]), __float_as_uint(left[8 * kMatrixStride + 4])};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* right = b + (step * 8 + column) * kMatrixStride + n * 8 + row;
      const std::uint32_t other[2] = {__float_as_uint(right[0]), __float_as_uint(right[4 * kMatrixStride])};
      multiply_16x8_tf32(d[n], fragment, other);
    }
  }
}
__device__ __forceinline__ void store_block(float* to, const float (&d)[2][4], float sign, int lane) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float* at = to + lane / 4 * kMatrixStride + n * 8 + 2 * (lane % 4);
    at[0] = sign * d[n][0], at[1] = sign * d[n][1];
    at[8 * kMatrixStride] = sign * d[n][2], at[8 * kMatrixStride + 1] = sign * d[n][3];
  }
}

/// M -> M^-1 in place; two warps (half = 0, 1) for each matrix; all 128 threads of the warpgroup call it.
__device__ __forceinline__ void invert(float* m, int half, int lane, int barrier) {
  const int thread = half * 32 + lane;
  float x[16];
  invert_diagonal_blocks(m, thread, x);
  warpgroup_barrier(barrier);
  store_diagonal_blocks(m, thread, x);
  warpgroup_barrier(barrier);
  {  // block (1, 0) or (3, 2):  -C_11 (M_10 C_00)
    float* low = m + (32 * half + 16) * kMatrixStride + 32 * half;
    float d[2][4];
    multiply_blocks<2>(d, low, low - 16 * kMatrixStride, lane);
    __syncwarp();
    store_block(low, d, 1.0f, lane);
    __syncwarp();
    multiply_blocks<2>(d, low + 16, low, lane);
    __syncwarp();
    store_block(low, d, -1.0f, lane);
  }
  warpgroup_barrier(barrier);
  {  // the lower left 32 x 32 block, 16 columns for each warp
    float* low = m + 32 * kMatrixStride;
    float d[2][2][4];
    multiply_blocks<4>(d[0], low, m + 16 * half, lane);
    multiply_blocks<4>(d[1], low + 16 * kMatrixStride, m + 16 * half, lane);
    warpgroup_barrier(barrier);
    store_block(low + 16 * half, d[0], 1.0f, lane);
    store_block(low + 16 * half + 16 * kMatrixStride, d[1], 1.0f, lane);
    __syncwarp();
    multiply_blocks<4>(d[0], low + 32, low + 16 * half, lane);
    multiply_blocks<4>(d[1], low + 32 + 16 * kMatrixStride, low + 16 * half, lane);
    __syncwarp();
    store_block(low + 16 * half, d[0], -1.0f, lane);
    store_block(low + 16 * half + 16 * kMatrixStride, d[1], -1.0f, lane);
  }
  warpgroup_barrier(barrier);
}

/// From the products of a chunk: M to shared memory, A' to the workspace. Thread (warp, lane) owns rows 16 warp + lane / 4
/// (+ 8) and columns 8 j + 2 (lane % 4) (+ 1), the layout of the products.
__device__ __forceinline__ void apply_gates(const float (&kk)[32], const float (&qk)[32], const float* g, const float* beta,
                                            float scale, int count, float* matrix, unsigned char* a_tile, int warp,
                                            int lane) {
  float2 g_s[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) g_s[j] = *reinterpret_cast<const float2*>(g + 8 * j + 2 * (lane % 4));
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int t = 16 * warp + lane / 4 + 8 * r;
    const float g_t = g[t], beta_t = beta[t];
    const int before = t < count ? t - 2 * (lane % 4) : -1;  // s < t is 8 j < before
    float* m_row = matrix + t * kMatrixStride + 2 * (lane % 4);
    unsigned char* a_row = a_tile + t * 128 + 4 * (lane % 4);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float decay0 = exp2_fast(fminf(g_t - g_s[j].x, 0.0f)), decay1 = exp2_fast(fminf(g_t - g_s[j].y, 0.0f));
      const float m0 = 8 * j < before ? beta_t * kk[4 * j + 2 * r] * decay0 : 0.0f;
      const float m1 = 8 * j + 1 < before ? beta_t * kk[4 * j + 2 * r + 1] * decay1 : 0.0f;
      const float a0 = 8 * j <= before ? scale * qk[4 * j + 2 * r] * decay0 : 0.0f;
      const float a1 = 8 * j < before ? scale * qk[4 * j + 2 * r + 1] * decay1 : 0.0f;
      *reinterpret_cast<float2*>(m_row + 8 * j) = make_float2(m0, m1);
      *reinterpret_cast<std::uint32_t*>(a_row + ((j ^ (t & 7)) << 4)) = pack_bf16(a0, a1);
    }
  }
}

/// T' = M^-1 diag(beta) as bf16: 64 threads for each matrix, 16-byte pieces.
__device__ __forceinline__ void store_inverse(const float* inverse, const float* beta, unsigned char* tile, int thread) {
  const int piece = thread % 8;
  const float4 b0 = *reinterpret_cast<const float4*>(beta + 8 * piece), b1 = *reinterpret_cast<const float4*>(beta + 8 * piece + 4);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int t = thread / 8 + 8 * i;
    const float* row = inverse + t * kMatrixStride + 8 * piece;
    const float4 x0 = *reinterpret_cast<const float4*>(row), x1 = *reinterpret_cast<const float4*>(row + 4);
    *reinterpret_cast<uint4*>(tile + swizzled(t, piece)) =
        make_uint4(pack_bf16(x0.x * b0.x, x0.y * b0.y), pack_bf16(x0.z * b0.z, x0.w * b0.w),
                   pack_bf16(x1.x * b1.x, x1.y * b1.y), pack_bf16(x1.z * b1.z, x1.w * b1.w));
  }
}

__global__ void __launch_bounds__(128 * kIntraGroups, 1) gdn_intra_kernel(const __grid_constant__ GdnPrefillArgs a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  IntraSlab& slab = *reinterpret_cast<IntraSlab*>(shared + group * kIntraSlabBytes);
  const std::uint32_t full = shared_address(shared + kIntraGroups * kIntraSlabBytes) + 8 * group;
  const int barrier = 1 + group, heads_per_key = a.value_heads / a.key_heads;
  const int item_count = a.chunk_begin[a.sequence_count] * a.key_heads, step = gridDim.x * kIntraGroups;
  if (a.overlapped) let_next_kernel_start();
  int at = blockIdx.x * kIntraGroups + group;
  IntraItem item = {};
  if (at < item_count) item = intra_item(a, at);
  if (thread == 0) {
    barrier_init(full, 1);
    fence_barrier_init();
    if (at < item_count) load_keys_and_queries(a, slab, item, full);
  }
  __syncthreads();

  GatePair gates = {};
  if (at < item_count) gates = load_gates(a, item, warp, lane);
  for (int parity = 0; at < item_count; at += step, parity ^= 1) {
    const int chunk = item.chunk, first_head = item.key_head * heads_per_key;
    const ChunkRows rows = item.rows;
    const bool has_next = at + step < item_count;
    scan_gates(gates, slab, heads_per_key, warp, lane);
    if (has_next) {
      item = intra_item(a, at + step);
      gates = load_gates(a, item, warp, lane);
    }
    barrier_wait(full, parity);
    float kk[32], qk[32];
    const std::uint32_t k = shared_address(slab.k), q = shared_address(slab.q);
    products_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t at = i / 4 * kTileBytes + i % 4 * 32;
      multiply_64x64(kk, operand(k + at), operand(k + at), i > 0);
      multiply_64x64(qk, operand(q + at), operand(k + at), i > 0);
    }
    products_commit();
    products_wait<0>();
    pin(kk), pin(qk);
    warpgroup_barrier(barrier);
    if (thread == 0 && has_next) load_keys_and_queries(a, slab, item, full);

    for (int pair = 0; pair < heads_per_key; pair += 2) {
      const int count = min(2, heads_per_key - pair);
      unsigned char* tiles =
          a.work.tiles + (static_cast<std::int64_t>(chunk) * a.value_heads + first_head + pair) * 2 * kTileBytes;
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        apply_gates(kk, qk, slab.g[pair + i], slab.beta[pair + i], a.scale, rows.count, slab.matrix[i],
                    tiles + (2 * i + 1) * kTileBytes, warp, lane);
      }
      warpgroup_barrier(barrier);
      const int mine = warp / 2;  // of an odd head count, the second matrix is inverted for nothing
      invert(slab.matrix[mine], warp % 2, lane, barrier);
      if (mine < count) {
        store_inverse(slab.matrix[mine], slab.beta[pair + mine], tiles + 2 * mine * kTileBytes, thread % 64);
        const float* g = slab.g[pair + mine];
        float* factors =
            a.work.factors + (static_cast<std::int64_t>(chunk) * a.value_heads + first_head + pair + mine) * 2 * kChunk;
        factors[thread % 64] = exp2_fast(g[thread % 64]);
        factors[kChunk + thread % 64] = exp2_fast(g[kChunk - 1] - g[thread % 64]);
      }
      warpgroup_barrier(barrier);
    }
    if (thread == 0 && a.overlapped) publish(a.work.ready + at, 1);
  }
}

}  // namespace cairn::gpu::sm90
