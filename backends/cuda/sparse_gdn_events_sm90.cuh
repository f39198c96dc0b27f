// sparse_gdn_events: stage 3 of SparseGDN, the walk over the kept chunks of a head with 64 of the 128 value columns of
// its state.
//   Computes  at an event c with a gap of decay d before it:  U' = T' (V - 2^(g + d) K S), which is T' V - W S of
//             spec 3.3 with W = T' diag(2^(g + d)) K never formed;  S <- 2^(gamma + d) S + K^T (2^(gamma - g) U')
//   Launch    one block for each (sequence, value head, half), high tiers first. Warpgroup 0: the chain S -> R -> U' ->
//             S, with S^T [64 columns x 128 rows] in registers in f32, so that every product has its left side in
//             registers. Warp 4: what the events are, and the loads. Warp 5: T' as a tile, factors. Warp 6: stores U'
//             in the place of the outputs, which read it there before they overwrite it; warp 7: stores the states that
//             outputs read. Both publish how far they have come
//   Length    five roles of one block share what lies here; each alone would need the others' barriers
//   Traffic   per event and block: k 16 KB, v 8, T' 3.5, U' 8; a state 16 KB where one is read
//   Numerics  S f32; S, R = V - 2^(g + d) K S, U' and 2^(gamma - g) U' are rounded to bf16 as operands; the two blocks
//             in a row of T' are summed in f32
//   Predicted 1,000 cycles an event, 568 of them matrix products: 1.25 ms for the 1,946 events of a high tier at
//   131,072
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

#include "backends/cuda/sparse_gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90::sparse {

inline constexpr int kEventThreads = 256, kEventStages = 4, kDeltaTiles = 4, kStateTiles = 2;
inline constexpr int kPublishEvery = 8;   ///< events: a release costs the storing warp about as much as an event
inline constexpr int kPublishBehind = 4;  ///< events whose stores may be on their way when others are published
inline constexpr int kFetchAhead = 8;     ///< events between the one that is queued and the one on its way to L2

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

/// What the chain needs of an event beside the tiles, by the preparing warp.
struct EventFactors {
  float before[kChunk];  ///< 2^(g + d)
  float after[kChunk];   ///< 2^(gamma - g)
  float whole;           ///< 2^(gamma + d)
};

struct EventStage {
  unsigned char k[2 * kTileBytes], v[kTileBytes];
  unsigned char transform[kTileBytes];  ///< T' [64 x 64]
  uint4 inverse[kInverseBlocks * 32];
  float decay[kChunk];
  EventFactors factors;
  EventInfo info;
  unsigned char unused[5120 - kInverseBytes - kDecayBytes - sizeof(EventInfo) - sizeof(EventFactors)];
};
static_assert(sizeof(EventStage) % 1024 == 0, "tiles are 1024-aligned");

