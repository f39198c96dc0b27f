// sparse_gdn_events: stage 3 of SparseGDN, the walk over the kept chunks of a head with 64 of the 128 value columns of
// its state.
//   Computes  at an event c with a gap of decay d before it:  W = T' diag(2^(g + d)) K (now);  U' = T' V - W S;
//             S <- 2^(gamma + d) S + K^T (2^(gamma - g) U')                                          (spec 3.3)
//   Launch    one block for each (sequence, value head, half), high tiers first. Warpgroup 0: the chain S -> U' -> S,
//             with S^T [64 columns x 128 rows] in registers in f32. Warpgroups 1 and 2: W and T' of even and odd events
//             as tiles. Warp 12: what the events are, and the loads. Warp 13: stores U' in the place of the outputs,
//             which read it there before they overwrite it; warp 14: stores the states that outputs read. Both publish
//             how far they have come
//   Traffic   per event and block: k 16 KB, v 8, T' 3.5, U' 8; a state 16 KB where one is read
//   Numerics  S f32; S, W, U' and 2^(gamma - g) U' are rounded to bf16 as operands; T' V - W S is one f32 sum
//   Predicted 1,150 cycles an event, bound by 896 cycles of matrix products: 1.3 ms for the 1,946 events of a high tier
//             at 131,072 tokens (the dense scan: 2,000 cycles a chunk)
//   Versions  (H200, 131,072 tokens, 16/32 heads, keep 28.5 %, the walk alone, ms)
//     one preparing warpgroup, one storing warp that publishes every event: 2.32: each release waits about as long as
//       an event
//     two preparing warpgroups, a release every 8 events, fences by the storer 1.92
//     U' and states stored by warps of their own: 1.87: 0.96 us an event. Computed: 1,050 cycles of the chain's
//       latencies, 1,140 of shared memory traffic (146 KB an event); not yet profiled
//     the loop unrolled over the 4 stages, so that descriptors are constants: 1.70 alone, but the whole operator took
//       5.4 ms in that run (2.58 before), unexplained: taken back
#pragma once

#include "backends/cuda/sparse_gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90::sparse {

inline constexpr int kEventThreads = 512, kEventStages = 4;
inline constexpr int kPublishEvery = 8;  ///< events: a release costs the storing warp about as much as an event

/// The walk, and the walks without one of its savings, so that a benchmark can show what that is worth.
enum Walk : int {
  kEventRows,       ///< reads rows of events, stores the states that are read
  kVisitAllChunks,  ///< tests the mask of every chunk instead
  kStoreAllStates   ///< stores the entry state of every pair of chunks, at place 1 + pair
};

struct EventInfo {
  int chunk;       ///< of all sequences
  int row, count;  ///< its tokens
  float gap;       ///< log2-decay between the event before and this one
  int snapshot;    ///< -1: the state after this event is not read
};

struct EventStage {
  unsigned char k[2 * kTileBytes], v[kTileBytes];
  uint4 inverse[kInverseBlocks * 32];
  float decay[kChunk];
  EventInfo info;
  unsigned char unused[4096 - kInverseBytes - kDecayBytes - sizeof(EventInfo)];
};
static_assert(sizeof(EventStage) % 1024 == 0, "tiles are 1024-aligned");

struct EventShared {
  EventStage stages[kEventStages];
  unsigned char w[2][2 * kTileBytes];    ///< -W [64 tokens x 128], of even and odd events
  unsigned char inverse[2][kTileBytes];  ///< T' [64 x 64]
  unsigned char u[2][kTileBytes];        ///< U' [64 tokens x 64 columns]
  unsigned char state[2 * kTileBytes];   ///< S^T [64 columns x 128]
  float factors[2][kChunk + 4];          ///< 2^(gamma - g) of the tokens, then 2^(gamma + d)
  std::uint64_t full[kEventStages], empty[kEventStages], ready[2], free[2], u_ready[2], u_free[2], state_ready,
      state_free;
};
static_assert(sizeof(EventShared) <= 232448, "one block for each multiprocessor");

/// What a block walks.
struct EventPlace {
  int sequence, group, head, half;
  int first_event, events;  ///< of the sequence's rows
  int begin, chunks;        ///< of all sequences
  std::int64_t first_snapshot;
};

