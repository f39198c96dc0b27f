// gdn_scan: walks the chunks of a sequence with 64 of the 128 value columns of one state, and writes their outputs.
//   Computes  W = T' (V - 2^g K S);  O = scale 2^g Q S + A' W;  S <- 2^gamma S + K^T W. W = 2^(h - g) U' of spec 2;
//             h, T' and A' as in gdn_intra
//   Launch    one block for each (sequence, value head, half). Warpgroup 0: the chain S -> X -> W -> S, with S^T
//             [64 columns x 128 rows] in registers in f32, so that every product has its left side in registers.
//             Warpgroup 1: the outputs. Warp 8: waits for gdn_intra's flags (32 chunks at a look) and queues the loads
//   Hand-over rounded S^T [64 columns x 128] and W^T [64 x 64] through shared tiles, once a chunk each
//   Traffic   51 KB per chunk and block, mostly from L2
//   Numerics  S f32; S, R = V - 2^g K S and W are rounded to bf16 as operands; all sums f32 in a fixed order. Of tokens
//             whose h is not gamma S gets 2^-96 U' where spec 2 has less
//   Versions  (H200, batch 1, us a chunk)
//     one warpgroup for chain and outputs, loads and flags by its thread 0: predicted 0.75, measured 2.87 (2.1 fenced
//       less); its kernel alone 1.34: 850 instructions of one warp a scheduler with their latencies, not 1,024 cycles
//     outputs on a second warpgroup, S and U' through swizzled tiles: predicted 0.8, measured 1.23: the two fences for
//       the matrix engine cost 380 of 2,200 cycles, late shared loads 150
//     hand-over as registers, no fences: predicted 0.92, measured 1.29: the outputs became the slower side (their
//       operands now come through 12 loads, and O^T needs a transposed store)
//     tiles again, fences on the side of the outputs, places read once: predicted 1.0, measured 1.11 alone, 1.26 beside
//       gdn_intra (clocks and memory shared): 2,000 cycles on the chain, of which 640 are its products
//     operands from uniform registers, T' without zeros, outputs by the copy engine; values read before the products
//       with S, S handed over after those of T': predicted 0.95, measured 1.00 alone (1.06 before, same run)
//     W in place of U': one rounding and no gates between T' R and S: predicted 0.96 of the time, measured 0.92 to 0.94
//       (131,072 tokens 1,995 us for 2,134, 4,096 tokens 76 for 83)
//     operands of T' as gdn_heads has them, 8 instructions fewer: 0.99 (16,384 tokens 253 for 255, 131,072 2,080 for
//       2,098)
//   Tried     A' formed by the warpgroup of the outputs: 1.48, with Q in registers 1.60. Its products run beside those
//             with S; the chain's loads and stores of shared memory between then take 1,000 cycles, not 400. S handed
//             over before the products: 1.11.
//             Of the present form: V as f32 and S decayed before the wait for X, V and factors loaded after X is
//             asked for, R in two parts, S rounded in two parts, waiting earlier for the next chunk: each 3 to 8 %
//             slower, and a test for the short chunk in place of one for its tokens too, which is not understood.
//             Products with S in two groups: the same. Other addresses of the code (0.5 to 6 KB on): the same
//             Chain and outputs in two blocks of a cluster, gdn_intra beside both, the same bits; predicted 0.6 us a
//             chunk. S and W handed over by st.async as registers are: 1.25 where this has 1.0 (24 KB a chunk take the
//             way between two multiprocessors 1,700 cycles). W alone, S kept by both: 1.0, and 0.86 without gdn_intra
//             beside it; K loaded to both blocks at once: 1.05 and 0.92. The chain by itself waits 1,300 cycles for
//             its own products
//             For batches, one block for all 128 columns and gdn_intra's work too, no workspace: two chains that
//             compute O^T themselves (192 registers), a solving warpgroup (104), a warpgroup of helpers (24). Passes
//             the float64 check; its bits were not compared with these kernels'. 8 x 8,192 tokens: predicted 470 us,
//             measured 1,125 (two kernels, same run: 1,071). The chains alone 643, the solver alone 545: they hardly
//             overlap. Chains that take turns: 1,164 beside 1,166, so it is not that they run in phase
//   Clock     a batch runs at 1.47 to 1.49 GHz, batch 1 at 1.74, an idle chip at 1.98
#pragma once

