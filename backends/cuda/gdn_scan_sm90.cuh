// gdn_scan: walks the chunks of a sequence with 64 of the 128 value columns of one state, and writes their outputs.
//   Computes  U' = T' (V - 2^g K S);  O = scale 2^g Q S + A' U';  S <- 2^gamma S + K^T (2^(gamma - g) U')     (spec 2)
//   Launch    one warpgroup for each (sequence, value head, half); its S^T [64 columns x 128 rows] stays in registers in
//             f32, so every product has its left side in registers and no state goes through shared memory
//   Stages    kStages buffers of K, Q (16 KB each), V half, T', A' (8 KB each), g, filled by the copy engine ahead of use
//   Traffic   58 KB per chunk and block, mostly from L2
//   Numerics  S f32; S, R = V - 2^g K S and U' are rounded to bf16 as operands; all sums f32 in a fixed order
//   Predicted 1,024 matrix cycles + ~300 exposed per chunk: 0.75 us, 1.5 ms a layer at 131,072 tokens, batch 1
#pragma once

#include "backends/cuda/gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90 {

struct ScanStage {
  unsigned char k[2 * kTileBytes], q[2 * kTileBytes], v[kTileBytes], inverse[kTileBytes], scores[kTileBytes];
};
inline constexpr int kScanStageBytes = 7 * kTileBytes, kFactorBytes = 2 * kChunk * 4;

struct ScanPlace {
  int sequence, head, key_head, half;
};

/// 2^g, then 2^(gamma - g), of a chunk's tokens.
__device__ __forceinline__ const float* chunk_factors(const GdnPrefillArgs& a, ScanPlace place, int chunk) {
  return a.work.factors + (static_cast<std::int64_t>(chunk) * a.value_heads + place.head) * 2 * kChunk;
}

/// Queues the loads of a chunk's tiles, and of its factors where there is room for them; one thread.
__device__ __forceinline__ void load_stage(const GdnPrefillArgs& a, ScanPlace place, int chunk, ScanStage& to,
                                           std::uint32_t full, float* factors) {
  const int row = chunk_rows(a, place.sequence, chunk).first;
  barrier_expect(full, kScanStageBytes + (factors ? kFactorBytes : 0));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    load_tile(shared_address(to.k) + i * kTileBytes, &a.k, place.key_head * kDim + 64 * i, row, full);
    load_tile(shared_address(to.q) + i * kTileBytes, &a.q, place.key_head * kDim + 64 * i, row, full);
  }
  load_tile(shared_address(to.v), &a.v, place.head * kDim + 64 * place.half, row, full);
  const std::int64_t at = static_cast<std::int64_t>(chunk) * a.value_heads + place.head;
  load_bytes(shared_address(to.inverse), a.work.tiles + at * 2 * kTileBytes, 2 * kTileBytes, full);
  if (factors) load_bytes(shared_address(factors), chunk_factors(a, place, chunk), kFactorBytes, full);
}

/// Rows past the end of a sequence belong to its neighbour: its keys must not meet even a zero of ours.
__device__ __forceinline__ void clear_rows(ScanStage& stage, int count, int thread) {
  for (int i = thread; i < (kChunk - count) * 8; i += 128) {
    const int at = (count + i / 8) * 128 + i % 8 * 16;
    *reinterpret_cast<uint4*>(stage.k + at) = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(stage.k + kTileBytes + at) = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(stage.v + at) = make_uint4(0, 0, 0, 0);
  }
  fence_engines();
}

/// Calls visit(element of s, key row, value column) for the 64 state elements of this thread.
template <class Visit>
__device__ __forceinline__ void for_each_state_element(int warp, int lane, const Visit& visit) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) visit(4 * j + i, 8 * j + 2 * (lane % 4) + i % 2, 16 * warp + lane / 4 + 8 * (i / 2));
  }
}

/// Rounds S to the left operand of 8 products of 16 key rows.
__device__ __forceinline__ void round_state(const float (&s)[64], std::uint32_t (&rounded)[8][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int n = 0; n < 4; ++n) rounded[i][n] = pack_bf16(s[8 * i + 2 * n], s[8 * i + 2 * n + 1]);
  }
}

