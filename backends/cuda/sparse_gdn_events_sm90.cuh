// sparse_gdn_events: stage 3 of SparseGDN, the walk over the kept chunks of a head with 64 of the 128 value columns of
// its state.
//   Computes  at an event c with a gap of decay d before it:  U' = T' (V - 2^(g + d) K S), which is T' V - W S of
//             spec 3.3 with W = T' diag(2^(g + d)) K never formed;  S <- 2^(gamma + d) S + K^T (2^(gamma - g) U')
//   Launch    one block for each (sequence, value head, half), high tiers first. Warpgroup 0: the chain S -> R -> U' ->
//             S, with S^T [64 columns x 128 rows] in registers in f32, so that every product has its left side in
//             registers. The warps beside it (sparse_gdn_event_roles_sm90.cuh): 4: what the events are, and the loads.
//             5: T' as a tile, factors. 6: stores U' in the place of the outputs, which read it there before they
//             overwrite it. 7: stores the states that outputs read. Both publish how far they have come
//   Traffic   per event and block: k 16 KB, v 8, T' 3.5, U' 8; a state 16 KB where one is read
//   Numerics  S f32; S, R = V - 2^(g + d) K S, U' and 2^(gamma - g) U' are rounded to bf16 as operands; the two blocks
//             in a row of T' are summed in f32
//   Predicted 1,000 cycles an event, 568 of them matrix products: 1.25 ms for the 1,946 events of a high tier at 131,072
//             tokens. Measured 0.84 us an event: where the rest goes is not known
//   Versions  (H200, 131,072 tokens, 16/32 heads, keep 28.5 %: ms of the walk alone, and of the operator)
//     with W = T' diag(2^(g + d)) K formed at every event
//       one preparing warpgroup, one storing warp that publishes every event: 2.32: each release waits about as long as
//         an event
//       two preparing warpgroups, a release every 8 events, fences by the storer: 1.92
//       U' and states stored by warps of their own: 1.87 to 1.97, operator 2.54
//       unrolled over the 4 stages, so that descriptors are constants: 1.70, operator 5.4, not explained (the code of
//         the loops then outgrows 32 KB: perhaps the instruction caches)
//       descriptors in uniform registers, since the event's index comes out of a shuffle: 1.80, operator 2.50
//     W not formed: no preparing warpgroups
//       4 tiles for U', 2 for states, published 4 events late; all of T' multiplied: 1.73, operator 2.36
//       the same without fetches to L2: operator 2.32
//       only the 7 blocks of T', in sums of their own: 1.63, operator 2.30. This form
//   Tried     the selector and the walk launched early, progress cleared by sparse_intra: operator 2.41 against 2.30
#pragma once

#include "backends/cuda/sparse_gdn_event_roles_sm90.cuh"

namespace cairn::gpu::sm90::sparse {

/// Gives the rounded state to warp 7.
__device__ __forceinline__ void hand_over_state(EventShared& shared, const std::uint32_t (&rounded)[8][4], int states,
                                                int warp, int lane) {
  const int tile = states % kStateTiles;
  barrier_wait(shared_address(&shared.state_free[tile]), (states / kStateTiles & 1) ^ 1);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    store_matrices(shared_address(shared.state[tile]) + i / 4 * kTileBytes + fragment_address(warp, lane, 2 * (i % 4)),
                   rounded[i]);
  }
  warp_arrive(shared_address(&shared.state_ready[tile]), lane);
}

/// (K S)^T of an event: 8 products, committed.
__device__ __forceinline__ void begin_prediction(float (&x)[32], const std::uint32_t (&rounded)[8][4],
                                                 const EventStage& stage) {
  products_begin();
#pragma unroll
  for (int i = 0; i < 8; ++i)
    multiply_64x64(x, rounded[i], operand(shared_address(stage.k) + i / 4 * kTileBytes + i % 4 * 32), i > 0);
  products_commit();
}