__device__ __forceinline__ EventPlace event_place(const SparsePrefillArgs& a, const SparseSelection& s, int sequence,
                                                  int row, int head_in_group, int half) {
  EventPlace place;
  place.sequence = sequence, place.half = half;
  place.begin = a.select.chunk_begin[sequence];
  place.chunks = a.select.chunk_begin[sequence + 1] - place.begin;
  if (place.chunks == 0) return place;
  place.group = s.row_group[row];
  place.head = place.group * a.per_group() + head_in_group;
  place.first_event = s.row_ptr[row];
  place.events =
      __shfl_sync(0xffffffffu, s.row_ptr[row + 1] - place.first_event, 0);  // known to be the same for a warp
  place.first_snapshot =
      static_cast<std::int64_t>(a.snapshot_begin[sequence] + s.first_snapshot[place.group]) * a.per_group() +
      head_in_group;
  return place;
}

/// Log2-decay of the head over chunks [from, to) of the sequence, in order.
__device__ __forceinline__ float sum_gap(const SparsePrefillArgs& a, const EventPlace& place, int from, int to) {
  const float* gamma = a.select.s.gamma + static_cast<std::int64_t>(place.begin) * a.value_heads + place.head;
  float gap = 0;
  for (int c = from; c < to; ++c) gap += gamma[static_cast<std::int64_t>(c) * a.value_heads];
  return gap;
}

// ---------------------------------------------------------------- warp 12

__device__ __forceinline__ void load_event(const SparsePrefillArgs& a, const EventPlace& place, const EventInfo& info,
                                           EventStage& stage, std::uint32_t full) {
  stage.info = info;
  barrier_expect(full, 3 * kTileBytes + kInverseBytes + kDecayBytes);
#pragma unroll
  for (int i = 0; i < 2; ++i)
    load_tile(shared_address(stage.k) + i * kTileBytes, &a.k, place.group * kDim + 64 * i, info.row, full);
  load_tile(shared_address(stage.v), &a.v, place.head * kDim + 64 * place.half, info.row, full);
  const std::int64_t cell = static_cast<std::int64_t>(info.chunk) * a.value_heads + place.head;
  load_bytes(shared_address(stage.inverse), a.work.inverse + cell * kInverseBlocks * 32, kInverseBytes, full);
  load_bytes(shared_address(stage.decay), a.work.decay + cell * kChunk, kDecayBytes, full);
}

/// An event as a lane finds it in the row.
__device__ __forceinline__ EventInfo find_event(const SparsePrefillArgs& a, const SparseSelection& s,
                                                const EventPlace& place, int event) {
  if (event >= place.events) return {};
  const std::int32_t* chunks = s.event_chunk + place.first_event;
  const int chunk = chunks[event], before = event > 0 ? chunks[event - 1] : -1;
  const ChunkRows rows = chunk_rows(a, place.sequence, place.begin + chunk);
  return {place.begin + chunk, rows.first, rows.count, sum_gap(a, place, before + 1, chunk),
          s.event_snapshot[place.first_event + event]};
}

/// The lane's chunk of 32 if it is an event, else nothing; `gap` runs from call to call.
__device__ __forceinline__ EventInfo test_chunk(const SparsePrefillArgs& a, const SparseSelection& s,
                                                const EventPlace& place, int base, int lane, unsigned* events,
                                                float* gap, int* walked) {
  const int chunk = base + lane;
  const bool is_inside = chunk < place.chunks;
  const bool is_event = is_inside && s.mask[static_cast<std::int64_t>(place.group) * place.chunks + chunk] != 0;
  const float gamma =
      is_inside ? a.select.s.gamma[static_cast<std::int64_t>(place.begin + chunk) * a.value_heads + place.head] : 0.0f;
  *events = __ballot_sync(0xffffffffu, is_event);
  EventInfo info = {};
  for (int i = 0; i < 32; ++i) {
    const float next = __shfl_sync(0xffffffffu, gamma, i);
    if (i == lane) info.gap = *gap;
    *gap = *events >> i & 1 ? 0.0f : *gap + next;
  }
  const ChunkRows rows = chunk_rows(a, place.sequence, place.begin + (is_inside ? chunk : 0));
  info.chunk = place.begin + chunk, info.row = rows.first, info.count = rows.count;
  if (is_event) info.snapshot = s.event_snapshot[place.first_event + *walked + __popc(*events & ((1u << lane) - 1))];
  *walked += __popc(*events);
  return info;
}

