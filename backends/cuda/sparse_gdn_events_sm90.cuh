// sparse_gdn_events: stage 3 of SparseGDN, the walk over the kept chunks of a head with 64 of the 128 value columns of
// its state.
//   Computes  at an event c with a gap of decay d before it:  U' = T' V - (T' diag(2^(g + d))) (K S), the T' V - W S
//             of spec 3.3 with W = T' diag(2^(g + d)) K never formed;  S <- 2^(gamma + d) S + K^T U'. T' and U' are the
//             spec's with rows times 2^e, e = max(gamma - g, -64)
//   Launch    one block for each (sequence, value head, half), high tiers first. Warpgroup 0 (240 registers): the chain
//             S -> X = K S -> U' -> S, with S^T [64 columns x 128 rows] in registers in f32, so that what comes out of
//             a product is the left side of the next one. The warps beside it (sparse_gdn_event_roles_sm90.cuh): 4, 9:
//             loads; 5, 10: factors and the scaled T'; 6: stores U' in the place of the outputs, which read it there
//             before they overwrite it; 7: stores the states that outputs read; 8: publishes how far both have come
//   Traffic   per event and block: k 16 KB, v 8, T' 3.5, U' 8; a state 16 KB where one is read
//   Numerics  S f32; S, X, T' diag(2^(g + d)) and U' are rounded to bf16 as operands; the two blocks in a row of T' are
//             summed in f32. Of tokens with gamma - g < -96 S gets 2^-96 of the spec's U' where it has less there
//   Predicted 1,200 cycles an event (0.65 us), 624 of them matrix products. Measured 0.74 us alone, 0.78 before (H200)
//   Versions  (H200, 131,072 tokens, 16/32 heads, keep 28.5 %: ms of the walk alone, and of the operator)
//     with W formed at every event: 2.32 to 1.80, operator 2.50
//     W not formed, R = V - 2^(g + d) K S, one warp loads and fetches to L2: 1.63 to 1.65, operator 2.25
//       clock stamps: the chain is late nowhere, and so were forms with two thirds of its instructions (1.67 to 1.77):
//       the loading warp takes 1,400 of 1,550 cycles an event, 5 copies and 5 fetches of 100 to 120 cycles each the
//       same without fetches to L2: 1.56, operator 2.19 (of all chunks 2.88 against 3.18: what is fetched early is
//         gone again when outputs run beside)
//       loads by two warps, fetches by a third, publishing by a fourth: 1.56, operator 2.18 to 2.21
//     T' V and T' diag(2^(g + d)) X as two products, no R; T' in matrices that products take as they are; operands of
//       one addition; free tiles waited for by the preparing warp; 5 stages; no fetches: 1.52 to 1.57, operator 2.18
//     rows of T' times 2^e: U' is rounded once, S takes it as it is: 1.44 to 1.45 beside 1.57, the operator 25 us less
//   Tried     the selector and the walk launched early, progress cleared by sparse_intra: operator 2.41 against 2.30.
//             W formed by two warpgroups beside the chain (M = 128 keys by N = 32 tokens, so 112 cycles of products),
//             T' V too: predicted 0.50 us an event, measured 1.13: an event takes them 1,580 cycles one after the
//             other. U' and states stored from registers, as matrices that outputs take as they are: 2.0 ms; a store of
//             4 bytes a lane takes 22 to 26 cycles. A chunk in two halves of 32 tokens: 1.87 to 1.94
//             One copy of T' in the outputs for both halves, the one that overwrites it counts what the other has read:
//             right, 35 us less at 131,072 tokens, but 49,152 take 990 us in place of 830, and a walk over all chunks
//             2.60 in place of 1.63: stores to lines that another multiprocessor has just read. The halves as a
//             cluster: 65,536 tokens 0.85 ms in place of 0.74, with keys and T' loaded to both 0.95
#pragma once

#include "backends/cuda/sparse_gdn_event_roles_sm90.cuh"

namespace cairn::gpu::sm90::sparse {

/// store_matrices, if `is_wanted`, the same for all lanes. No branch: ptxas gives up on products in flight across one.
__device__ __forceinline__ void store_matrices_if(int is_wanted, std::uint32_t address, const std::uint32_t (&m)[4]) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, "
      "%4};\n}" ::"r"(address),
      "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3]), "r"(is_wanted)
      : "memory");
}

