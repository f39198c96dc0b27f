// sdm_address: the slots and softmax weights of every token's write and read set (product keys), and their rows.
//   Computes  as sdm_address.cpp of the reference: the best W of each half, of their sums, softmax(scale * sum)
//   Shapes    scores [T, H, 2 n]; slots, weights, rows [T, H, W'], best first, W' = min(W, n * n)
//   Launch    grid (T, H, 2): writes, reads; 64 threads for each list of a half, at most 512
//   How       groups of 32 lanes sort lists of 32, 64 or 128 keys in registers (bitonic), and pairs of sorted lists
//             melt into the best half of both. Of the sums only those that fewer than W others dominate are looked at:
//             (i + 1)(j + 1) <= W, 280 for W = 64.
//   Numerics  NaN counts as the least score, the others are held to +-2^126: their order is total, so that every place
//             is filled with a slot of the table. Ties: lower index, then lower slot.
//   Tried     sorts in rolled loops, 1,930 instructions where now 4,300: 11.5 us in place of 8.1 (64 sequences), 6.9 in
//             place of 5.7 (1). Sums ranked by binary search in the other lists, not melted: 10.3 in place of 8.1
#pragma once

#include <type_traits>

#include "backends/gpu/kernels/sdm_scratch.cuh"

namespace cairn::gpu {

inline constexpr int kSdmMostLists = 8;

/// Scores as integers in their order; +0 and -0 are one.
__device__ inline std::uint32_t ordered_score(float score) {
  const std::uint32_t bits = float_to_bits(fminf(fmaxf(score, -0x1p126f), 0x1p126f) + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ inline float score_of(std::uint32_t ordered) {
  return bits_to_float(ordered >> 31 ? ordered & 0x7FFFFFFFu : ~ordered);
}

// A key holds a score and an index: the larger key comes first, and 0 is behind all. 32 bits are enough for bf16 scores
// and indices below 2^16.
__device__ inline void make_key(float score, std::uint32_t index, std::uint64_t* key) {
  *key = static_cast<std::uint64_t>(ordered_score(score)) << 32 | (0xFFFFFFFFu - index);
}
__device__ inline void make_key(float score, std::uint32_t index, std::uint32_t* key) {
  *key = (ordered_score(score) & 0xFFFF0000u) | (0xFFFFu - index);
}
__device__ inline float key_score(std::uint64_t key) { return score_of(static_cast<std::uint32_t>(key >> 32)); }
__device__ inline float key_score(std::uint32_t key) {
  return bits_to_float(float_to_bits(score_of(key & 0xFFFF0000u)) & 0xFFFF0000u);
}
__device__ inline int key_index(std::uint64_t key) {
  return static_cast<int>(0xFFFFFFFFu - static_cast<std::uint32_t>(key));
}
__device__ inline int key_index(std::uint32_t key) { return static_cast<int>(0xFFFFu - (key & 0xFFFFu)); }

/// One step of a bitonic network over the group: keys `distance` apart, descending where their place & run is 0. A lane
/// holds the places lane * kEach ...
template <int kEach, class Key>
__device__ inline void exchange_keys(Key (&key)[kEach], int lane, int distance, int run) {
  if (distance >= kEach) {
    const int apart = distance / kEach;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const Key other = shuffle_xor(key[e], apart);
      const bool wants_larger = ((lane & apart) == 0) == (((lane * kEach + e) & run) == 0);
      key[e] = (key[e] > other) == wants_larger ? key[e] : other;
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (e & distance) continue;
    const Key first = key[e], second = key[e | distance];
    const bool swaps = (first < second) == (((lane * kEach + e) & run) == 0);
    key[e] = swaps ? second : first;
    key[e | distance] = swaps ? first : second;
  }
}

/// Descending.
template <int kEach, class Key>
__device__ inline void sort_keys(Key (&key)[kEach], int lane) {
#pragma unroll
  for (int run = 2; run <= kEach * kSdmGroup; run *= 2) {
#pragma unroll
    for (int distance = run / 2; distance > 0; distance /= 2) exchange_keys(key, lane, distance, run);
  }
}

/// The best of two descending lists, descending; `reversed` is the second one, last key first.
template <int kEach, class Key>
__device__ inline void merge_keys(Key (&key)[kEach], const Key (&reversed)[kEach], int lane) {
#pragma unroll
  for (int e = 0; e < kEach; ++e) key[e] = key[e] > reversed[e] ? key[e] : reversed[e];
#pragma unroll
  for (int distance = kEach * kSdmGroup / 2; distance > 0; distance /= 2) {
    exchange_keys(key, lane, distance, kEach * kSdmGroup);
  }
}

/// The best keys of the lists first, first + step, ... below `end`, each made by `make(place in all lists)`.
template <int kEach, class Key, class Make>
__device__ inline void best_of_lists(Key (&key)[kEach], int lane, int first, int step, int end, const Make& make) {
#pragma unroll
  for (int e = 0; e < kEach; ++e) key[e] = make((first * kSdmGroup + lane) * kEach + e);
  sort_keys(key, lane);
  for (int list = first + step; list - first < end; list += step) {  // the same count in every group
    Key more[kEach], reversed[kEach];
#pragma unroll
    for (int e = 0; e < kEach; ++e) more[e] = make((list * kSdmGroup + lane) * kEach + e);
    sort_keys(more, lane);
#pragma unroll
    for (int e = 0; e < kEach; ++e) reversed[e] = shuffle_xor(more[kEach - 1 - e], kSdmGroup - 1);
    merge_keys(key, reversed, lane);
  }
}

/// Melts the lists of `count` groups (a power of two) into that of the first. `shared`: [count][kEach * 32] keys. All
/// groups of the block call; those that share a warp with one that is needed work along.
template <int kEach, class Key>
__device__ inline void melt_lists(Key (&key)[kEach], int lane, int group, int count, Key* shared) {
  constexpr int kList = kEach * kSdmGroup;
  const int groups_of_warp = warp_size() / kSdmGroup;
  for (int half = count / 2; half > 0; half /= 2) {
    if (group >= half && group < 2 * half) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) shared[group * kList + lane * kEach + e] = key[e];
    }
    __syncthreads();
    if (group < half || group < groups_of_warp) {
      const Key* other = shared + (group + half) % count * kList;
      Key reversed[kEach];
#pragma unroll
      for (int e = 0; e < kEach; ++e) reversed[e] = other[kList - 1 - lane * kEach - e];
      merge_keys(key, reversed, lane);
    }
  }
}

/// Sum of the values of the lanes before this one in its group.
__device__ inline int sum_before(int value, int lane) {
  int sum = value;
  const int base = static_cast<int>(threadIdx.x) % warp_size() - lane;
#pragma unroll
  for (int distance = 1; distance < kSdmGroup; distance *= 2) {
    const int other = shuffle(sum, base + (lane >= distance ? lane - distance : 0));
    if (lane >= distance) sum += other;
  }
  return sum - value;
}

/// Sum over the group, in a fixed order.
__device__ inline float group_sum(float value) {
#pragma unroll
  for (int distance = kSdmGroup / 2; distance > 0; distance /= 2) value += shuffle_xor(value, distance);
  return value;
}

struct SdmAddressArgs {
  SdmArgs call;
  SdmScratch scratch;
  std::int32_t lists;   ///< groups for each half: a power of two
  bool numbers_claims;  ///< decode: also the ranks of the slots that need a row
};

/// Sums in order of i, then j <= min(m, W / (i + 1)): where those of i begin. The first group fills it in.
template <int kEach>
__device__ void count_candidates(int* first_candidate, int lane, int kept_halves, int kept) {
  int counts[kEach], sum = 0;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = lane * kEach + e, most = kept / (i + 1);
    counts[e] = i >= kept_halves ? 0 : most < kept_halves ? most : kept_halves;
    sum += counts[e];
  }
  int first = sum_before(sum, lane);
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    first_candidate[lane * kEach + e] = first;
    first += counts[e];
  }
  if (lane == kSdmGroup - 1) first_candidate[kSdmGroup * kEach] = first;
}

