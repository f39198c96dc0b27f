// gdn_split_scan: gdn_scan with the outputs on a second warpgroup, for batches whose scans leave multiprocessors free.
//   Computes  as gdn_scan: warpgroup 0 the chain S -> X -> U' -> S; warpgroup 1 O = scale 2^g Q S + A' U', not transposed;
//             warp 8 waits for gdn_intra's flags (32 chunks at a look) and queues the loads
//   Hand-over rounded S^T [64 columns x 128] and U'^T [64 x 64] through shared tiles, once a chunk each
//   Measured  one warpgroup for both (H200, batch 1): 1.34 us a chunk, bound by instructions of one warp a scheduler:
//             850 issued, the rest their latencies; flags polled one chunk at a time: 2.1 us
//   Predicted 0.8 us a chunk: 560 instructions on the chain, 1,024 matrix cycles a chunk in all
#pragma once

#include "backends/cuda/gdn_scan_sm90.cuh"

namespace cairn::gpu::sm90 {

inline constexpr int kSplitScanThreads = 384, kSplitStages = 3;

struct SplitScanShared {
  ScanStage stages[kSplitStages];
  unsigned char state[2 * kTileBytes], deltas[kTileBytes], out[kTileBytes];
  float factors[kSplitStages][2 * kChunk];
  std::uint64_t full[kSplitStages], empty[kSplitStages];
};
static_assert(sizeof(SplitScanShared) <= 232448, "one block for each multiprocessor");

/// Named barriers between the chain and the outputs.
enum ScanSignal : int { kChainOnly = 1, kStateReady, kStateFree, kDeltasReady, kDeltasFree };

/// Warp 8: loads every chunk once its stage is free and gdn_intra has published it.
__device__ __forceinline__ void load_all_stages(const GdnPrefillArgs& a, ScanPlace place, int begin, int end, SplitScanShared& shared,
                                int lane) {
  int stage = 0, parity = 1, published = begin;  // the first round of a stage waits for nothing
  for (int chunk = begin; chunk < end; ++chunk) {
    while (published <= chunk) {
      const int mine = published + lane;
      const bool is_ready = mine < end && is_published(a.work.ready + mine * a.key_heads + place.key_head);
      const unsigned waiting = ~__ballot_sync(0xffffffffu, is_ready);
      published += waiting ? __ffs(static_cast<int>(waiting)) - 1 : 32;
    }
    if (lane == 0) {
      fence_engines_global();
      barrier_wait(shared_address(&shared.empty[stage]), parity);
      load_stage(a, place, chunk, shared.stages[stage], shared_address(&shared.full[stage]), shared.factors[stage]);
    }
    __syncwarp();
    if (++stage == kSplitStages) stage = 0, parity ^= 1;
  }
}

/// Address of the 8 x 8 pieces of a warp's 16 rows for store_matrices: `pieces` = 2 neighbouring 16-byte columns.
__device__ __forceinline__ std::uint32_t fragment_address(int warp, int lane, int first_piece) {
  return swizzled(16 * warp + lane / 8 % 2 * 8 + lane % 8, first_piece + lane / 16);
}

__device__ __forceinline__ void run_chain(const GdnPrefillArgs& a, ScanPlace place, int begin, int end, SplitScanShared& shared, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  float* state = a.states[place.sequence] + state_offset(place);
  float s[64];
  std::uint32_t rounded[8][4];
  for_each_state_element(warp, lane, [&](int i, int row, int column) { s[i] = state[row * kDim + column]; });
  round_state(s, rounded);
  const int piece_row = lane / 16 * 8 + lane % 8, piece = 2 * warp + lane / 8 % 2;
  const std::uint32_t state_tile = shared_address(shared.state), delta_tile = shared_address(shared.deltas);
  int stage = 0, parity = 0;
  for (int chunk = begin; chunk < end; ++chunk) {
    ScanStage& now = shared.stages[stage];
    const ChunkRows rows = chunk_rows(a, place.sequence, chunk);
    barrier_wait(shared_address(&shared.full[stage]), parity);
    if (rows.count < kChunk) {
      clear_rows(now, rows.count, thread);
      warpgroup_barrier(kChainOnly);
    }
    const std::uint32_t k = shared_address(now.k), v = shared_address(now.v), inverse = shared_address(now.inverse);
    const float* factors = shared.factors[stage];
    float x[32], u[32];
    products_begin();
    multiply_state(x, rounded, k);
    if (chunk > begin) pair_wait(kStateFree);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      store_matrices(state_tile + i / 4 * kTileBytes + fragment_address(warp, lane, 2 * (i % 4)), rounded[i]);
    }
    fence_engines();
    pair_arrive(kStateReady);
    float2 in[8], out_decay[8];
    std::uint32_t value[4][4], r[4][4], write[4][4];
    load_factors(factors, lane, in);
    load_factors(factors + kChunk, lane, out_decay);
    const float decay = factors[kChunk - 1];
#pragma unroll
    for (int j = 0; j < 4; ++j) load_transposed(value[j], v + swizzled(16 * j + piece_row, piece));
    products_wait<0>();
    pin(x);
    subtract_recalled(value, in, x, r);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x64(u, r[i], operand(inverse + 32 * i), i > 0);
    products_commit();
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= decay;
    products_wait<0>();
    pin(u);
    round_deltas(u, out_decay, r, write);
    pin(s);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x128_transposed(s, write[i], operand_transposed(k + 2048 * i));
    products_commit();
    if (chunk > begin) pair_wait(kDeltasFree);
#pragma unroll
    for (int i = 0; i < 4; ++i) store_matrices(delta_tile + fragment_address(warp, lane, 2 * i), r[i]);
    fence_engines();
    pair_arrive(kDeltasReady);
    products_wait<0>();
    pin(s);
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[stage]));
    round_state(s, rounded);
    keep_checkpoint(a, place, chunk + 1 - begin, chunk + 1 == end, s, warp, lane);
    if (++stage == kSplitStages) stage = 0, parity ^= 1;
  }
  pair_wait(kStateFree);
  pair_wait(kDeltasFree);
  for_each_state_element(warp, lane, [&](int i, int row, int column) { state[row * kDim + column] = s[i]; });
}

