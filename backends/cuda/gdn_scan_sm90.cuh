// gdn_scan: walks the chunks of a sequence with 64 of the 128 value columns of one state, and writes their outputs.
//   Computes  U' = T' (V - 2^g K S);  O = scale 2^g Q S + A' U';  S <- 2^gamma S + K^T (2^(gamma - g) U')     (spec 2)
//   Launch    one block for each (sequence, value head, half). Warpgroup 0: the chain S -> X -> U' -> S, with S^T
//             [64 columns x 128 rows] in registers in f32, so that every product has its left side in registers.
//             Warpgroup 1: the outputs. Warp 8: waits for gdn_intra's flags (32 chunks at a look) and queues the loads
//   Hand-over rounded S^T [64 columns x 128] and U'^T [64 x 64] through shared tiles, once a chunk each
//   Traffic   58 KB per chunk and block, mostly from L2
//   Numerics  S f32; S, R = V - 2^g K S and U' are rounded to bf16 as operands; all sums f32 in a fixed order
//   Versions  (H200, batch 1, us a chunk)
//     one warpgroup for chain and outputs, loads and flags by its thread 0    predicted 0.75, measured 2.87 (2.1 fenced less)
//     the same, its kernel alone: 1.34. 850 instructions of one warp a scheduler with their latencies, not 1,024 matrix cycles
//     outputs on a second warpgroup, S and U' through swizzled tiles          predicted 0.8, measured 1.23: the two fences
//       for the matrix engine cost 380 of 2,200 cycles, late shared loads 150
//     hand-over as registers, no fences                                       predicted 0.92, measured 1.29: the outputs became
//       the slower side (their operands now come through 12 loads, and O^T needs a transposed store)
//     tiles again, fences on the side of the outputs, places read once        predicted 1.0, measured 1.11 alone, 1.26 beside
//       gdn_intra (clocks and memory shared): 2,000 cycles on the chain, of which 640 are its matrix products
//   Tried     for batches: one block for all 128 columns and gdn_intra's work too, no workspace: two chains that compute
//             O^T themselves (192 registers), a solving warpgroup (104), a warpgroup of helpers (24). Passes the float64
//             check; its bits were not compared with these kernels'. 8 x 8,192 tokens: predicted 470 us, measured 1,125
//             (two kernels, same run: 1,071). The chains alone 643, the solver alone 545: they hardly overlap. Chains that
//             take turns: 1,164 beside 1,166 (without the solver 622 beside 627), so it is not that they run in phase
//   Clock     a batch runs at 1.47 to 1.49 GHz, batch 1 at 1.74, an idle chip at 1.98: 1,890 and 2,030 cycles a chunk
#pragma once

#include "backends/cuda/gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90 {

struct ScanStage {
  unsigned char k[2 * kTileBytes], q[2 * kTileBytes], v[kTileBytes], inverse[kTileBytes], scores[kTileBytes];
};
inline constexpr int kScanStageBytes = 7 * kTileBytes, kFactorBytes = 2 * kChunk * 4;

/// What a block works on: read once, since arguments at a computed index are slow to read.
struct ScanPlace {
  int sequence, head, key_head, half;
  int begin, end;              ///< chunks
  int first_token, end_token;

  __device__ __forceinline__ ChunkRows rows(int chunk) const {
    const int first = first_token + (chunk - begin) * kChunk;
    return {first, min(kChunk, end_token - first)};
  }
};

/// 2^g, then 2^(gamma - g), of a chunk's tokens.
__device__ __forceinline__ const float* chunk_factors(const GdnPrefillArgs& a, const ScanPlace& place, int chunk) {
  return a.work.factors + (static_cast<std::int64_t>(chunk) * a.value_heads + place.head) * 2 * kChunk;
}