/// 32 events at a time: a lane looks one up and sums the gap before it, then lane 0 queues their loads.
template <Walk kWalk>
__device__ __forceinline__ void load_events(const SparsePrefillArgs& a, const SparseSelection& s,
                                            const EventPlace& place, EventShared& shared, int lane) {
  int stage = 0, parity = 1;  // the first round of a stage waits for nothing
  const int end = kWalk == kVisitAllChunks ? place.chunks : place.events;
  float gap = 0;
  int walked = 0;
  for (int base = 0; base < end; base += 32) {
    unsigned events = end - base < 32 ? (1u << (end - base)) - 1 : 0xffffffffu;
    const EventInfo info = kWalk == kVisitAllChunks ? test_chunk(a, s, place, base, lane, &events, &gap, &walked)
                                                    : find_event(a, s, place, base + lane);
    for (; events; events &= events - 1) {
      const int j = __ffs(static_cast<int>(events)) - 1;
      const EventInfo now = {__shfl_sync(0xffffffffu, info.chunk, j), __shfl_sync(0xffffffffu, info.row, j),
                             __shfl_sync(0xffffffffu, info.count, j), __shfl_sync(0xffffffffu, info.gap, j),
                             kWalk == kStoreAllStates ? 0 : __shfl_sync(0xffffffffu, info.snapshot, j)};
      if (lane == 0) {
        barrier_wait(shared_address(&shared.empty[stage]), parity);
        load_event(a, place, now, shared.stages[stage], shared_address(&shared.full[stage]));
      }
      __syncwarp();
      if (++stage == kEventStages) stage = 0, parity ^= 1;
    }
  }
}

// ---------------------------------------------------------------- warp 13

__device__ __forceinline__ void store_state(const SparsePrefillArgs& a, const EventPlace& place,
                                            const EventShared& shared, int snapshot) {
  unsigned char* to = a.work.snapshots +
                      (place.first_snapshot + static_cast<std::int64_t>(snapshot + 1) * a.per_group()) * kSnapshotBytes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    store_bytes(to + (2 * i + place.half) * kTileBytes, shared_address(shared.state) + i * kTileBytes, kTileBytes);
  }
}

/// The same state for every pair that enters between this event (-1: the start) and the next one.
__device__ __forceinline__ void store_state_of_pairs(const SparsePrefillArgs& a, const SparseSelection& s,
                                                     const EventPlace& place, const EventShared& shared, int event) {
  const std::int32_t* chunks = s.event_chunk + place.first_event;
  const int from = event < 0 ? 0 : chunks[event] / 2 + 1,
            last = event + 1 < place.events ? chunks[event + 1] : place.chunks - 1;
  for (int pair = from; 2 * pair <= last; ++pair) store_state(a, place, shared, pair);
}

/// U' of a short chunk: the rows after it are another sequence's.
__device__ __forceinline__ void store_rows(const SparsePrefillArgs& a, const EventPlace& place,
                                           const unsigned char* tile, int row, int count, int lane) {
  unsigned short* to = a.out_rows + row * a.out_stride + place.head * kDim + 64 * place.half + 8 * (lane % 8);
  for (int t = lane / 8; t < count; t += 4)
    store_global_16(to + t * a.out_stride, load_shared_16(shared_address(tile) + swizzled(t, lane % 8)));
}

__device__ __forceinline__ int* walk_progress(const SparsePrefillArgs& a, const EventPlace& place, int kind) {
  return a.work.progress +
         ((static_cast<std::int64_t>(place.sequence) * a.value_heads + place.head) * 2 + place.half) * 2 + kind;
}

