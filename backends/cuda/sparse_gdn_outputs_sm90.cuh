// sparse_gdn_outputs: stage 4 of SparseGDN, the outputs of two neighbouring chunks from the state S that enters the
// even one.
//   Computes  O_c = scale 2^(g + d) Q_c S + A_c U'_c;  O_{c+1} = scale 2^(g + gamma_c + d) Q_{c+1} S + A_{c+1,c} U'_c +
//             A_{c+1,c+1} U'_{c+1};  U' = T' V of a chunk that was skipped; d: decay since S was stored  (spec 3.4).
//             U' and T' as the walk has them, so the weights are A = scale <q_i, k_j> 2^(g_i - max(gamma, g_j - 96)),
//             a factor a row in chunks that decay by less than 2^96, and scale <q_i, k_j> 2^g_i for the chunk before
//   Launch    persistent blocks; an item is (pair of chunks, key head) with its value heads one after another. Items
//             come from a counter, low tiers first, since their walks end first; blocks start once every walk has
//             started, no more of them than keep up: the others' memory traffic would delay the walks. Warpgroup 0: the
//             even chunk; warpgroup 1: the odd chunk; warp 8: waits for the walk, loads
//   Traffic   per pair and key head: q, k 64 KB; per value head v or U' 32, S 32, T' 7, out 32
//   Numerics  A, U' and S are rounded to bf16 as operands, sums f32
//   Predicted 256 KB of memory traffic and 5,376 cycles of matrix products an item of two heads: 1.0 to 1.2 ms for
//             131,072 tokens, bound by memory
//   Measured  (H200, 131,072 tokens) 1.0 ms alone on all multiprocessors, 0.98 to 1.14 on 96, which make the operator
//             2,108 us for 2,133 (65,536 tokens 1,068 for 1,095); with 64 it takes 2,373
//   Tried     loads of q, v and U' that make way in the L2 cache: operator 1 to 2 % slower. Streaming stores of
//             outputs: the same, 49,152 tokens 913 us for 852
#pragma once

#include "backends/cuda/sparse_gdn_scores_sm90.cuh"