/// The lane's places in a tile of [64 tokens x 64 columns] as 8 x 8 matrices that are transposed on their way.
__device__ __forceinline__ std::uint32_t transposed_address(int warp, int lane) {
  return swizzled(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
}

/// V^T of a tile, laid out as the sums of a product.
__device__ __forceinline__ void read_values(float (&v)[32], std::uint32_t at) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    std::uint32_t words[4];
    load_transposed(words, at + 16 * 128 * j);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[8 * j + 2 * i] = low_bf16(words[i]), v[8 * j + 2 * i + 1] = high_bf16(words[i]);
  }
}

/// A lane's factors of tokens 8 j + 2 (lane % 4) and the one after it.
__device__ __forceinline__ void read_factors(float2 (&near)[8], const float* factors, int lane) {
#pragma unroll
  for (int j = 0; j < 8; ++j) near[j] = *reinterpret_cast<const float2*>(factors + 8 * j + 2 * (lane % 4));
}

/// The index of the event comes out of a shuffle: known to be the same for a warp, so descriptors are computed once
/// for it, not by every lane.
/// One long function: what an event needs lives in 202 registers, and products run across its parts.
__device__ __forceinline__ void run_chain(const SparsePrefillArgs& a, const SparseSelection& selection,
                                          const EventPlace& place, EventShared& shared, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  float* state = a.states[place.sequence] + static_cast<std::int64_t>(place.head) * kDim * kDim + 64 * place.half;
  float s[64], x[32];
  std::uint32_t rounded[8][4];
  for_each_state_element(warp, lane, [&](int i, int row, int column) { s[i] = state[row * kDim + column]; });
  round_state(s, rounded);
  int states = 0;
  bool is_read = true;  // the state in `rounded` has a reader
  const std::uint32_t tile_at = transposed_address(warp, lane);
  if (place.events > 0) barrier_wait(shared_address(&shared.ready[0]), 0);  // else the product is for nothing
  begin_prediction(x, rounded, shared.stages[0]);
  for (int event = 0; event < place.events; ++event) {
    const int now = __shfl_sync(0xffffffffu, event, 0), at = now % kEventStages, next = (now + 1) % kEventStages;
    EventStage& stage = shared.stages[at];
    const std::uint32_t k = shared_address(stage.k), transform = shared_address(stage.transform);
    float v[32];
    read_values(v, shared_address(stage.v) + tile_at);
    float2 before[8];
    read_factors(before, stage.factors.before, lane);
    const float whole = stage.factors.whole;
    if (is_read) hand_over_state(shared, rounded, states++, warp, lane);
    is_read = stage.info.snapshot >= 0;
    pin(v);  // unpacked here, while the product runs
    products_wait<0>();
    pin(x);
    std::uint32_t r[4][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = 4 * j + 2 * i;
        r[j / 2][j % 2 * 2 + i] = pack_bf16(v[at] - before[j].x * x[at], v[at + 1] - before[j].y * x[at + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) pin(r[i]);
    products_begin();
    float y0[16], y1[16], y2[16], y3[8];  // y_i: what column i of T' gives to tokens from 16 i on
    multiply_64x32(y0, r[0], operand(transform));
    multiply_64x32(y1, r[1], operand(transform + 16 * 128 + 32));
    multiply_64x32(y2, r[2], operand(transform + 32 * 128 + 64));
    multiply_64x16(y3, r[3], operand(transform + 48 * 128 + 96));
    products_commit();
    float2 after[8];
    read_factors(after, stage.factors.after, lane);
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= whole;
    products_wait<0>();
    pin(y0), pin(y1), pin(y2), pin(y3);
    float z[32];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      z[i] = y0[i], z[8 + i] = y0[8 + i] + y1[i], z[16 + i] = y1[8 + i] + y2[i], z[24 + i] = y2[8 + i] + y3[i];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        r[j / 2][j % 2 * 2 + i] = pack_bf16(z[4 * j + 2 * i] * after[j].x, z[4 * j + 2 * i + 1] * after[j].y);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) pin(r[i]);
    pin(s);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x128_transposed(s, r[i], operand_transposed(k + 2048 * i));
    products_commit();
    const int tile = now % kDeltaTiles;
    barrier_wait(shared_address(&shared.u_free[tile]), (event / kDeltaTiles & 1) ^ 1);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      std::uint32_t u[4];
      round_sums(z, j, u);
      store_transposed(shared_address(shared.u[tile]) + 16 * 128 * j + tile_at, u);
    }
    warp_arrive(shared_address(&shared.u_ready[tile]), lane);
    if (event + 1 < place.events) barrier_wait(shared_address(&shared.ready[next]), (event + 1) / kEventStages & 1);
    products_wait<0>();
    pin(s);
    warp_arrive(shared_address(&shared.empty[at]), lane);
    round_state(s, rounded);
    begin_prediction(x, rounded, shared.stages[next]);  // after the last event for nothing
  }
  products_wait<0>();
  pin(x);
  if (is_read) hand_over_state(shared, rounded, states, warp, lane);
  const int last = place.events > 0 ? selection.event_chunk[place.first_event + place.events - 1] : -1;
  const float decay = exp2_fast(sum_gap(a, place, last + 1, place.chunks));
  for_each_state_element(warp, lane, [&](int i, int row, int column) { state[row * kDim + column] = s[i] * decay; });
}