/// Queues the loads of a chunk's tiles, and of its factors where there is room for them; one thread.
__device__ __forceinline__ void load_stage(const GdnPrefillArgs& a, const ScanPlace& place, int chunk, ScanStage& to,
                                           std::uint32_t full, float* factors) {
  const int row = place.rows(chunk).first;
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

/// Rows past the end of a sequence belong to its neighbour: its keys must not meet even a zero of ours. k: two
/// tiles; v: one. The threads of a warpgroup.
__device__ __forceinline__ void clear_rows(unsigned char* k, unsigned char* v, int count, int thread) {
  for (int i = thread; i < (kChunk - count) * 8; i += 128) {
    const int at = (count + i / 8) * 128 + i % 8 * 16;
    *reinterpret_cast<uint4*>(k + at) = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(k + kTileBytes + at) = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(v + at) = make_uint4(0, 0, 0, 0);
  }
  fence_engines();
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
  const int b = block / 2 / a.value_heads;
  return {b,
          head,
          head / (a.value_heads / a.key_heads),
          block % 2,
          a.chunk_begin[b],
          a.chunk_begin[b + 1],
          a.token_begin[b],
          a.token_begin[b + 1]};
}

/// The head's columns of this block in a [HV, K, V] state.
__device__ __forceinline__ std::int64_t state_offset(const ScanPlace& place) {
  return static_cast<std::int64_t>(place.head) * kDim * kDim + 64 * place.half;
}

/// After `done` chunks: copies S when a checkpoint is due.
__device__ __forceinline__ void keep_checkpoint(const GdnPrefillArgs& a, const ScanPlace& place, int done, bool is_last,
                                                const float (&s)[64], int warp, int lane) {
  if (!a.checkpoint_chunks || done % a.checkpoint_chunks || is_last) return;
  float* kept = a.checkpoints[place.sequence] +
                static_cast<std::int64_t>(done / a.checkpoint_chunks - 1) * a.value_heads * kDim * kDim + state_offset(place);
  for_each_state_element(warp, lane, [&](int i, int row, int column) { kept[row * kDim + column] = s[i]; });
}

inline constexpr int kScanThreads = 384, kScanStages = 3;

struct ScanShared {
  ScanStage stages[kScanStages];
  unsigned char state[2 * kTileBytes], deltas[kTileBytes], out[kTileBytes];
  float factors[kScanStages][2 * kChunk];
  std::uint64_t full[kScanStages], empty[kScanStages];
};
static_assert(sizeof(ScanShared) <= 232448, "one block for each multiprocessor");

/// Named barriers between the chain and the outputs.
enum ScanSignal : int { kChainOnly = 1, kStateReady, kStateFree, kDeltasReady, kDeltasFree };

/// Warp 8: loads every chunk once its stage is free and gdn_intra has published it.
__device__ __forceinline__ void load_all_stages(const GdnPrefillArgs& a, const ScanPlace& place, ScanShared& shared,
                                int lane) {
  int stage = 0, parity = 1, published = place.begin;  // the first round of a stage waits for nothing
  for (int chunk = place.begin; chunk < place.end; ++chunk) {
    while (a.overlapped && published <= chunk) {
      const int mine = published + lane;
      const bool is_ready = mine < place.end && read_published(a.work.ready + mine * a.key_heads + place.key_head) != 0;
      const unsigned waiting = ~__ballot_sync(0xffffffffu, is_ready);
      published += waiting ? __ffs(static_cast<int>(waiting)) - 1 : 32;
    }
    if (lane == 0) {
      if (a.overlapped) fence_engines_global();
      barrier_wait(shared_address(&shared.empty[stage]), parity);
      load_stage(a, place, chunk, shared.stages[stage], shared_address(&shared.full[stage]), shared.factors[stage]);
    }
    __syncwarp();
    if (++stage == kScanStages) stage = 0, parity ^= 1;
  }
}

__device__ __forceinline__ void run_chain(const GdnPrefillArgs& a, const ScanPlace& place, ScanShared& shared, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  float* state = a.states[place.sequence] + state_offset(place);
  float s[64];
  std::uint32_t rounded[8][4];
  for_each_state_element(warp, lane, [&](int i, int row, int column) { s[i] = state[row * kDim + column]; });
  round_state(s, rounded);
  const std::uint32_t v_at = swizzled(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
  const std::uint32_t state_tile = shared_address(shared.state), delta_tile = shared_address(shared.deltas);
  int stage = 0, parity = 0;
  for (int chunk = place.begin; chunk < place.end; ++chunk) {
    ScanStage& now = shared.stages[stage];
    const int count = place.rows(chunk).count;
    barrier_wait(shared_address(&shared.full[stage]), parity);
    if (count < kChunk) {
      clear_rows(now.k, now.v, count, thread);
      warpgroup_barrier(kChainOnly);
    }
    const std::uint32_t k = shared_address(now.k), v = shared_address(now.v), inverse = shared_address(now.inverse);
    const float* factors = shared.factors[stage];
    float x[32], u[32];
    products_begin();
    multiply_state(x, rounded, k);
    if (chunk > place.begin) pair_wait(kStateFree);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      store_matrices(state_tile + i / 4 * kTileBytes + fragment_address(warp, lane, 2 * (i % 4)), rounded[i]);
    }
    pair_arrive(kStateReady);
    float2 in[8], out_decay[8];
    std::uint32_t value[4][4], r[4][4], write[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) load_transposed(value[j], v + 16 * 128 * j + v_at);
    load_factors(factors, lane, in);
    load_factors(factors + kChunk, lane, out_decay);
    const float decay = factors[kChunk - 1];
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
    if (chunk > place.begin) pair_wait(kDeltasFree);
#pragma unroll
    for (int i = 0; i < 4; ++i) store_matrices(delta_tile + fragment_address(warp, lane, 2 * i), r[i]);
    pair_arrive(kDeltasReady);
    products_wait<0>();
    pin(s);
    __syncwarp();  // all lanes have read
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[stage]));
    round_state(s, rounded);
    keep_checkpoint(a, place, chunk + 1 - place.begin, chunk + 1 == place.end, s, warp, lane);
    if (++stage == kScanStages) stage = 0, parity ^= 1;
  }
  pair_wait(kStateFree);
  pair_wait(kDeltasFree);
  for_each_state_element(warp, lane, [&](int i, int row, int column) { state[row * kDim + column] = s[i]; });
}