namespace cairn::gpu::sm90::sparse {

inline constexpr int kOutputThreads = 384;
/// What keeps up with the walks: a block takes 3.95 us for a pair of chunks of a head, a walk of a high tier 1.4.
inline constexpr int kOutputBlocksPerHead = 3;

struct OutputItem {
  int head;  ///< its first value head; -1: there is nothing left
  int sequence;
  int chunk;      ///< the even one, of all sequences
  int row;        ///< its first token
  int counts[2];  ///< tokens of the two chunks; 0: there is no odd one
  int is_event[2];
};

struct OutputShared {
  unsigned char q[2][4 * kTileBytes];  ///< of an item: even chunk's halves, then the odd one's
  unsigned char k[4 * kTileBytes];
  unsigned char v[2][4 * kTileBytes];  ///< of a value head, likewise: V or U', then the outputs
  unsigned char s[2][4 * kTileBytes];
  float decay[2][2][kChunk];
  float gap[2];
  OutputItem items[2];
  std::uint64_t q_full[2], q_empty[2], k_full, k_empty, v_full[2], v_empty[2];
};
static_assert(sizeof(OutputShared) <= 232448, "one block for each multiprocessor");

enum OutputSignal : int { kEvenOnly = 1, kOddOnly, kEvenReady, kCrossDone };

// ---------------------------------------------------------------- warp 8

/// What an item needs to know before its loads.
struct OutputPlan {
  OutputItem item;
  int sequence, group;
  int from, to;   ///< chunks of the sequence since the state was stored
  int needed[2];  ///< of the walk's progress: U' of events, states
  std::int64_t snapshot;
};

/// Item `index` in the order: sequences; low, medium, high tiers; pairs; rows of the tier.
__device__ __forceinline__ OutputPlan plan_item(const SparsePrefillArgs& a, int index) {
  OutputPlan plan;
  const int b = find_sequence(a.item_begin, a.select.sequence_count, index), n = a.key_heads;
  const SparseSelection s = selection_of(a.select, b);
  const int chunks = a.select.chunk_count(b), pairs = a.select.pair_count(b), high = s.tier_rows[0],
            medium = s.tier_rows[1];
  int place = index - a.item_begin[b], first = high + medium, rows = n - first;
  if (place >= rows * pairs) place -= rows * pairs, first = high, rows = medium;
  if (first == high && place >= rows * pairs) place -= rows * pairs, first = 0, rows = high;
  const int group = s.row_group[first + place % rows], pair = place / rows;
  const std::int64_t at = static_cast<std::int64_t>(group) * pairs + pair;
  const std::uint8_t* mask = s.mask + static_cast<std::int64_t>(group) * chunks;
  const int even = 2 * pair, left = a.select.token_begin[b + 1] - a.select.token_begin[b] - even * kChunk;
  plan.sequence = b, plan.group = group;
  plan.item = {group * a.per_group(),
               b,
               a.select.chunk_begin[b] + even,
               a.select.token_begin[b] + even * kChunk,
               {min(left, kChunk), max(0, min(left - kChunk, kChunk))},
               {mask[even], even + 1 < chunks ? mask[even + 1] : 0}};
  plan.from = s.entry_event[at] + 1, plan.to = even;
  plan.needed[0] = s.entry_count[at] + plan.item.is_event[0] + plan.item.is_event[1];
  plan.needed[1] = s.entry_snapshot[at] + 2;
  plan.snapshot = static_cast<std::int64_t>(a.snapshot_begin[b] + s.first_snapshot[group] + 1 + s.entry_snapshot[at]) *
                  a.per_group();
  return plan;
}

__device__ __forceinline__ int take_item(const SparsePrefillArgs& a, int lane) {
  int index = 0;
  if (lane == 0) index = atomicAdd(a.work.next_item, 1);
  return __shfl_sync(0xffffffffu, index, 0);
}

/// 64 rows of one head's columns of an item's chunks.
__device__ __forceinline__ void load_chunks(const CUtensorMap* even, const CUtensorMap* odd, const OutputItem& item,
                                            int head, unsigned char* to, std::uint32_t full) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= 2 && item.counts[1] == 0) break;
    load_tile(shared_address(to) + i * kTileBytes, i < 2 ? even : odd, head * kDim + 64 * (i % 2),
              item.row + i / 2 * kChunk, full);
  }
}

/// Sum over the gap, and a wait until the walk of both halves has come far enough. All lanes.
__device__ __forceinline__ float await_state(const SparsePrefillArgs& a, const OutputPlan& plan, int head, int lane) {
  const float* gamma =
      a.select.s.gamma + static_cast<std::int64_t>(a.select.chunk_begin[plan.sequence]) * a.value_heads + head;
  float gap = 0;
  for (int c = plan.from + lane; c < plan.to; c += 32) gap += gamma[static_cast<std::int64_t>(c) * a.value_heads];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) gap += __shfl_xor_sync(0xffffffffu, gap, distance);
  const int* progress = a.work.progress + (static_cast<std::int64_t>(plan.sequence) * a.value_heads + head) * 4;
  const int needed = lane % 2 ? plan.needed[1] : plan.needed[0];
  bool is_far = false;
  while (!is_far) is_far = __all_sync(0xffffffffu, read_published(progress + lane % 4) >= needed);
  __syncwarp();  // lane 0 loads what others have seen stored: votes order no memory
  return gap;
}