/// The i of a candidate: the last with first_candidate[i] <= candidate and candidates of its own.
template <int kList>
__device__ inline int candidate_row(const int* first_candidate, int candidate) {
  int i = 0;
#pragma unroll
  for (int step = kList / 2; step > 0; step /= 2) i += first_candidate[i + step] <= candidate ? step : 0;
  return i;
}

/// Writes the address of (t, head): slots, weights, old rows, and for claims the rank of every slot that needs a row.
template <int kEach>
__device__ void write_address(const SdmAddressArgs& args, const SdmAddressOutput& to, const std::uint64_t (&key)[kEach],
                              std::int64_t t, std::int64_t head, const SdmSequenceView& sequence,
                              std::int32_t first_private) {
  const std::int64_t slot_count = static_cast<std::int64_t>(args.call.side) * args.call.side;
  const std::int64_t pair = t * args.call.head_count + head;
  const std::int32_t* row_of_slot = sequence.table.row_of_slot + head * slot_count;
  const int lane = static_cast<int>(threadIdx.x) % kSdmGroup;
  const bool is_first_group = static_cast<int>(threadIdx.x) < kSdmGroup;  // the others only keep the warp together
  const int keep = is_first_group ? to.kept : 0;
  std::int32_t row[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) row[e] = lane * kEach + e < keep ? row_of_slot[key_index(key[e])] : 0;
  const float best = shuffle(key_score(key[0]), static_cast<int>(threadIdx.x) % warp_size() - lane);
  float weight[kEach], sum = 0;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    weight[e] = lane * kEach + e < keep ? expf((key_score(key[e]) - best) * to.scale) : 0.0f;
    sum += weight[e];
  }
  sum = group_sum(sum);
  int needs = 0;