/// X^T = S^T K^T of a chunk: 8 products, committed.
__device__ __forceinline__ void multiply_state(float (&x)[32], const std::uint32_t (&state)[8][4], std::uint32_t tiles) {
#pragma unroll
  for (int i = 0; i < 8; ++i) multiply_64x64(x, state[i], operand(tiles + i / 4 * kTileBytes + i % 4 * 32), i > 0);
  products_commit();
}

/// R^T = V^T - 2^g X^T as the left operand of 4 products of 16 tokens. Cleared rows of K and V give zeros.
__device__ __forceinline__ void subtract_recalled(const std::uint32_t (&value)[4][4], const float2 (&in)[8],
                                                  const float (&x)[32], std::uint32_t (&r)[4][4]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {  // rows lane / 4 and + 8 of the 8 x 8 piece j
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t pair = value[j / 2][j % 2 * 2 + i];
      r[j / 2][j % 2 * 2 + i] =
          pack_bf16(low_bf16(pair) - in[j].x * x[4 * j + 2 * i], high_bf16(pair) - in[j].y * x[4 * j + 2 * i + 1]);
    }
  }
}

/// U'^T rounded, and (2^(gamma - g) U')^T rounded, both as left operands.
__device__ __forceinline__ void round_deltas(const float (&u)[32], const float2 (&out_decay)[8], std::uint32_t (&r)[4][4],
                                             std::uint32_t (&write)[4][4]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float first = u[4 * j + 2 * i], second = u[4 * j + 2 * i + 1];
      r[j / 2][j % 2 * 2 + i] = pack_bf16(first, second);
      write[j / 2][j % 2 * 2 + i] = pack_bf16(first * out_decay[j].x, second * out_decay[j].y);
    }
  }
}

/// Factors of this thread's 16 tokens: 8 j + 2 (lane % 4), and the next.
__device__ __forceinline__ void load_factors(const float* factors, int lane, float2 (&of)[8]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) of[j] = *reinterpret_cast<const float2*>(factors + 8 * j + 2 * (lane % 4));
}

__device__ __forceinline__ ScanPlace scan_place(const GdnPrefillArgs& a, int block) {
  const int head = block / 2 % a.value_heads;
  return {block / 2 / a.value_heads, head, head / (a.value_heads / a.key_heads), block % 2};
}

/// The head's columns of this block in a [HV, K, V] state.
__device__ __forceinline__ std::int64_t state_offset(ScanPlace place) {
  return static_cast<std::int64_t>(place.head) * kDim * kDim + 64 * place.half;
}

/// After `done` chunks: copies S when a checkpoint is due.
__device__ __forceinline__ void keep_checkpoint(const GdnPrefillArgs& a, ScanPlace place, int done, bool is_last,
                                                const float (&s)[64], int warp, int lane) {
  if (!a.checkpoint_chunks || done % a.checkpoint_chunks || is_last) return;
  float* kept = a.checkpoints[place.sequence] +
                static_cast<std::int64_t>(done / a.checkpoint_chunks - 1) * a.value_heads * kDim * kDim + state_offset(place);
  for_each_state_element(warp, lane, [&](int i, int row, int column) { kept[row * kDim + column] = s[i]; });
}

inline constexpr int kScanThreads = 128, kScanStages = 2;
struct ScanShared {
  ScanStage stages[kScanStages];
  std::uint64_t full[kScanStages];
};
static_assert(sizeof(ScanShared) <= 115712, "two blocks for each multiprocessor");

