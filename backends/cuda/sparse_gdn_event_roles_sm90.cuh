// sparse_gdn_event_roles: the block of sparse_gdn_events, and the work of the warps beside its chain: the loads of keys
// (warp 4) and of the rest (9), factors and the scaled T' (5, 10), the stores of U' (6) and of states (7), and telling
// other blocks about them (8).
#pragma once

#include "backends/cuda/sparse_gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90::sparse {

inline constexpr int kEventThreads = 384, kEventStages = 5, kDeltaTiles = 3, kStateTiles = 2;
inline constexpr int kPublishPause = 3000;  ///< ns
inline constexpr int kPublishBehind = 4;    ///< events whose stores may be on their way when others are published

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
  float before[kChunk];  ///< -2^(g + d)
  float whole;           ///< 2^(gamma + d)
};

struct EventStage {
  unsigned char k[2 * kTileBytes], v[kTileBytes];
  InverseBlocks inverse, scaled;  ///< T', and -T' diag(2^(g + d)) by the preparing warp
  float decay[kChunk];
  EventFactors factors;
  EventInfo info;
  unsigned char unused[8192 - 2 * kInverseBytes - kDecayBytes - sizeof(EventInfo) - sizeof(EventFactors)];
};
static_assert(sizeof(EventStage) % 1024 == 0, "tiles are 1024-aligned");

struct EventShared {
  EventStage stages[kEventStages];
  unsigned char u[kDeltaTiles][kTileBytes];          ///< U' [64 tokens x 64 columns]
  unsigned char state[kStateTiles][2 * kTileBytes];  ///< S^T [64 columns x 128]
  std::uint64_t full[kEventStages], ready[kEventStages], empty[kEventStages], u_ready[kDeltaTiles], u_free[kDeltaTiles],
      state_ready[kStateTiles], state_free[kStateTiles];
  int stored[2];  ///< 2 n of n stored U' or states, and 1 when these are all
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

// ---------------------------------------------------------------- warps 4 and 9

/// An event's copies take one warp 600 cycles and more to queue.
enum EventPart : int { kLoadKeys, kLoadOthers };

/// One part of an event's loads; the barrier counts one arrival of each.
template <EventPart kPart>
__device__ __forceinline__ void load_event(const SparsePrefillArgs& a, const EventPlace& place, const EventInfo& info,
                                           EventStage& stage, std::uint32_t full) {
  if (kPart == kLoadKeys) {
    barrier_expect(full, 2 * kTileBytes);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      load_tile(shared_address(stage.k) + i * kTileBytes, &a.k, place.group * kDim + 64 * i, info.row, full);
    return;
  }
  stage.info = info;
  barrier_expect(full, kTileBytes + kInverseBytes + kDecayBytes);
  load_tile(shared_address(stage.v), &a.v, place.head * kDim + 64 * place.half, info.row, full);
  const std::int64_t cell = static_cast<std::int64_t>(info.chunk) * a.value_heads + place.head;
  if (info.count == kChunk) {
    load_tile(shared_address(&stage.inverse), &a.inverse, place.head * kDim + 64 * place.half, info.row, full);
  } else {
    load_bytes(shared_address(&stage.inverse), short_inverse(a, place.sequence, place.head), kInverseBytes, full);
  }
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
template <Walk kWalk, EventPart kPart>
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
      EventInfo now = {};
      now.row = __shfl_sync(0xffffffffu, info.row, j);
      if (kPart == kLoadOthers) {
        now.chunk = __shfl_sync(0xffffffffu, info.chunk, j), now.count = __shfl_sync(0xffffffffu, info.count, j);
        now.gap = __shfl_sync(0xffffffffu, info.gap, j);
        now.snapshot = kWalk == kStoreAllStates ? 0 : __shfl_sync(0xffffffffu, info.snapshot, j);
      }
      if (lane == 0) {
        barrier_wait(shared_address(&shared.empty[stage]), parity);
        load_event<kPart>(a, place, now, shared.stages[stage], shared_address(&shared.full[stage]));
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

/// Tells warp 8 what is stored. racecheck takes loads that acquire for races: it is given exchanges.
#ifdef CAIRN_FOR_RACECHECK
#define CAIRN_STORE_RELEASE "{\n.reg .b32 old;\natom.release.cta.shared::cta.exch.b32 old, [%0], %1;\n}"
#define CAIRN_LOAD_ACQUIRE "atom.acquire.cta.shared::cta.or.b32 %0, [%1], 0;"
#else
#define CAIRN_STORE_RELEASE "st.release.cta.shared::cta.s32 [%0], %1;"
#define CAIRN_LOAD_ACQUIRE "ld.acquire.cta.shared::cta.s32 %0, [%1];"
#endif
__device__ __forceinline__ void note_stored(int* stored, int count, bool is_all) {
  asm volatile(CAIRN_STORE_RELEASE ::"r"(shared_address(stored)), "r"(2 * count + is_all) : "memory");
}
__device__ __forceinline__ int read_stored(const int* stored) {
  int value;
  asm volatile(CAIRN_LOAD_ACQUIRE : "=r"(value) : "r"(shared_address(stored)) : "memory");
  return value;
}
#undef CAIRN_STORE_RELEASE
#undef CAIRN_LOAD_ACQUIRE

/// U' of every event. A tile is free once the next event's store has been queued and its own has been read. What is
/// published lies kPublishBehind events back: those are written already.
__device__ __forceinline__ void store_deltas(const SparsePrefillArgs& a, const SparseSelection& s,
                                             const EventPlace& place, EventShared& shared, int lane) {
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
      stores_wait<kPublishBehind>();
      if (event >= kPublishBehind) note_stored(&shared.stored[0], event + 1 - kPublishBehind, false);
    }
    __syncwarp();
  }
  if (lane == 0) {
    stores_wait<0>();
    note_stored(&shared.stored[0], place.events, true);
  }
}

// ---------------------------------------------------------------- warp 7

/// The initial state, then those after events that are read.
template <Walk kWalk>
__device__ __forceinline__ void store_states(const SparsePrefillArgs& a, const SparseSelection& s,
                                             const EventPlace& place, EventShared& shared, int lane) {
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
    stores_wait<kPublishBehind / 2>();
    if (states > kPublishBehind / 2) note_stored(&shared.stored[1], states - kPublishBehind / 2, false);
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
    note_stored(&shared.stored[1], states, true);
  }
}