/// U' of every event. A tile is free once the next event's store has been queued and its own has been read.
__device__ __forceinline__ void store_deltas(const SparsePrefillArgs& a, const SparseSelection& s,
                                             const EventPlace& place, EventShared& shared, int lane) {
  int* progress = walk_progress(a, place, 0);
  int my_chunk = 0;
  for (int event = 0; event < place.events; ++event) {
    if (event % 32 == 0 && event + lane < place.events) my_chunk = s.event_chunk[place.first_event + event + lane];
    const ChunkRows rows = chunk_rows(a, place.sequence, place.begin + __shfl_sync(0xffffffffu, my_chunk, event % 32));
    barrier_wait(shared_address(&shared.u_ready[event & 1]), event >> 1 & 1);
    if (rows.count < kChunk) store_rows(a, place, shared.u[event & 1], rows.first, rows.count, lane);
    __syncwarp();
    if (lane == 0) {
      if (rows.count == kChunk) {
        fence_engines();  // the chain stored with ordinary stores
        store_tile(&a.out, place.head * kDim + 64 * place.half, rows.first, shared_address(shared.u[event & 1]));
      }
      stores_commit();
      stores_wait_read<1>();
      if (event > 0) barrier_arrive(shared_address(&shared.u_free[(event - 1) & 1]));
      if (event % kPublishEvery == 0) {
        stores_wait<1>();
        publish(progress, event);
      }
    }
    __syncwarp();
  }
  if (lane == 0) {
    stores_wait<0>();
    publish(progress, place.events);
  }
}

// ---------------------------------------------------------------- warp 14

/// The initial state, then those after events that are read.
template <Walk kWalk>
__device__ __forceinline__ void store_states(const SparsePrefillArgs& a, const SparseSelection& s,
                                             const EventPlace& place, EventShared& shared, int lane) {
  int* progress = walk_progress(a, place, 1);
  int states = 0;
  const auto store = [&](int event, int snapshot) {  // by lane 0
    barrier_wait(shared_address(&shared.state_ready), states & 1);
    fence_engines();
    if (kWalk == kStoreAllStates) {
      store_state_of_pairs(a, s, place, shared, event);
    } else {
      store_state(a, place, shared, snapshot);
    }
    stores_commit();
    stores_wait_read<0>();
    barrier_arrive(shared_address(&shared.state_free));
    if (states % (kPublishEvery / 2) == 0) {
      stores_wait<1>();
      publish(progress, states);
    }
    ++states;
  };
  if (lane == 0) store(-1, -1);
  for (int base = 0; base < place.events; base += 32) {
    const int mine = base + lane;
    int snapshot = mine < place.events ? s.event_snapshot[place.first_event + mine] : -1;
    if (kWalk == kStoreAllStates) snapshot = mine < place.events ? mine : -1;
    for (unsigned read = __ballot_sync(0xffffffffu, snapshot >= 0); read; read &= read - 1) {
      const int j = __ffs(static_cast<int>(read)) - 1, place_of_state = __shfl_sync(0xffffffffu, snapshot, j);
      if (lane == 0) store(base + j, place_of_state);
      __syncwarp();
    }
  }
  if (lane == 0) {
    stores_wait<0>();
    publish(progress, states);
  }
}

// ---------------------------------------------------------------- warpgroups 1 and 2

/// Two bf16 times two factors, negated.
__device__ __forceinline__ std::uint32_t scale_pair(std::uint32_t pair, float2 factor) {
  return pack_bf16(-low_bf16(pair) * factor.x, -high_bf16(pair) * factor.y);
}

/// 2^(g + d) of a lane's columns of one block: pairs at 2 (lane % 4) and 8 after it.
__device__ __forceinline__ void scale_block(const uint4& block, const float* decay, float gap, int lane,
                                            std::uint32_t (&scaled)[4]) {
  const float2 g0 = *reinterpret_cast<const float2*>(decay + 2 * (lane % 4)),
               g1 = *reinterpret_cast<const float2*>(decay + 8 + 2 * (lane % 4));
  const float2 f0 = make_float2(exp2_fast(g0.x + gap), exp2_fast(g0.y + gap)),
               f1 = make_float2(exp2_fast(g1.x + gap), exp2_fast(g1.y + gap));
  scaled[0] = scale_pair(block.x, f0), scaled[1] = scale_pair(block.y, f0);
  scaled[2] = scale_pair(block.z, f1), scaled[3] = scale_pair(block.w, f1);
}

