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
inline constexpr int kScanStageBytes = 7 * kTileBytes, kScanLoadBytes = kScanStageBytes + kChunk * 4;

/// g of a stage, the factors 2^g and 2^(gamma - g) of the current chunk, and the barriers; after the stages.
template <int kStages>
struct ScanTail {
  float g[kStages][kChunk];
  std::uint64_t full[kStages];
};
/// Two factor arrays [64] live in the ring behind the tail.
template <int kStages>
inline constexpr int kScanSharedBytes = kStages * kScanStageBytes + static_cast<int>(sizeof(ScanTail<kStages>)) + 128;

struct ScanPlace {
  int sequence, head, key_head, half;
};

template <int kStages>
__device__ __forceinline__ void load_stage(const GdnPrefillArgs& a, ScanPlace place, int chunk, ScanStage* stages,
                                           ScanTail<kStages>& tail, int stage) {
  const int row = chunk_rows(a, place.sequence, chunk).first;
  const std::uint32_t full = shared_address(&tail.full[stage]);
  ScanStage& to = stages[stage];
  barrier_expect(full, kScanLoadBytes);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    load_tile(shared_address(to.k) + i * kTileBytes, &a.k, place.key_head * kDim + 64 * i, row, full);
    load_tile(shared_address(to.q) + i * kTileBytes, &a.q, place.key_head * kDim + 64 * i, row, full);
  }
  load_tile(shared_address(to.v), &a.v, place.head * kDim + 64 * place.half, row, full);
  if (a.overlapped) {
    wait_published(a.work.ready + chunk * a.key_heads + place.key_head);
    fence_engines();
  }
  const std::int64_t at = static_cast<std::int64_t>(chunk) * a.value_heads + place.head;
  load_bytes(shared_address(to.inverse), a.work.tiles + at * 2 * kTileBytes, 2 * kTileBytes, full);
  load_bytes(shared_address(tail.g[stage]), a.work.g + at * kChunk, kChunk * 4, full);
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

template <int kStages>
__global__ void __launch_bounds__(128, 1) gdn_scan_kernel(const __grid_constant__ GdnPrefillArgs a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  ScanStage* stages = reinterpret_cast<ScanStage*>(shared);
  ScanTail<kStages>& tail = *reinterpret_cast<ScanTail<kStages>*>(shared + kStages * kScanStageBytes);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  ScanPlace place;
  place.half = blockIdx.x % 2;
  place.head = blockIdx.x / 2 % a.value_heads;
  place.sequence = blockIdx.x / 2 / a.value_heads;
  place.key_head = place.head / (a.value_heads / a.key_heads);
  const int begin = a.chunk_begin[place.sequence], end = a.chunk_begin[place.sequence + 1];
  if (begin == end) return;

  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(shared_address(&tail.full[i]), 1);
    fence_barrier_init();
    for (int i = 0; i < kStages && begin + i < end; ++i) load_stage<kStages>(a, place, begin + i, stages, tail, i);
  }
  const std::int64_t state_at = static_cast<std::int64_t>(place.head) * kDim * kDim + 64 * place.half;
  float* state = a.states[place.sequence] + state_at;
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
    barrier_wait(shared_address(&tail.full[stage]), parity);
    if (rows.count < kChunk) {
      clear_rows(now, rows.count, thread);
      __syncthreads();
    }
    const std::uint32_t k = shared_address(now.k), q = shared_address(now.q), v = shared_address(now.v);
    const std::uint32_t inverse = shared_address(now.inverse), scores = shared_address(now.scores);
    float x[32], o[32], u[32];
    products_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i) multiply_64x64(x, rounded[i], operand(k + i / 4 * kTileBytes + i % 4 * 32), i > 0);
    products_commit();