__global__ void __launch_bounds__(kScanThreads, 2) gdn_scan_kernel(const __grid_constant__ GdnPrefillArgs a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  ScanStage* stages = reinterpret_cast<ScanShared*>(shared)->stages;
  std::uint64_t* full = reinterpret_cast<ScanShared*>(shared)->full;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const ScanPlace place = scan_place(a, blockIdx.x);
  const int begin = a.chunk_begin[place.sequence], end = a.chunk_begin[place.sequence + 1];
  if (begin == end) return;
  if (thread == 0) {
    for (int i = 0; i < kScanStages; ++i) barrier_init(shared_address(&full[i]), 1);
    fence_barrier_init();
    for (int i = 0; i < kScanStages && begin + i < end; ++i) {
      load_stage(a, place, begin + i, stages[i], shared_address(&full[i]), nullptr);
    }
  }
  float* state = a.states[place.sequence] + state_offset(place);
  float s[64];
  std::uint32_t rounded[8][4];
  for_each_state_element(warp, lane, [&](int i, int row, int column) { s[i] = state[row * kDim + column]; });
  round_state(s, rounded);
  __syncthreads();

  // The 8x8 pieces of V and O that this lane addresses for ldmatrix and stmatrix.
  const int piece_row = lane / 16 * 8 + lane % 8, piece = 2 * warp + lane / 8 % 2;
  int stage = 0, parity = 0;
  for (int chunk = begin; chunk < end; ++chunk) {
    ScanStage& now = stages[stage];
    const ChunkRows rows = chunk_rows(a, place.sequence, chunk);
    barrier_wait(shared_address(&full[stage]), parity);
    if (rows.count < kChunk) {
      clear_rows(now, rows.count, thread);
      warpgroup_barrier(1);
    }
    const std::uint32_t k = shared_address(now.k), q = shared_address(now.q), v = shared_address(now.v);
    const std::uint32_t inverse = shared_address(now.inverse), scores = shared_address(now.scores);
    const float* factors = chunk_factors(a, place, chunk);  // global: no room beside two blocks' stages
    float x[32], o[32], u[32];
    products_begin();
    multiply_state(x, rounded, k);
    multiply_state(o, rounded, q);
    float2 in[8], out_decay[8];
    std::uint32_t value[4][4], r[4][4], write[4][4];
    load_factors(factors, lane, in);
#pragma unroll
    for (int j = 0; j < 4; ++j) load_transposed(value[j], v + swizzled(16 * j + piece_row, piece));
    const float decay = factors[kChunk - 1];
    products_wait<1>();
    pin(x);
    subtract_recalled(value, in, x, r);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x64(u, r[i], operand(inverse + 32 * i), i > 0);
    products_commit();
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= decay;
    products_wait<1>();
    pin(o);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float x0 = a.scale * in[j].x, x1 = a.scale * in[j].y;
      o[4 * j] *= x0, o[4 * j + 1] *= x1, o[4 * j + 2] *= x0, o[4 * j + 3] *= x1;
    }
    load_factors(factors + kChunk, lane, out_decay);
    products_wait<0>();
    pin(u);
    round_deltas(u, out_decay, r, write);
    pin(o), pin(s);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x64(o, r[i], operand(scores + 32 * i), 1);
    products_commit();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x128_transposed(s, write[i], operand_transposed(k + 2048 * i));
    products_commit();
    products_wait<1>();
    pin(o);
    // O^T goes through V's tile: a warp has read, and now writes, the 16 columns that it owns.
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t m[4] = {pack_bf16(o[8 * j], o[8 * j + 1]), pack_bf16(o[8 * j + 2], o[8 * j + 3]),
                                  pack_bf16(o[8 * j + 4], o[8 * j + 5]), pack_bf16(o[8 * j + 6], o[8 * j + 7])};
      store_transposed(v + swizzled(16 * j + piece_row, piece), m);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 16 + lane / 2, column_piece = 2 * warp + lane % 2;
      if (row < rows.count) {
        const uint4 data = *reinterpret_cast<const uint4*>(now.v + swizzled(row, column_piece));
        unsigned short* to = a.out + (rows.first + row) * a.out_stride + place.head * kDim + 64 * place.half;
        *reinterpret_cast<uint4*>(to + 8 * column_piece) = data;
      }
    }
    products_wait<0>();
    pin(s);
    round_state(s, rounded);
    keep_checkpoint(a, place, chunk + 1 - begin, chunk + 1 == end, s, warp, lane);
    fence_engines();
    warpgroup_barrier(1);
    if (thread == 0 && chunk + kScanStages < end) {
      load_stage(a, place, chunk + kScanStages, now, shared_address(&full[stage]), nullptr);
    }
    __syncwarp();
    if (++stage == kScanStages) stage = 0, parity ^= 1;
  }
  for_each_state_element(warp, lane, [&](int i, int row, int column) { state[row * kDim + column] = s[i]; });
}

}  // namespace cairn::gpu::sm90