#include "backends/cuda/gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90 {

struct ScanStage {
  unsigned char k[2 * kTileBytes], q[2 * kTileBytes], v[kTileBytes];
  LowerOperand inverse;
  LowerTile scores;
};
/// What a block works on: read once, since arguments at a computed index are slow to read.
struct ScanPlace {
  int sequence, head, key_head, half;
  int begin, end;  ///< chunks
  int first_token, end_token;

  __device__ __forceinline__ ChunkRows rows(int chunk) const {
    const int first = first_token + (chunk - begin) * kChunk;
    return {first, min(kChunk, end_token - first)};
  }
};

/// Where the workspace has what belongs to a chunk and the place's head.
__device__ __forceinline__ std::int64_t work_index(const GdnPrefillArgs& a, const ScanPlace& place, int chunk) {
  return static_cast<std::int64_t>(chunk) * a.value_heads + place.head;
}

/// Rows past the end of a sequence belong to its neighbour: its keys must not meet even a zero of ours. Tiles of 64
/// columns of keys, and of values. The threads of a warpgroup.
__device__ __forceinline__ void clear_rows(unsigned char* k0, unsigned char* k1, unsigned char* v, int count,
                                           int thread) {
  for (int i = thread; i < (kChunk - count) * 8; i += 128) {
    const int at = (count + i / 8) * 128 + i % 8 * 16;
    *reinterpret_cast<uint4*>(k0 + at) = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(k1 + at) = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(v + at) = make_uint4(0, 0, 0, 0);
  }
  fence_engines();
}

/// X^T = S^T K^T of a chunk: 8 products, committed.
__device__ __forceinline__ void multiply_state(float (&x)[32], const std::uint32_t (&state)[8][4], std::uint64_t keys) {
#pragma unroll
  for (int i = 0; i < 8; ++i) multiply_64x64(x, state[i], columns(keys, i), i > 0);
  products_commit();
}

/// R^T = V^T - 2^g X^T as the left operand of products kFirst to kLast - 1 of 16 tokens each. Cleared rows of K and V
/// give zeros.
template <int kFirst, int kLast>
__device__ __forceinline__ void subtract_recalled(const std::uint32_t (&value)[4][4], const float2 (&in)[8],
                                                  const float (&x)[32], std::uint32_t (&r)[4][4]) {
#pragma unroll
  for (int j = 2 * kFirst; j < 2 * kLast; ++j) {  // rows lane / 4 and + 8 of the 8 x 8 piece j
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t pair = value[j / 2][j % 2 * 2 + i];
      r[j / 2][j % 2 * 2 + i] =
          pack_bf16(low_bf16(pair) - in[j].x * x[4 * j + 2 * i], high_bf16(pair) - in[j].y * x[4 * j + 2 * i + 1]);
    }
  }
}

/// W^T rounded, as left operands.
__device__ __forceinline__ void round_deltas(const float (&w)[2][16], std::uint32_t (&rounded)[4][4]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      rounded[j / 2][j % 2 * 2 + i] = pack_bf16(w[j / 4][j % 4 * 4 + 2 * i], w[j / 4][j % 4 * 4 + 2 * i + 1]);
  }
}

/// Factors of 8 kCount tokens, from a multiple of 16 on: of this thread's 8 j + 2 (lane % 4), and the next.
template <int kCount>
__device__ __forceinline__ void load_factors(const float* factors, int lane, float2 (&of)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; j += 2) {
    const float4 both = *reinterpret_cast<const float4*>(factors + 8 * j + 4 * (lane % 4));
    of[j] = make_float2(both.x, both.y), of[j + 1] = make_float2(both.z, both.w);
  }
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