/// Writes 64 x 64 outputs by way of a tile; a warp owns 16 rows, whole 128-byte lines.
__device__ __forceinline__ void store_outputs(const GdnPrefillArgs& a, const ScanPlace& place, ChunkRows rows,
                                              const float (&o)[32], std::uint32_t tile, int warp, int lane) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t m[4] = {pack_bf16(o[8 * j], o[8 * j + 1]), pack_bf16(o[8 * j + 2], o[8 * j + 3]),
                                pack_bf16(o[8 * j + 4], o[8 * j + 5]), pack_bf16(o[8 * j + 6], o[8 * j + 7])};
    store_matrices(tile + fragment_address(warp, lane, 2 * j), m);
  }
  __syncwarp();
  const int first = 16 * warp + lane / 8;
  unsigned short* out = a.out + (rows.first + first) * a.out_stride + place.head * kDim + 64 * place.half + 8 * (lane % 8);
  uint4 data[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) data[i] = load_shared_16(tile + swizzled(first + 4 * i, lane % 8));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + 4 * i < rows.count) store_global_16(out + 4 * i * a.out_stride, data[i]);
  }
  __syncwarp();
}

/// O = scale 2^g Q S + A' U'. The tiles of S^T and U'^T come by ordinary stores: the fence is on this side, which has time.
__device__ __forceinline__ void run_outputs(const GdnPrefillArgs& a, const ScanPlace& place, ScanShared& shared, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  const std::uint32_t state = shared_address(shared.state), deltas = shared_address(shared.deltas);
  int stage = 0, parity = 0;
  for (int chunk = place.begin; chunk < place.end; ++chunk) {
    const std::uint32_t q = shared_address(shared.stages[stage].q), scores = shared_address(shared.stages[stage].scores);
    float o[32];
    barrier_wait(shared_address(&shared.full[stage]), parity);
    const float* factors = shared.factors[stage] + 16 * warp + lane / 4;
    const float factor0 = a.scale * factors[0], factor1 = a.scale * factors[8];
    pair_wait(kStateReady);
    fence_engines();
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
    fence_engines();
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x64(o, operand(scores + 32 * i), operand(deltas + 32 * i), 1);
    products_commit();
    products_wait<0>();
    pin(o);
    pair_arrive(kDeltasFree);
    __syncwarp();  // all lanes have read
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[stage]));
    store_outputs(a, place, place.rows(chunk), o, shared_address(shared.out), warp, lane);
    if (++stage == kScanStages) stage = 0, parity ^= 1;
  }
}

__global__ void __launch_bounds__(kScanThreads, 1) gdn_scan_kernel(const __grid_constant__ GdnPrefillArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  ScanShared& shared = *reinterpret_cast<ScanShared*>(memory);
  const int thread = threadIdx.x;
  const ScanPlace place = scan_place(a, blockIdx.x);
  if (thread == 0) {
    for (int i = 0; i < kScanStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), 8);  // one arrival of each warp that computes
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (place.begin == place.end) {
    // Nothing to do, but the end of this kernel must not come before gdn_intra's.
  } else if (thread < 128) {
    set_registers_up<240>();
    run_chain(a, place, shared, thread);
  } else if (thread < 256) {
    run_outputs(a, place, shared, thread - 128);
  } else {
    set_registers_down<40>();
    if (thread < 288) load_all_stages(a, place, shared, thread - 256);
  }
  if (a.overlapped) wait_for_previous_kernel();
}

}  // namespace cairn::gpu::sm90