__device__ __forceinline__ void store_inverse_block(std::uint32_t tile, int warp, int lane, int column,
                                                    const uint4& block) {
  const std::uint32_t words[4] = {block.x, block.y, block.z, block.w};
  store_matrices(tile + fragment_address(warp, lane, 2 * column), words);
}

/// T' and -W of the even or odd events, up to two ahead of the chain.
template <int kSide>
__device__ __forceinline__ void run_preparation(const EventPlace& place, EventShared& shared, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  for (int event = kSide; event < place.events; event += 2) {
    EventStage& stage = shared.stages[event % kEventStages];
    barrier_wait(shared_address(&shared.full[event % kEventStages]), event / kEventStages & 1);
    const EventInfo info = stage.info;
    if (info.count < kChunk) {
      clear_rows(stage.k, 3, info.count, thread);  // k and v
      fence_engines();
      warpgroup_barrier(1 + kSide);
    }
    const uint4 own = stage.inverse[2 * warp * 32 + lane];
    uint4 left = make_uint4(0, 0, 0, 0);
    std::uint32_t scaled_own[4], scaled_left[4] = {0, 0, 0, 0};
    scale_block(own, stage.decay + 16 * warp, info.gap, lane, scaled_own);
    if (warp > 0) {
      left = stage.inverse[(2 * warp - 1) * 32 + lane];
      scale_block(left, stage.decay + 16 * (warp - 1), info.gap, lane, scaled_left);
    }
    float w[64];
    std::uint32_t words[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int n = 0; n < 4; ++n) words[i][n] = i == warp ? scaled_own[n] : i + 1 == warp ? scaled_left[n] : 0;
      pin(words[i]);
    }
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      multiply_64x128_rows(w, words[i], operand_transposed(shared_address(stage.k) + 2048 * i), i > 0);
    products_commit();
    barrier_wait(shared_address(&shared.free[kSide]), (event >> 1 & 1) ^ 1);
    const std::uint32_t inverse = shared_address(shared.inverse[kSide]), w_tile = shared_address(shared.w[kSide]);
    store_inverse_block(inverse, warp, lane, warp, own);
    if (warp > 0) store_inverse_block(inverse, warp, lane, warp - 1, left);
    const float gamma = stage.decay[kChunk - 1];
    if (thread < kChunk) shared.factors[kSide][thread] = exp2_fast(gamma - stage.decay[thread]);
    if (thread == kChunk) shared.factors[kSide][kChunk] = exp2_fast(gamma + info.gap);
    products_wait<0>();
    pin(w);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      std::uint32_t words[4];
      round_sums(w, i, words);
      store_matrices(w_tile + i / 4 * kTileBytes + fragment_address(warp, lane, 2 * (i % 4)), words);
    }
    fence_engines();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.ready[kSide]));
  }
}

// ---------------------------------------------------------------- warpgroup 0

/// Gives the rounded state to warp 14.
__device__ __forceinline__ void hand_over_state(EventShared& shared, const std::uint32_t (&rounded)[8][4], int states,
                                                int warp, int lane) {
  if (states > 0) barrier_wait(shared_address(&shared.state_free), (states - 1) & 1);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    store_matrices(shared_address(shared.state) + i / 4 * kTileBytes + fragment_address(warp, lane, 2 * (i % 4)),
                   rounded[i]);
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(shared_address(&shared.state_ready));
}

/// (T' V)^T of an event whose tiles are ready: 4 products, committed.
__device__ __forceinline__ void begin_delta(float (&x)[32], const EventStage& stage, const unsigned char* inverse) {
  products_begin();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    multiply_columns_64x64(x, operand_transposed(shared_address(stage.v) + 2048 * i),
                           operand(shared_address(inverse) + 32 * i), i > 0);
  }
  products_commit();
}