/// Where the first of a thread's 64 state elements lies in a [K, V] state, from the half's first column.
__device__ __forceinline__ int first_state_element(int warp, int lane) {
  return 2 * (lane % 4) * kDim + 16 * warp + lane / 4;
}
/// Calls visit(element of s, distance from the first) for all 64: constants, so that one address serves them.
template <class Visit>
__device__ __forceinline__ void for_each_state_distance(const Visit& visit) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) visit(4 * j + i, (8 * j + i % 2) * kDim + 8 * (i / 2));
  }
}

/// After `done` chunks, not the last: copies S when a checkpoint is due.
__device__ __forceinline__ void keep_checkpoint(const GdnPrefillArgs& a, const ScanPlace& place, int done,
                                                const float (&s)[64], int warp, int lane) {
  if (!a.checkpoint_chunks || done % a.checkpoint_chunks) return;
  float* kept = a.checkpoints[place.sequence] + first_state_element(warp, lane) + state_offset(place) +
                static_cast<std::int64_t>(done / a.checkpoint_chunks - 1) * a.value_heads * kDim * kDim;
  for_each_state_distance([&](int i, int distance) { kept[distance] = s[i]; });
}

inline constexpr int kScanThreads = 384, kScanStages = 3;

struct ScanShared {
  ScanStage stages[kScanStages];
  unsigned char state[2 * kTileBytes], deltas[kTileBytes], out[kTileBytes];
  ChunkFactors factors[kScanStages];
  std::uint64_t full[kScanStages], empty[kScanStages];
};
static_assert(sizeof(ScanShared) <= 232448, "one block for each multiprocessor");

/// Named barriers between the chain and the outputs.
enum ScanSignal : int { kChainOnly = 1, kStateReady, kStateFree, kDeltasReady, kDeltasFree };

/// Queues the loads of a chunk's tiles and factors; one thread.
__device__ __forceinline__ void load_stage(const GdnPrefillArgs& a, const ScanPlace& place, int chunk,
                                           ScanShared& shared, int stage) {
  ScanStage& to = shared.stages[stage];
  const std::uint32_t full = shared_address(&shared.full[stage]);
  const int row = place.rows(chunk).first;
  const std::int64_t at = work_index(a, place, chunk);
  barrier_expect(full, sizeof(ScanStage) - kLowerOperandZeros + sizeof(ChunkFactors));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    load_tile(shared_address(to.k) + i * kTileBytes, &a.k, place.key_head * kDim + 64 * i, row, full);
    load_tile(shared_address(to.q) + i * kTileBytes, &a.q, place.key_head * kDim + 64 * i, row, full);
  }
  load_tile(shared_address(to.v), &a.v, place.head * kDim + 64 * place.half, row, full);
  load_lower(to.inverse, a.work.inverses + at, full);
  load_bytes(shared_address(&to.scores), a.work.scores + at, sizeof(LowerTile), full);
  load_bytes(shared_address(&shared.factors[stage]), a.work.factors + at * 2 * kChunk, sizeof(ChunkFactors), full);
}

/// Warp 8: loads every chunk once its stage is free and gdn_intra has published it. Lane 0 loads what other lanes have
/// seen published: it is the vote that orders them (a __syncwarp after it: 2.7 % slower).
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
      load_stage(a, place, chunk, shared, stage);
    }
    __syncwarp();
    if (++stage == kScanStages) stage = 0, parity ^= 1;
  }
}