__device__ __forceinline__ void run_outputs(const GdnPrefillArgs& a, ScanPlace place, int begin, int end, SplitScanShared& shared, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  const std::uint32_t state = shared_address(shared.state), deltas = shared_address(shared.deltas);
  const std::uint32_t out = shared_address(shared.out);
  int stage = 0, parity = 0;
  for (int chunk = begin; chunk < end; ++chunk) {
    ScanStage& now = shared.stages[stage];
    const ChunkRows rows = chunk_rows(a, place.sequence, chunk);
    const std::uint32_t q = shared_address(now.q), scores = shared_address(now.scores);
    float o[32];
    barrier_wait(shared_address(&shared.full[stage]), parity);
    const float* factors = shared.factors[stage] + 16 * warp + lane / 4;
    const float factor0 = a.scale * factors[0], factor1 = a.scale * factors[8];
    pair_wait(kStateReady);
    products_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t at = i / 4 * kTileBytes + i % 4 * 32;
      multiply_64x64(o, operand(q + at), operand(state + at), i > 0);
    }
    products_commit();
    products_wait<0>();
    pin(o);
    pair_arrive(kStateFree);
#pragma unroll
    for (int j = 0; j < 8; ++j) o[4 * j] *= factor0, o[4 * j + 1] *= factor0, o[4 * j + 2] *= factor1, o[4 * j + 3] *= factor1;
    pin(o);
    pair_wait(kDeltasReady);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x64(o, operand(scores + 32 * i), operand(deltas + 32 * i), 1);
    products_commit();
    products_wait<0>();
    pin(o);
    pair_arrive(kDeltasFree);
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[stage]));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t m[4] = {pack_bf16(o[8 * j], o[8 * j + 1]), pack_bf16(o[8 * j + 2], o[8 * j + 3]),
                                  pack_bf16(o[8 * j + 4], o[8 * j + 5]), pack_bf16(o[8 * j + 6], o[8 * j + 7])};
      store_matrices(out + fragment_address(warp, lane, 2 * j), m);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // this warp's 16 rows, whole 128-byte lines
      const int row = 16 * warp + 4 * i + lane / 8;
      if (row < rows.count) {
        unsigned short* to = a.out + (rows.first + row) * a.out_stride + place.head * kDim + 64 * place.half;
        *reinterpret_cast<uint4*>(to + lane % 8 * 8) = *reinterpret_cast<const uint4*>(shared.out + swizzled(row, lane % 8));
      }
    }
    __syncwarp();
    if (++stage == kSplitStages) stage = 0, parity ^= 1;
  }
}

__global__ void __launch_bounds__(kSplitScanThreads, 1) gdn_split_scan_kernel(const __grid_constant__ GdnPrefillArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  SplitScanShared& shared = *reinterpret_cast<SplitScanShared*>(memory);
  const int thread = threadIdx.x;
  const ScanPlace place = scan_place(a, blockIdx.x);
  const int begin = a.chunk_begin[place.sequence], end = a.chunk_begin[place.sequence + 1];
  if (thread == 0) {
    for (int i = 0; i < kSplitStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), 8);  // one arrival of each warp that computes
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (begin == end) {
    // Nothing to do, but the end of this kernel must not come before gdn_intra's.
  } else if (thread < 128) {
    set_registers_up<240>();
    run_chain(a, place, begin, end, shared, thread);
  } else if (thread < 256) {
    run_outputs(a, place, begin, end, shared, thread - 128);
  } else {
    set_registers_down<40>();
    if (thread < 288) load_all_stages(a, place, begin, end, shared, thread - 256);
  }
  wait_for_previous_kernel();
}

}  // namespace cairn::gpu::sm90