#pragma unroll
  for (int e = 0; e < kEach; ++e) needs += lane * kEach + e < keep && row[e] < first_private ? 1 : 0;
  int rank = to.ranks ? sum_before(needs, lane) : 0;
  if (!is_first_group) return;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (lane * kEach + e >= keep) continue;
    const std::int64_t at = pair * keep + lane * kEach + e;
    to.slots[at] = key_index(key[e]);
    to.weights[at] = weight[e] / sum;
    to.rows[at] = row[e];
    if (to.ranks) to.ranks[at] = row[e] < first_private ? rank++ : -1;
    if (to.trace_slots) to.trace_slots[at] = key_index(key[e]);
    if (to.trace_weights) to.trace_weights[at] = weight[e] / sum;
  }
  if (to.ranks && lane == kSdmGroup - 1) args.scratch.claims[pair] = rank;
}

template <int kEach, class Key>
__global__ void __launch_bounds__(2 * kSdmGroup * kSdmMostLists, 2) sdm_address_kernel(SdmAddressArgs args) {
  constexpr int kList = kEach * kSdmGroup;
  __shared__ std::uint64_t lists[2 * kSdmMostLists * kList];
  __shared__ float best_score[2][kList];
  __shared__ int best_index[2][kList];
  __shared__ int first_candidate[kList + 1];
  const std::int64_t t = blockIdx.x, head = blockIdx.y;
  const bool is_read = blockIdx.z == 1;
  const int n = args.call.side, count = is_read ? args.call.read_count : args.call.write_count;
  const int kept_halves = count < n ? count : n, kept = sdm_kept(count, n);
  const int lane = static_cast<int>(threadIdx.x) % kSdmGroup, group = static_cast<int>(threadIdx.x) / kSdmGroup;
  const int half = group / args.lists, groups_of_warp = warp_size() / kSdmGroup;
  let_next_kernel_start();
  if (group < groups_of_warp) count_candidates<kEach>(first_candidate, lane, kept_halves, kept);
  __syncthreads();
  const int candidates = first_candidate[kList], needed_lists = (candidates + kList - 1) / kList;
  const SdmSequenceView sequence(args.call, t);
  wait_for_previous_kernel();

  const ConstRows scores = is_read ? args.call.read_scores : args.call.write_scores;
  const std::int32_t first_private = group < groups_of_warp ? sequence.table.control[1] : 0;
  if (!is_read && head == 0 && threadIdx.x == 0 && t == sequence.first_token) {
    args.scratch.first_free[sequence.index] = sequence.table.control[0];
    args.scratch.first_private[sequence.index] = first_private;
  }
  Key half_key[kEach];
  best_of_lists(half_key, lane, group % args.lists, args.lists, (n + kList - 1) / kList, [&](int i) {
    Key key = 0;
    if (i < n) make_key(load(scores, args.call.dtype, t, (head * 2 + half) * n + i), i, &key);
    return key;
  });
  Key* half_lists = reinterpret_cast<Key*>(lists) + half * args.lists * kList;
  melt_lists(half_key, lane, group % args.lists, args.lists, half_lists);
  if (group % args.lists == 0) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      best_score[half][lane * kEach + e] = key_score(half_key[e]);
      best_index[half][lane * kEach + e] = key_index(half_key[e]);
    }
  }
  __syncthreads();

  std::uint64_t key[kEach] = {};
  int sum_lists = 1;
  while (sum_lists < 2 * args.lists && sum_lists < needed_lists) sum_lists *= 2;
  if (group < sum_lists || group < groups_of_warp) {
    best_of_lists(key, lane, group, sum_lists, needed_lists, [&](int candidate) {
      std::uint64_t sum = 0;
      if (candidate < candidates) {
        const int i = candidate_row<kList>(first_candidate, candidate), j = candidate - first_candidate[i];
        make_key(best_score[0][i] + best_score[1][j], best_index[0][i] * n + best_index[1][j], &sum);
      }
      return sum;
    });
  }
  melt_lists(key, lane, group, sum_lists, lists);
  if (group >= groups_of_warp) return;
  write_address(args,
                is_read ? sdm_read_output(args.call, args.scratch)
                        : sdm_write_output(args.call, args.scratch, args.numbers_claims),
                key, t, head, sequence, first_private);
}

}  // namespace cairn::gpu