#pragma unroll
    for (int i = 0; i < 8; ++i) multiply_64x64(o, rounded[i], operand(q + i / 4 * kTileBytes + i % 4 * 32), i > 0);
    products_commit();

    // While they run: the gate factors of this thread's 16 tokens (8 j + 2 (lane % 4), and the next), and V^T.
    const float* g = tail.g[stage] + 2 * (lane % 4);
    const float gamma = tail.g[stage][kChunk - 1];
    float2 in[8];
    std::uint32_t value[4][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 g_t = *reinterpret_cast<const float2*>(g + 8 * j);
      in[j] = make_float2(exp2_fast(g_t.x), exp2_fast(g_t.y));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) load_transposed(value[j], v + swizzled(16 * j + piece_row, piece));
    if (thread == 0 && chunk > begin && chunk - 1 + kStages < end) {
      // Every thread has left the previous chunk's stage: it passed that chunk's last barrier.
      load_stage<kStages>(a, place, chunk - 1 + kStages, stages, tail, stage == 0 ? kStages - 1 : stage - 1);
    }
    __syncwarp();

    products_wait<1>();
    pin(x);
    std::uint32_t r[4][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {  // rows lane / 4 and + 8 of the 8 x 8 piece j
      const std::uint32_t low = value[j / 2][j % 2 * 2], high = value[j / 2][j % 2 * 2 + 1];
      const bool valid0 = 8 * j + 2 * (lane % 4) < rows.count, valid1 = 8 * j + 2 * (lane % 4) + 1 < rows.count;
      r[j / 2][j % 2 * 2] = pack_bf16(valid0 ? low_bf16(low) - in[j].x * x[4 * j] : 0.0f,
                                      valid1 ? high_bf16(low) - in[j].y * x[4 * j + 1] : 0.0f);
      r[j / 2][j % 2 * 2 + 1] = pack_bf16(valid0 ? low_bf16(high) - in[j].x * x[4 * j + 2] : 0.0f,
                                          valid1 ? high_bf16(high) - in[j].y * x[4 * j + 3] : 0.0f);
    }
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x64(u, r[i], operand(inverse + 32 * i), i > 0);
    products_commit();
    const float decay = exp2_fast(gamma);
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= decay;
    products_wait<1>();
    pin(o);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float x0 = a.scale * in[j].x, x1 = a.scale * in[j].y;
      o[4 * j] *= x0, o[4 * j + 1] *= x1, o[4 * j + 2] *= x0, o[4 * j + 3] *= x1;
    }
    float2 out_decay[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 g_t = *reinterpret_cast<const float2*>(g + 8 * j);
      out_decay[j] = make_float2(exp2_fast(gamma - g_t.x), exp2_fast(gamma - g_t.y));
    }
    products_wait<0>();
    pin(u);
    std::uint32_t write[4][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 d = out_decay[j];
      r[j / 2][j % 2 * 2] = pack_bf16(u[4 * j], u[4 * j + 1]);
      r[j / 2][j % 2 * 2 + 1] = pack_bf16(u[4 * j + 2], u[4 * j + 3]);
      write[j / 2][j % 2 * 2] = pack_bf16(u[4 * j] * d.x, u[4 * j + 1] * d.y);
      write[j / 2][j % 2 * 2 + 1] = pack_bf16(u[4 * j + 2] * d.x, u[4 * j + 3] * d.y);
    }
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
    // O^T goes through V's tile, which only this warp's lanes of these pieces have read.
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t m[4] = {pack_bf16(o[8 * j], o[8 * j + 1]), pack_bf16(o[8 * j + 2], o[8 * j + 3]),
                                  pack_bf16(o[8 * j + 4], o[8 * j + 5]), pack_bf16(o[8 * j + 6], o[8 * j + 7])};
      store_transposed(v + swizzled(16 * j + piece_row, piece), m);
    }
    __syncwarp();
    // Each warp owns 16 columns, pieces 2 warp and 2 warp + 1 of every row.
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
    const int done = chunk + 1 - begin;
    if (a.checkpoint_chunks && done % a.checkpoint_chunks == 0 && chunk + 1 < end) {
      float* kept = a.checkpoints[place.sequence] +
                    static_cast<std::int64_t>(done / a.checkpoint_chunks - 1) * a.value_heads * kDim * kDim + state_at;
      for_each_state_element(warp, lane, [&](int i, int row, int column) { kept[row * kDim + column] = s[i]; });
    }
    fence_engines();
    __syncthreads();
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  for_each_state_element(warp, lane, [&](int i, int row, int column) { state[row * kDim + column] = s[i]; });
  if (a.overlapped) wait_for_previous_kernel();
}

}  // namespace cairn::gpu::sm90