__device__ __forceinline__ void run_chain(const GdnPrefillArgs& a, const ScanPlace& place, ScanShared& shared,
                                          int thread) {
  const int warp = uniform_warp() % 4, lane = thread % 32;
  float* state = a.states[place.sequence] + state_offset(place) + first_state_element(warp, lane);
  float s[64];
  std::uint32_t rounded[8][4];
  for_each_state_distance([&](int i, int distance) { s[i] = state[distance]; });
  round_state(s, rounded);
  const std::uint32_t v_at = swizzled(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
  const std::uint32_t state_tile = shared_address(shared.state), delta_tile = shared_address(shared.deltas);
  const auto wait_for_tiles = [&](int chunk, int stage, int parity) {
    barrier_wait(shared_address(&shared.full[stage]), parity);
    const int count = place.rows(chunk).count;
    if (count == kChunk) return;
    ScanStage& to = shared.stages[stage];
    clear_rows(to.k, to.k + kTileBytes, to.v, count, thread);
    warpgroup_barrier(kChainOnly);
  };
  int stage = 0, parity = 0, used = 0;
  wait_for_tiles(place.begin, stage, parity);
  for (int chunk = place.begin; chunk < place.end; ++chunk) {
    ScanStage& now = shared.stages[stage];
    const std::uint32_t k = shared_address(now.k), v = shared_address(now.v);
    const std::uint32_t inverse = shared_address(&now.inverse) >> 4;
    const ChunkFactors& factors = shared.factors[stage];
    float x[32], w[2][16];
    float2 in[8];
    std::uint32_t value[4][4], r[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) load_transposed(value[j], v + 16 * 128 * j + v_at);
    load_factors(factors.in, lane, in);
    products_begin();
    multiply_state(x, rounded, operand(k));
    if (chunk > place.begin) {  // what is left of the last one
      warp_arrive(shared_address(&shared.empty[used]), lane);
      keep_checkpoint(a, place, chunk - place.begin, s, warp, lane);
    }
    const float decay = factors.in[kChunk - 1];
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= decay;  // here, where there is time
    pin(s);
    products_wait<0>();
    pin(x);
    subtract_recalled<0, 4>(value, in, x, r);
    products_begin();
#pragma unroll
    for (int i = 0; i < 2; ++i) multiply_64x32(w[0], r[i], upper_columns(inverse, i), i > 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x32(w[1], r[i], lower_columns(inverse, i), i > 0);
    products_commit();
    if (chunk > place.begin) pair_wait(kStateFree);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      store_matrices(state_tile + i / 4 * kTileBytes + fragment_address(warp, lane, 2 * (i % 4)), rounded[i]);
    }
    pair_arrive(kStateReady);
    products_wait<0>();
    pin(w[0]), pin(w[1]);
    round_deltas(w, r);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x128_transposed(s, r[i], further(operand_transposed(k), 2048 * i));
    products_commit();
    if (chunk > place.begin) pair_wait(kDeltasFree);
#pragma unroll
    for (int i = 0; i < 4; ++i) store_matrices(delta_tile + fragment_address(warp, lane, 2 * i), r[i]);
    pair_arrive(kDeltasReady);
    used = stage;
    if (++stage == kScanStages) stage = 0, parity ^= 1;
    if (chunk + 1 < place.end) wait_for_tiles(chunk + 1, stage, parity);
    products_wait<0>();
    pin(s);
    round_state(s, rounded);
  }
  pair_wait(kStateFree);
  pair_wait(kDeltasFree);
  for_each_state_distance([&](int i, int distance) { state[distance] = s[i]; });
}

/// Writes 64 x 64 outputs by way of a tile; a warp owns 16 rows. Whole ones go by the copy engine, which reads the tile
/// later; of the last ones of a sequence, 128-byte lines. kOthers: tiles that take turns with this one.
template <int kOthers>
__device__ __forceinline__ void store_outputs(const GdnPrefillArgs& a, const ScanPlace& place, ChunkRows rows,
                                              const float (&o)[32], std::uint32_t tile, int warp, int lane) {
  if (lane == 0) stores_wait_read<kOthers>();
  __syncwarp();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t m[4] = {pack_bf16(o[8 * j], o[8 * j + 1]), pack_bf16(o[8 * j + 2], o[8 * j + 3]),
                                pack_bf16(o[8 * j + 4], o[8 * j + 5]), pack_bf16(o[8 * j + 6], o[8 * j + 7])};
    store_matrices(tile + fragment_address(warp, lane, 2 * j), m);
  }
  const int column = place.head * kDim + 64 * place.half;
  if (16 * warp + 16 <= rows.count) {
    fence_engines();
    __syncwarp();
    if (lane == 0) {
      store_tile(&a.out_map, column, rows.first + 16 * warp, tile + 16 * 128 * warp);
      stores_commit();
    }
    return;
  }
  if (lane == 0) stores_commit();  // of nothing: a group for each tile
  __syncwarp();
  const int first = 16 * warp + lane / 8;
  unsigned short* out = a.out + (rows.first + first) * a.out_stride + column + 8 * (lane % 8);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 data = load_shared_16(tile + swizzled(first + 4 * i, lane % 8));
    if (first + 4 * i < rows.count) store_global_16(out + 4 * i * a.out_stride, data);
  }
  __syncwarp();
}