/// Gives the rounded state to warp 7 if it is read: state number `states`.
__device__ __forceinline__ void hand_over_state(EventShared& shared, const std::uint32_t (&rounded)[8][4], int is_read,
                                                int states, int warp, int lane) {
  const int tile = states % kStateTiles;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    store_matrices_if(
        is_read, shared_address(shared.state[tile]) + i / 4 * kTileBytes + fragment_address(warp, lane, 2 * (i % 4)),
        rounded[i]);
  }
  __syncwarp();
  if (is_read && (kArrivingLanes > 1 || lane == 0)) barrier_arrive(shared_address(&shared.state_ready[tile]));
}

/// Operands of an event's products by the place of its keys, in units of 16 bytes: one addition each.
struct EventOperands {
  std::uint32_t place;

  static __device__ __forceinline__ EventOperands of(const EventStage& stage) {
    return {(shared_address(stage.k) & 0x3FFFF) >> 4};
  }
  /// All tokens, columns 16 i to 16 i + 15.
  __device__ __forceinline__ std::uint64_t keys(int i) const {
    return operand_at(place + ((1u << 16) + (i / 4 * kTileBytes + i % 4 * 32) / 16), kRowsOf128);
  }
  /// Tokens 16 i to 16 i + 15, all columns.
  __device__ __forceinline__ std::uint64_t transposed_keys(int i) const {
    return operand_at(place + ((kTileBytes / 16 << 16) + 2048 * i / 16), kRowsOf128);
  }
  /// Of T', or of the scaled one: columns 16 i to 16 i + 15, matrices of 8 x 8, 128 bytes each, those of the next 8
  /// rows after them.
  template <int kScaled>
  __device__ __forceinline__ std::uint64_t inverse(int i) const {
    constexpr int kFirst = (kScaled ? offsetof(EventStage, scaled) : offsetof(EventStage, inverse));
    return operand_at(place + ((i < 3 ? 512 / 16 << 16 : 256 / 16 << 16) + (kFirst + 1024 * i) / 16), 128 / 16);
  }
  /// V: tokens 16 i to 16 i + 15, all columns.
  __device__ __forceinline__ std::uint64_t values(int i) const {
    return operand_at(place + ((kTileBytes / 16 << 16) + (offsetof(EventStage, v) + 2048 * i) / 16), kRowsOf128);
  }
};

/// (K S)^T: 8 products, committed.
__device__ __forceinline__ void begin_prediction(float (&x)[32], const std::uint32_t (&rounded)[8][4],
                                                 const EventOperands& operands) {
#pragma unroll
  for (int i = 0; i < 8; ++i) multiply_64x64(x, rounded[i], operands.keys(i), i > 0);
  products_commit();
}