/// Blocks: rows from the first tier on, then sequences, heads of the group, halves.
template <Walk kWalk>
__global__ void __launch_bounds__(kEventThreads, 1) sparse_events_kernel(const __grid_constant__ SparsePrefillArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  EventShared& shared = *reinterpret_cast<EventShared*>(memory);
  const int thread = threadIdx.x, lane = thread % 32, per = a.per_group(), block = blockIdx.x;
  const int sequence = block / (2 * per) % a.select.sequence_count, row = block / (2 * per) / a.select.sequence_count;
  const SparseSelection s = selection_of(a.select, sequence);
  const EventPlace place = event_place(a, s, sequence, row, block / 2 % per, block % 2);
  let_next_kernel_start();
  if (place.chunks == 0) return;
  for (int i = thread; i < kEventStages * kTileBytes / 16; i += kEventThreads) {  // the blocks that are dropped stay so
    *reinterpret_cast<uint4*>(shared.stages[i % kEventStages].transform + i / kEventStages * 16) =
        make_uint4(0, 0, 0, 0);
  }
  if (thread == 0) {
    for (int i = 0; i < kEventStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init_for_warps(shared_address(&shared.ready[i]), 1);
      barrier_init_for_warps(shared_address(&shared.empty[i]), 4);
    }
    for (int i = 0; i < kDeltaTiles; ++i) {
      barrier_init_for_warps(shared_address(&shared.u_ready[i]), 4);
      barrier_init(shared_address(&shared.u_free[i]), 1);
    }
    for (int i = 0; i < kStateTiles; ++i) {
      barrier_init_for_warps(shared_address(&shared.state_ready[i]), 4);
      barrier_init(shared_address(&shared.state_free[i]), 1);
    }
    fence_barrier_init();
  }
  fence_engines();
  __syncthreads();
  const int role = __shfl_sync(0xffffffffu, thread / 32, 0);  // known to be the same for a warp
  if (role < 4) {
    run_chain(a, s, place, shared, thread);
  } else if (role == 4) {
    load_events<kWalk>(a, s, place, shared, lane);
  } else if (role == 5) {
    prepare_events(place, shared, lane);
  } else if (role == 6) {
    store_deltas(a, s, place, shared, lane);
  } else {
    store_states<kWalk>(a, s, place, shared, lane);
  }
}

}  // namespace cairn::gpu::sm90::sparse