__device__ __forceinline__ void run_chain(const SparsePrefillArgs& a, const SparseSelection& selection,
                                          const EventPlace& place, EventShared& shared, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  float* state = a.states[place.sequence] + static_cast<std::int64_t>(place.head) * kDim * kDim + 64 * place.half;
  float s[64], x[32];
  std::uint32_t rounded[8][4];
  for_each_state_element(warp, lane, [&](int i, int row, int column) { s[i] = state[row * kDim + column]; });
  round_state(s, rounded);
  int states = 0, at = 0;
  bool is_read = true;  // the state in `rounded` has a reader
  const std::uint32_t u_at = swizzled(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
  if (place.events > 0) {
    barrier_wait(shared_address(&shared.ready[0]), 0);
    begin_delta(x, shared.stages[0], shared.inverse[0]);
  }
  for (int event = 0; event < place.events; ++event) {
    EventStage& stage = shared.stages[at];
    const int side = event & 1, next = at + 1 == kEventStages ? 0 : at + 1;
    const std::uint32_t w = shared_address(shared.w[side]), k = shared_address(stage.k);
    products_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i) multiply_64x64(x, rounded[i], operand(w + i / 4 * kTileBytes + i % 4 * 32), 1);
    products_commit();
    if (is_read) hand_over_state(shared, rounded, states++, warp, lane);
    is_read = stage.info.snapshot >= 0;
    float2 out_decay[8];
#pragma unroll
    for (int j = 0; j < 8; ++j)
      out_decay[j] = *reinterpret_cast<const float2*>(shared.factors[side] + 8 * j + 2 * (lane % 4));
    const float decay = shared.factors[side][kChunk];
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= decay;
    products_wait<0>();
    pin(x);
    std::uint32_t u[4][4], write[4][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float first = x[4 * j + 2 * i], second = x[4 * j + 2 * i + 1];
        u[j / 2][j % 2 * 2 + i] = pack_bf16(first, second);
        write[j / 2][j % 2 * 2 + i] = pack_bf16(first * out_decay[j].x, second * out_decay[j].y);
      }
    }
    pin(s);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x128_transposed(s, write[i], operand_transposed(k + 2048 * i));
    products_commit();
    __syncwarp();  // all lanes have read the factors
    if (lane == 0) barrier_arrive(shared_address(&shared.free[side]));
    barrier_wait(shared_address(&shared.u_free[side]), (event >> 1 & 1) ^ 1);
#pragma unroll
    for (int j = 0; j < 4; ++j) store_transposed(shared_address(shared.u[side]) + 16 * 128 * j + u_at, u[j]);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.u_ready[side]));
    const bool is_last = event + 1 == place.events;  // then the product is begun for nothing
    if (!is_last) barrier_wait(shared_address(&shared.ready[side ^ 1]), (event + 1) >> 1 & 1);
    begin_delta(x, shared.stages[is_last ? at : next], shared.inverse[is_last ? side : side ^ 1]);
    products_wait<1>();
    pin(s);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[at]));
    round_state(s, rounded);
    at = next;
  }
  products_wait<0>();
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
  for (int i = thread; i < 2 * kTileBytes / 16; i += kEventThreads) {
    *reinterpret_cast<uint4*>(shared.inverse[0] + 16 * i) =
        make_uint4(0, 0, 0, 0);  // the blocks that are dropped stay so
  }
  if (thread == 0) {
    for (int i = 0; i < kEventStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), 4);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.ready[i]), 4);
      barrier_init(shared_address(&shared.free[i]), 4);
      barrier_init(shared_address(&shared.u_ready[i]), 4);
      barrier_init(shared_address(&shared.u_free[i]), 1);
    }
    barrier_init(shared_address(&shared.state_ready), 4);
    barrier_init(shared_address(&shared.state_free), 1);
    fence_barrier_init();
  }
  fence_engines();
  __syncthreads();
  if (thread < 128) {
    set_registers_up<208>();
    run_chain(a, s, place, shared, thread);
  } else if (thread < 384) {
    set_registers_down<112>();
    if (thread < 256) {
      run_preparation<0>(place, shared, thread - 128);
    } else {
      run_preparation<1>(place, shared, thread - 256);
    }
  } else {
    set_registers_down<72>();
    if (thread < 416) {
      load_events<kWalk>(a, s, place, shared, lane);
    } else if (thread < 448) {
      store_deltas(a, s, place, shared, lane);
    } else if (thread < 480) {
      store_states<kWalk>(a, s, place, shared, lane);
    }
  }
}

}  // namespace cairn::gpu::sm90::sparse