/// d[64 x 32] = a[16 x 64]^T b[32 x 16]^T, both from shared memory.
__device__ __forceinline__ void multiply_64x32_columns(float (&d)[16], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, add, 1, 1, 1, 0;\n}"
      : CAIRN_D8(d, 0), CAIRN_D8(d, 8)
      : "l"(a), "l"(b));
}
/// d[64 x 16] = a[16 x 64]^T b[16 x 16]^T, both from shared memory.
__device__ __forceinline__ void multiply_64x16_columns(float (&d)[8], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, add, 1, 1, 1, 0;\n}"
      : CAIRN_D8(d, 0)
      : "l"(a), "l"(b));
}
/// d[64 x 16] += a[64 x 16] b[16 x 16]^T, a from registers.
__device__ __forceinline__ void add_64x16(float (&d)[8], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, "
      "1, 1, 1, 0;"
      : CAIRN_D8(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/// The lane's places in a tile of [64 tokens x 64 columns] as 8 x 8 matrices that are transposed on their way.
__device__ __forceinline__ std::uint32_t transposed_address(int warp, int lane) {
  return swizzled(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
}

/// One long function: what an event needs lives in registers, and products run across its parts. The bound of the loop
/// comes out of a reduction: its index is known to be the same for a warp, and operands live in uniform registers.
__device__ __forceinline__ void run_chain(const SparsePrefillArgs& a, const SparseSelection& selection,
                                          const EventPlace& place, EventShared& shared, int thread) {
  const int warp = uniform_warp(), lane = thread % 32;
  float* state = a.states[place.sequence] + static_cast<std::int64_t>(place.head) * kDim * kDim + 64 * place.half;
  float s[64];
  std::uint32_t rounded[8][4];
  for_each_state_element(warp, lane, [&](int i, int row, int column) { s[i] = state[row * kDim + column]; });
  round_state(s, rounded);
  int states = 0;
  int is_read = 1;  // the state in `rounded` has a reader
  const std::uint32_t tile_at = transposed_address(warp, lane);
  if (place.events > 0) barrier_wait(shared_address(&shared.ready[0]), 0);
  EventOperands operands = EventOperands::of(shared.stages[0]);
  const int events = __reduce_max_sync(0xffffffffu, place.events);
  for (int now = 0; now < events; ++now) {
    const int at = now % kEventStages, next = now + 1, tile = now % kDeltaTiles;
    EventStage& stage = shared.stages[at];
    float x[32], u0[16], u1[16];
    float y0[16], y1[16], y2[16], y3[8];  // y_i: what column i of T' gives to tokens from 16 i on
    products_begin();
    begin_prediction(x, rounded, operands);
    multiply_64x32_columns(y0, operands.values(0), operands.inverse<0>(0));
    multiply_64x32_columns(y1, operands.values(1), operands.inverse<0>(1));
    multiply_64x32_columns(y2, operands.values(2), operands.inverse<0>(2));
    multiply_64x16_columns(y3, operands.values(3), operands.inverse<0>(3));
    products_commit();
    std::uint32_t r[4][4], write[4][4];
    const float whole = stage.factors.whole;
    if (now > 0) warp_arrive(shared_address(&shared.empty[(now - 1) % kEventStages]), lane);
    hand_over_state(shared, rounded, is_read, states, warp, lane);
    states += is_read;
    is_read = stage.info.snapshot >= 0;
    products_wait<1>();
    pin(x);
#pragma unroll
    for (int i = 0; i < 4; ++i) round_sums(x, i, r[i]);
    products_begin();
    multiply_64x32(y0, r[0], operands.inverse<1>(0), 1);
    multiply_64x32(y1, r[1], operands.inverse<1>(1), 1);
    multiply_64x32(y2, r[2], operands.inverse<1>(2), 1);
    add_64x16(y3, r[3], operands.inverse<1>(3));
    products_commit();
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= whole;  // here, where there is time
    pin(s);
    products_wait<0>();
    pin(y0), pin(y1), pin(y2), pin(y3);
#pragma unroll
    for (int i = 0; i < 8; ++i) u0[i] = y0[i], u0[8 + i] = y0[8 + i] + y1[i];
    round_sums(u0, 0, write[0]), round_sums(u0, 1, write[1]);
    products_begin();
#pragma unroll
    for (int i = 0; i < 2; ++i) multiply_64x128_transposed(s, write[i], operands.transposed_keys(i));
    products_commit();
#pragma unroll
    for (int i = 0; i < 8; ++i) u1[i] = y1[8 + i] + y2[i], u1[8 + i] = y2[8 + i] + y3[i];
    round_sums(u1, 0, write[2]), round_sums(u1, 1, write[3]);
    products_begin();
#pragma unroll
    for (int i = 2; i < 4; ++i) multiply_64x128_transposed(s, write[i], operands.transposed_keys(i));
    products_commit();
#pragma unroll
    for (int i = 0; i < 4; ++i) store_transposed(shared_address(shared.u[tile]) + 16 * 128 * i + tile_at, write[i]);
    warp_arrive(shared_address(&shared.u_ready[tile]), lane);
    operands = EventOperands::of(shared.stages[next % kEventStages]);
    if (next < events) barrier_wait(shared_address(&shared.ready[next % kEventStages]), next / kEventStages & 1);
    products_wait<0>();
    pin(s);
    round_state(s, rounded);
  }
  barrier_wait(shared_address(&shared.state_free[states % kStateTiles]), (states / kStateTiles & 1) ^ 1);
  hand_over_state(shared, rounded, is_read, states, warp, lane);
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
  if (thread == 0) {
    shared.stored[0] = shared.stored[1] = 0;
    for (int i = 0; i < kEventStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 2);
      barrier_init_for_warps(shared_address(&shared.ready[i]), 2);
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
  const int role = uniform_warp();
  if (role < 4) {
    set_registers_up<240>();
    run_chain(a, s, place, shared, thread);
  } else {
    set_registers_down<96>();
    if (role == 4) load_events<kWalk, kLoadKeys>(a, s, place, shared, lane);
    if (role == 5) prepare_events<0>(place, shared, lane);
    if (role == 10) prepare_events<1>(place, shared, lane);
    if (role == 6) store_deltas(a, s, place, shared, lane);
    if (role == 7) store_states<kWalk>(a, s, place, shared, lane);
    if (role == 8) publish_progress(a, place, shared, lane);
    if (role == 9) load_events<kWalk, kLoadOthers>(a, s, place, shared, lane);
  }
}

}  // namespace cairn::gpu::sm90::sparse