__device__ __forceinline__ void load_items(const SparsePrefillArgs& a, OutputShared& shared, int lane) {
  const int item_count = a.item_begin[a.select.sequence_count], per = a.per_group();
  int side = 0, turn = 0, parity = 1, stage = 0, stage_parity = 1;  // the first round waits for nothing
  int index = take_item(a, lane);
  OutputPlan plan = {};
  if (index < item_count) plan = plan_item(a, index);
  while (true) {
    const bool is_done = index >= item_count;
    if (is_done) plan.item.head = -1;
    const OutputItem& item = plan.item;
    const std::uint32_t q_full = shared_address(&shared.q_full[side]), k_full = shared_address(&shared.k_full);
    if (lane == 0) {
      const int tiles = item.counts[1] ? 4 : 2;
      barrier_wait(shared_address(&shared.q_empty[side]), parity);
      shared.items[side] = item;
      if (is_done) {
        barrier_arrive(q_full);
      } else {
        barrier_expect(q_full, tiles * kTileBytes);
        load_chunks(&a.q, &a.q, item, plan.group, shared.q[side], q_full);
        barrier_wait(shared_address(&shared.k_empty), (turn & 1) ^ 1);
        barrier_expect(k_full, tiles * kTileBytes);
        load_chunks(&a.k, &a.k, item, plan.group, shared.k, k_full);
      }
    }
    if (is_done) return;
    const int following = take_item(a, lane);
    for (int h = 0; h < per; ++h) {
      const int head = item.head + h;
      const float gap = await_state(a, plan, head, lane);
      if (lane == 0) {
        const int tiles = item.counts[1] ? 4 : 2;
        const std::uint32_t full = shared_address(&shared.v_full[stage]);
        fence_engines_global();
        barrier_wait(shared_address(&shared.v_empty[stage]), stage_parity);
        shared.gap[stage] = gap;
        barrier_expect(full, tiles * kTileBytes + kSnapshotBytes + tiles / 2 * kDecayBytes);
        load_chunks(item.is_event[0] ? &a.out : &a.v, item.is_event[1] ? &a.out : &a.v, item, head, shared.v[stage],
                    full);
        load_bytes(shared_address(shared.s[stage]), a.work.snapshots + (plan.snapshot + h) * kSnapshotBytes,
                   kSnapshotBytes, full);
        for (int i = 0; i < tiles / 2; ++i) {
          load_bytes(shared_address(shared.decay[stage][i]),
                     a.work.decay + (static_cast<std::int64_t>(item.chunk + i) * a.value_heads + head) * kChunk,
                     kDecayBytes, full);
        }
      }
      __syncwarp();
      stage ^= 1;
      if (stage == 0) stage_parity ^= 1;
    }
    index = following;
    if (index < item_count) plan = plan_item(a, index);
    ++turn;
    side ^= 1;
    if (side == 0) parity ^= 1;
  }
}

// ---------------------------------------------------------------- warpgroups 0 and 1

/// One lane's part of T' of a chunk and head, from memory.
struct InverseRow {
  uint4 own, left;
};
__device__ __forceinline__ InverseRow load_inverse(const InverseLines& lines, int head, int warp, int lane) {
  const auto word = [&](int i, int line) { return __ldcg(lines.at(lines.place(head, i, lane), line)); };
  InverseRow row = {};
  row.own = make_uint4(word(warp, 0), word(warp, 1), 0, word(warp, InverseBlocks::own_line(warp, 3)));
  if (warp > 0) {
    const auto left = [&](int n) { return word(warp - 1, InverseBlocks::left_line(n)); };
    row.left = make_uint4(left(0), left(1), left(2), left(3));
  }
  return row;
}

/// U' = T' V of a skipped chunk, in the place of V. `only`: the barrier of this warpgroup.
__device__ __forceinline__ void transform_values(const InverseRow& row, unsigned char* v, float (&u)[64], int only,
                                                 int warp, int lane) {
  std::uint32_t words[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i][0] = i == warp ? row.own.x : i + 1 == warp ? row.left.x : 0;
    words[i][1] = i == warp ? row.own.y : i + 1 == warp ? row.left.y : 0;
    words[i][2] = i == warp ? row.own.z : i + 1 == warp ? row.left.z : 0;
    words[i][3] = i == warp ? row.own.w : i + 1 == warp ? row.left.w : 0;
    pin(words[i]);
  }
  products_begin();
#pragma unroll
  for (int i = 0; i < 4; ++i)
    multiply_64x128_rows(u, words[i], operand_transposed(shared_address(v) + 2048 * i), i > 0);
  products_commit();
  products_wait<0>();
  pin(u);
  warpgroup_barrier(only);  // all warps have read V
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    std::uint32_t rounded[4];
    round_sums(u, i, rounded);
    store_matrices(shared_address(v) + i / 4 * kTileBytes + fragment_address(warp, lane, 2 * (i % 4)), rounded);
  }
  fence_engines();
}