struct EventShared {
  EventStage stages[kEventStages];
  unsigned char u[kDeltaTiles][kTileBytes];          ///< U' [64 tokens x 64 columns]
  unsigned char state[kStateTiles][2 * kTileBytes];  ///< S^T [64 columns x 128]
  std::uint64_t full[kEventStages], ready[kEventStages], empty[kEventStages], u_ready[kDeltaTiles], u_free[kDeltaTiles],
      state_ready[kStateTiles], state_free[kStateTiles];
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

// ---------------------------------------------------------------- warp 4

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

/// The same on its way to L2.
__device__ __forceinline__ void fetch_event(const SparsePrefillArgs& a, const EventPlace& place,
                                            const EventInfo& info) {
#pragma unroll
  for (int i = 0; i < 2; ++i) fetch_tile(&a.k, place.group * kDim + 64 * i, info.row);
  fetch_tile(&a.v, place.head * kDim + 64 * place.half, info.row);
  const std::int64_t cell = static_cast<std::int64_t>(info.chunk) * a.value_heads + place.head;
  fetch_bytes(a.work.inverse + cell * kInverseBlocks * 32, kInverseBytes);
  fetch_bytes(a.work.decay + cell * kChunk, kDecayBytes);
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
    if (lane < kFetchAhead && (events >> lane & 1)) fetch_event(a, place, info);
    __syncwarp();
    for (; events; events &= events - 1) {
      const int j = __ffs(static_cast<int>(events)) - 1;
      if (lane == j + kFetchAhead && (events >> lane & 1)) fetch_event(a, place, info);
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

// ---------------------------------------------------------------- warp 6

__device__ __forceinline__ void store_state(const SparsePrefillArgs& a, const EventPlace& place,
                                            const unsigned char* state, int snapshot) {
  unsigned char* to = a.work.snapshots +
                      (place.first_snapshot + static_cast<std::int64_t>(snapshot + 1) * a.per_group()) * kSnapshotBytes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    store_bytes(to + (2 * i + place.half) * kTileBytes, shared_address(state) + i * kTileBytes, kTileBytes);
  }
}

/// The same state for every pair that enters between this event (-1: the start) and the next one.
__device__ __forceinline__ void store_state_of_pairs(const SparsePrefillArgs& a, const SparseSelection& s,
                                                     const EventPlace& place, const unsigned char* state, int event) {
  const std::int32_t* chunks = s.event_chunk + place.first_event;
  const int from = event < 0 ? 0 : chunks[event] / 2 + 1,
            last = event + 1 < place.events ? chunks[event + 1] : place.chunks - 1;
  for (int pair = from; 2 * pair <= last; ++pair) store_state(a, place, state, pair);
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

/// U' of every event. A tile is free once the next event's store has been queued and its own has been read. What is
/// published lies kPublishBehind events back: those are written already.
__device__ __forceinline__ void store_deltas(const SparsePrefillArgs& a, const SparseSelection& s,
                                             const EventPlace& place, EventShared& shared, int lane) {
  int* progress = walk_progress(a, place, 0);
  int my_chunk = 0;
  for (int event = 0; event < place.events; ++event) {
    if (event % 32 == 0 && event + lane < place.events) my_chunk = s.event_chunk[place.first_event + event + lane];
    const ChunkRows rows = chunk_rows(a, place.sequence, place.begin + __shfl_sync(0xffffffffu, my_chunk, event % 32));
    const unsigned char* tile = shared.u[event % kDeltaTiles];
    barrier_wait(shared_address(&shared.u_ready[event % kDeltaTiles]), event / kDeltaTiles & 1);
    if (rows.count < kChunk) store_rows(a, place, tile, rows.first, rows.count, lane);
    __syncwarp();
    if (lane == 0) {
      if (rows.count == kChunk) {
        fence_engines();  // the chain stored with ordinary stores
        store_tile(&a.out, place.head * kDim + 64 * place.half, rows.first, shared_address(tile));
      }
      stores_commit();
      stores_wait_read<1>();
      if (event > 0) barrier_arrive(shared_address(&shared.u_free[(event - 1) % kDeltaTiles]));
      if (event % kPublishEvery == kPublishEvery - 1) {
        stores_wait<kPublishBehind>();
        publish(progress, event + 1 - kPublishBehind);
      }
    }
    __syncwarp();
  }
  if (lane == 0) {
    stores_wait<0>();
    publish(progress, place.events);
  }
}

// ---------------------------------------------------------------- warp 7

/// The initial state, then those after events that are read.
template <Walk kWalk>
__device__ __forceinline__ void store_states(const SparsePrefillArgs& a, const SparseSelection& s,
                                             const EventPlace& place, EventShared& shared, int lane) {
  int* progress = walk_progress(a, place, 1);
  int states = 0;
  const auto store = [&](int event, int snapshot) {  // by lane 0
    const int tile = states % kStateTiles;
    barrier_wait(shared_address(&shared.state_ready[tile]), states / kStateTiles & 1);
    fence_engines();
    if (kWalk == kStoreAllStates) {
      store_state_of_pairs(a, s, place, shared.state[tile], event);
    } else {
      store_state(a, place, shared.state[tile], snapshot);
    }
    stores_commit();
    stores_wait_read<0>();
    barrier_arrive(shared_address(&shared.state_free[tile]));
    ++states;
    if (states % (kPublishEvery / 2) == 0) {
      stores_wait<kPublishBehind / 2>();
      publish(progress, states - kPublishBehind / 2);
    }
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

// ---------------------------------------------------------------- warp 5

/// Rows from `count` on of k and v: a neighbour's numbers must not meet even a zero of ours.
__device__ __forceinline__ void clear_short_event(EventStage& stage, int count, int lane) {
  for (int i = lane; i < 3 * (kChunk - count) * 8; i += 32) {
    const int tile = i % 3, row = count + i / 24, piece = i / 3 % 8;
    *reinterpret_cast<uint4*>(stage.k + tile * kTileBytes + row * 128 + piece * 16) = make_uint4(0, 0, 0, 0);
  }
}

/// T' as a tile and the factors of every event.
__device__ __forceinline__ void prepare_events(const EventPlace& place, EventShared& shared, int lane) {
  for (int event = 0; event < place.events; ++event) {
    EventStage& stage = shared.stages[event % kEventStages];
    barrier_wait(shared_address(&shared.full[event % kEventStages]), event / kEventStages & 1);
    uint4 blocks[kInverseBlocks];
#pragma unroll
    for (int i = 0; i < kInverseBlocks; ++i) blocks[i] = stage.inverse[32 * i + lane];
    const EventInfo info = stage.info;
    const float gamma = stage.decay[kChunk - 1];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float g = stage.decay[lane + 32 * i];
      stage.factors.before[lane + 32 * i] = exp2_fast(g + info.gap);
      stage.factors.after[lane + 32 * i] = exp2_fast(gamma - g);
    }
    if (lane == 0) stage.factors.whole = exp2_fast(gamma + info.gap);
#pragma unroll
    for (int i = 0; i < kInverseBlocks; ++i) {  // block rows 0 1 1 2 2 3 3, block columns 0 0 1 1 2 2 3
      const std::uint32_t words[4] = {blocks[i].x, blocks[i].y, blocks[i].z, blocks[i].w};
      store_matrices(shared_address(stage.transform) + fragment_address((i + 1) / 2, lane, 2 * (i / 2)), words);
    }
    if (info.count < kChunk) clear_short_event(stage, info.count, lane);
    fence_engines();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.ready[event % kEventStages]));
  }
}

// ---------------------------------------------------------------- warpgroup 0

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
  __syncwarp();
  if (lane == 0) barrier_arrive(shared_address(&shared.state_ready[tile]));
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
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.u_ready[tile]));
    if (event + 1 < place.events) barrier_wait(shared_address(&shared.ready[next]), (event + 1) / kEventStages & 1);
    products_wait<0>();
    pin(s);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[at]));
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
      barrier_init(shared_address(&shared.ready[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), 4);
    }
    for (int i = 0; i < kDeltaTiles; ++i) {
      barrier_init(shared_address(&shared.u_ready[i]), 4);
      barrier_init(shared_address(&shared.u_free[i]), 1);
    }
    for (int i = 0; i < kStateTiles; ++i) {
      barrier_init(shared_address(&shared.state_ready[i]), 4);
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