/// Q times the transpose of a state: 8 products, committed.
__device__ __forceinline__ void multiply_queries(float (&o)[32], std::uint64_t q, std::uint64_t state) {
#pragma unroll
  for (int i = 0; i < 8; ++i) multiply_64x64(o, columns(q, i), columns(state, i), i > 0);
  products_commit();
}

/// A' as the left operand of 4 products of 16 tokens.
__device__ __forceinline__ void load_scores(std::uint32_t (&scores)[4][4], const LowerTile& tile, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i <= warp)
      load_matrices(scores[i], block_address(tile, warp, i, lane));
    else
      scores[i][0] = scores[i][1] = scores[i][2] = scores[i][3] = 0;
  }
}

/// O = scale 2^g Q S + A' W. The tiles of S^T and W^T come by ordinary stores: the fence is on this side, which has
/// time.
__device__ __forceinline__ void run_outputs(const GdnPrefillArgs& a, const ScanPlace& place, ScanShared& shared,
                                            int thread) {
  const int warp = uniform_warp() % 4, lane = thread % 32;
  const std::uint64_t state = operand(shared_address(shared.state)), deltas = operand(shared_address(shared.deltas));
  int stage = 0, parity = 0;
  for (int chunk = place.begin; chunk < place.end; ++chunk) {
    const ChunkFactors& factors = shared.factors[stage];
    float o[32];
    std::uint32_t scores[4][4];
    const ScanStage& now = shared.stages[stage];
    barrier_wait(shared_address(&shared.full[stage]), parity);
    const float factor0 = factors.read[gate_place(16 * warp + lane / 4)],
                factor1 = factors.read[gate_place(16 * warp + lane / 4 + 8)];
    load_scores(scores, now.scores, warp, lane);
    pair_wait(kStateReady);
    fence_engines();
    products_begin();
    multiply_queries(o, operand(shared_address(now.q)), state);
    products_wait<0>();
    pin(o);
    pair_arrive(kStateFree);
    warp_arrive(shared_address(&shared.empty[stage]), lane);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      o[4 * j] *= factor0, o[4 * j + 1] *= factor0, o[4 * j + 2] *= factor1, o[4 * j + 3] *= factor1;
    pin(o);
    pair_wait(kDeltasReady);
    fence_engines();
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x64(o, scores[i], further(deltas, 32 * i), 1);
    products_commit();
    products_wait<0>();
    pin(o);
    pair_arrive(kDeltasFree);
    store_outputs<0>(a, place, place.rows(chunk), o, shared_address(shared.out), warp, lane);
    if (++stage == kScanStages) stage = 0, parity ^= 1;
  }
  if (lane == 0) stores_wait<0>();
}

__global__ void __launch_bounds__(kScanThreads, 1) gdn_scan_kernel(const __grid_constant__ GdnPrefillArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  ScanShared& shared = *reinterpret_cast<ScanShared*>(memory);
  const int thread = threadIdx.x, group = uniform_warp() / 4;
  const ScanPlace place = scan_place(a, blockIdx.x);
  if (thread == 0) {
    for (int i = 0; i < kScanStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init_for_warps(shared_address(&shared.empty[i]), 8);
    }
    fence_barrier_init();
  }
  for (int i = 0; i < kScanStages; ++i) clear_zeros(shared.stages[i].inverse, thread);
  fence_engines();
  __syncthreads();
  if (place.begin == place.end) {
    // Nothing to do, but the end of this kernel must not come before gdn_intra's.
  } else if (group == 0) {
    set_registers_up<240>();
    run_chain(a, place, shared, thread);
  } else if (group == 1) {
    run_outputs(a, place, shared, thread - 128);
  } else {
    set_registers_down<40>();
    if (thread < 288) load_all_stages(a, place, shared, thread - 256);
  }
  if (a.overlapped) wait_for_previous_kernel();
}

}  // namespace cairn::gpu::sm90