__device__ __forceinline__ void multiply_deltas(float (&o)[64], const std::uint32_t (&a)[4][4],
                                                const unsigned char* u) {
#pragma unroll
  for (int i = 0; i < 4; ++i) multiply_64x128_rows(o, a[i], operand_transposed(shared_address(u) + 2048 * i), 1);
}

/// Outputs by way of the chunk's tiles of values; a warp owns 16 rows, and writes whole lines.
__device__ __forceinline__ void store_outputs(const SparsePrefillArgs& a, const float (&o)[64], unsigned char* tile,
                                              int row, int count, int head, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    std::uint32_t rounded[4];
    round_sums(o, i, rounded);
    store_matrices(shared_address(tile) + i / 4 * kTileBytes + fragment_address(warp, lane, 2 * (i % 4)), rounded);
  }
  __syncwarp();
  const int first = 16 * warp + lane / 16, piece = lane % 16;
  const std::uint32_t from = shared_address(tile) + piece / 8 * kTileBytes;
  unsigned short* out = a.out_rows + (row + first) * a.out_stride + head * kDim + 8 * piece;
  uint4 data[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) data[i] = load_shared_16(from + swizzled(first + 2 * i, piece % 8));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (first + 2 * i < count) store_global_16(out + 2 * i * a.out_stride, data[i]);
  }
}

/// Outputs of one head and chunk from the state, the scores and the tiles of U'.
template <int kOdd, bool kOneFrame>
__device__ __forceinline__ void form_outputs(const SparsePrefillArgs& a, OutputShared& shared, int stage,
                                             const unsigned char* q, const float (&own)[32], const float (&cross)[32],
                                             float (&o)[64], int warp, int lane) {
  const unsigned char *even_v = shared.v[stage], *v = even_v + 2 * kOdd * kTileBytes;
  const float *even_g = shared.decay[stage][0], *g = shared.decay[stage][kOdd];
  products_begin();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    multiply_64x128(o, operand(shared_address(q) + i / 4 * kTileBytes + i % 4 * 32),
                    operand(shared_address(shared.s[stage]) + i / 4 * 2 * kTileBytes + i % 4 * 32), i > 0);
  }
  products_commit();
  std::uint32_t weights[4][4], cross_weights[4][4];
  weigh_own<kOneFrame>(own, g, a.scale, warp, lane, weights);
  if (kOdd) weigh_cross(cross, g, a.scale, warp, lane, cross_weights);
  float factor[2];
  const float since = shared.gap[stage] + (kOdd ? even_g[kChunk - 1] : 0.0f);
#pragma unroll
  for (int r = 0; r < 2; ++r) factor[r] = a.scale * exp2_fast(g[16 * warp + lane / 4 + 8 * r] + since);
  if (kOdd) {
    pair_wait(kEvenReady);
  } else {
    pair_arrive(kEvenReady);
    warpgroup_barrier(kEvenOnly);
  }
  products_wait<0>();
  pin(o);
#pragma unroll
  for (int i = 0; i < 64; ++i) o[i] *= factor[i / 2 % 2];
  pin(o);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pin(weights[i]);
    if (kOdd) pin(cross_weights[i]);
  }
  products_begin();
  if (kOdd) multiply_deltas(o, cross_weights, even_v);
  multiply_deltas(o, weights, v);
  products_commit();
  products_wait<0>();
  pin(o);
}