// ---------------------------------------------------------------- warp 8

/// What warps 6 and 7 have stored, to other blocks: a release takes them longer than an event takes the chain.
__device__ __forceinline__ void publish_progress(const SparsePrefillArgs& a, const EventPlace& place,
                                                 EventShared& shared, int lane) {
  if (lane > 0) return;
  int published[2] = {0, 0};
  while (published[0] % 2 == 0 || published[1] % 2 == 0) {
    const int stored[2] = {read_stored(&shared.stored[0]), read_stored(&shared.stored[1])};
    if (stored[0] == published[0] && stored[1] == published[1]) {
      __nanosleep(100);
      continue;
    }
    // One fence for both.
    asm volatile(
        "fence.acq_rel.gpu;\nst.relaxed.gpu.global.s32 [%0], %1;\nst.relaxed.gpu.global.s32 [%0 + 4], %2;" ::"l"(
            walk_progress(a, place, 0)),
        "r"(stored[0] / 2), "r"(stored[1] / 2)
        : "memory");
    published[0] = stored[0], published[1] = stored[1];
    __nanosleep(kPublishPause);
  }
}

// ---------------------------------------------------------------- warps 5 and 10

/// Rows from `count` on of k and v: a neighbour's numbers must not meet even a zero of ours.
__device__ __forceinline__ void clear_short_event(EventStage& stage, int count, int lane) {
  for (int i = lane; i < 3 * (kChunk - count) * 8; i += 32) {
    const int tile = i % 3, row = count + i / 24, piece = i / 3 % 8;
    *reinterpret_cast<uint4*>(stage.k + tile * kTileBytes + row * 128 + piece * 16) = make_uint4(0, 0, 0, 0);
  }
}

/// Of every event one half of the scaled T', 32 of its columns. The first warp also has the other factors, and waits in
/// the place of the chain until the tiles that it will store to are free.
template <int kHalf>
__device__ __forceinline__ void prepare_events(const EventPlace& place, EventShared& shared, int lane) {
  int states = 0;
  bool is_read = true;  // the state before the event
  for (int event = 0; event < place.events; ++event) {
    EventStage& stage = shared.stages[event % kEventStages];
    barrier_wait(shared_address(&shared.full[event % kEventStages]), event / kEventStages & 1);
    const int count = stage.info.count;
    const float gap = stage.info.gap;
    stage.factors.before[32 * kHalf + lane] = -exp2_fast(stage.decay[32 * kHalf + lane] + gap);
    if (kHalf == 0 && lane == 0) stage.factors.whole = exp2_fast(stage.decay[kChunk - 1] + gap);
    __syncwarp();
    const uint4* const from = reinterpret_cast<const uint4*>(stage.inverse.words);
    uint4* const to = reinterpret_cast<uint4*>(stage.scaled.words);
#pragma unroll
    for (int i = 4 * kHalf; i < 4 + 3 * kHalf; ++i) {  // 8 columns, 4 words of a row; at last twice 8, half a warp each
      const uint4 words = from[32 * i + lane];
      const float4* const factors =
          reinterpret_cast<const float4*>(stage.factors.before + 8 * (i < 6 ? i : 6 + lane / 16));
      const float4 f0 = factors[0], f1 = factors[1];
      to[32 * i + lane] = make_uint4(pack_bf16(low_bf16(words.x) * f0.x, high_bf16(words.x) * f0.y),
                                     pack_bf16(low_bf16(words.y) * f0.z, high_bf16(words.y) * f0.w),
                                     pack_bf16(low_bf16(words.z) * f1.x, high_bf16(words.z) * f1.y),
                                     pack_bf16(low_bf16(words.w) * f1.z, high_bf16(words.w) * f1.w));
    }
    if (kHalf == 0) {
      if (count < kChunk) clear_short_event(stage, count, lane);
      barrier_wait(shared_address(&shared.u_free[event % kDeltaTiles]), (event / kDeltaTiles & 1) ^ 1);
      if (is_read) {
        barrier_wait(shared_address(&shared.state_free[states % kStateTiles]), (states / kStateTiles & 1) ^ 1);
        ++states;
      }
      is_read = stage.info.snapshot >= 0;
    }
    fence_engines();
    warp_arrive(shared_address(&shared.ready[event % kEventStages]), lane);
  }
}

}  // namespace cairn::gpu::sm90::sparse