/// The even (kOdd = 0) or odd chunk of every item that this block takes. Where there is no odd one, its warpgroup
/// multiplies what
/// lies in the tiles and stores nothing.
template <int kOdd>
__device__ __forceinline__ void run_chunks(const SparsePrefillArgs& a, OutputShared& shared, int thread) {
  constexpr int kOnly = kOdd ? kOddOnly : kEvenOnly;
  const int warp = thread / 32, lane = thread % 32, per = a.per_group();
  int side = 0, turn = 0, parity = 0, stage = 0, stage_parity = 0;
  while (true) {
    barrier_wait(shared_address(&shared.q_full[side]), parity);
    const OutputItem item = shared.items[side];
    if (item.head < 0) return;
    const int count = item.counts[kOdd];
    const ChunkRows rows = {item.row + kOdd * kChunk, count};
    const bool has_chunk = count > 0;
    const InverseLines lines = inverse_lines(a, item.sequence, rows, item.head);
    const unsigned char* q = shared.q[side] + 2 * kOdd * kTileBytes;
    InverseRow inverse = {};
    if (has_chunk && !item.is_event[kOdd]) inverse = load_inverse(lines, 0, warp, lane);
    barrier_wait(shared_address(&shared.k_full), turn & 1);
    float own[32], cross[32];
    products_begin();
    multiply_keys(own, q, shared.k + 2 * kOdd * kTileBytes);
    if (kOdd) multiply_keys(cross, q, shared.k);
    products_commit();
    products_wait<0>();
    pin(own);
    if (kOdd) pin(cross);
    warp_arrive(shared_address(&shared.k_empty), lane);
    for (int h = 0; h < per; ++h) {
      const int head = item.head + h;
      unsigned char* v = shared.v[stage] + 2 * kOdd * kTileBytes;
      const float* g = shared.decay[stage][kOdd];
      const InverseRow now = inverse;
      if (has_chunk && !item.is_event[kOdd] && h + 1 < per) inverse = load_inverse(lines, h + 1, warp, lane);
      barrier_wait(shared_address(&shared.v_full[stage]), stage_parity);
      float o[64];
      if (has_chunk && count < kChunk) {
        clear_rows(v, 2, count, thread);
        fence_engines();
        warpgroup_barrier(kOnly);
      }
      if (has_chunk && !item.is_event[kOdd]) transform_values(now, v, o, kOnly, warp, lane);
      if (has_one_frame(g[kChunk - 1])) {
        form_outputs<kOdd, true>(a, shared, stage, q, own, cross, o, warp, lane);
      } else {
        form_outputs<kOdd, false>(a, shared, stage, q, own, cross, o, warp, lane);
      }
      if (kOdd) {  // nobody reads the tiles of U' any more
        pair_arrive(kCrossDone);
        warpgroup_barrier(kOnly);
      } else {
        pair_wait(kCrossDone);
      }
      if (has_chunk) store_outputs(a, o, v, rows.first, count, head, warp, lane);
      fence_engines();
      warp_arrive(shared_address(&shared.v_empty[stage]), lane);
      stage ^= 1;
      if (stage == 0) stage_parity ^= 1;
    }
    warp_arrive(shared_address(&shared.q_empty[side]), lane);
    ++turn;
    side ^= 1;
    if (side == 0) parity ^= 1;
  }
}

__global__ void __launch_bounds__(kOutputThreads, 1)
    sparse_outputs_kernel(const __grid_constant__ SparsePrefillArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  OutputShared& shared = *reinterpret_cast<OutputShared*>(memory);
  const int thread = threadIdx.x;
  if (thread == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.q_full[i]), 1);
      barrier_init_for_warps(shared_address(&shared.q_empty[i]), 8);
      barrier_init(shared_address(&shared.v_full[i]), 1);
      barrier_init_for_warps(shared_address(&shared.v_empty[i]), 8);
    }
    barrier_init(shared_address(&shared.k_full), 1);
    barrier_init_for_warps(shared_address(&shared.k_empty), 8);
    fence_barrier_init();
  }
  __syncthreads();
  if (thread < 128) {
    set_registers_up<216>();
    run_chunks<0>(a, shared, thread);
  } else if (thread < 256) {
    set_registers_up<216>();
    run_chunks<1>(a, shared, thread - 128);
  } else {
    set_registers_down<72>();
    if (thread < 288) load_items(a, shared, thread - 256);
  }
  wait_for_previous_kernel();
}

}  // namespace cairn::gpu::sm90::sparse
