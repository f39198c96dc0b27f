// Stage 3 of SparseGDN: the masks, the rows of events, and which states the outputs read (spec 3.3): one snapshot right
// after an event, if a later even chunk enters with it.
//   Launch  grid (n, B), 256 threads: a block lays out one group; threads own runs of chunks, then of events, then of
//             pairs
#pragma once

#include "backends/gpu/kernels/sparse_gdn_tiers.cuh"

namespace cairn::gpu {

__device__ inline std::uint64_t next_random(std::uint64_t* state) {
  std::uint64_t z = *state += 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  return z ^ z >> 31;
}

/// The group's events: a prefix of its order; `random` keeps the anchors and draws the others in order, by one thread.
__device__ inline void mark_events(const SparseSelectArgs& a, const SparseSelection& s, int group, int chunks,
                                   std::uint8_t* mask) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int c = thread; c < chunks; c += kSelectThreads) {
    const bool is_given =
        a.policy == SparsePolicy::kGiven && a.given_mask[static_cast<std::int64_t>(group) * chunks + c] != 0;
    mask[c] = a.policy == SparsePolicy::kAll || is_given ? 1 : 0;
  }
  __syncthreads();
  if (a.is_given()) return;
  const std::int32_t* order = s.order + static_cast<std::int64_t>(group) * chunks;
  const int kept = keep_count(chunks, s.tier[group]), anchors = kept < 2 ? kept : 2;
  const int sure = a.policy == SparsePolicy::kRandom ? anchors : kept;
  for (int i = thread; i < sure; i += kSelectThreads) mask[order[i]] = 1;
  if (a.policy == SparsePolicy::kRandom && thread == 0) {
    std::uint64_t state = a.seed * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(group);
    int wanted = kept - anchors, left = chunks - 2;
    for (int i = 2; i < chunks; ++i, --left) {
      if (next_random(&state) % static_cast<std::uint64_t>(left) >= static_cast<std::uint64_t>(wanted)) continue;
      mask[order[i]] = 1;
      --wanted;
    }
  }
  __syncthreads();
}

/// The sum of `value` over the threads before this one; `counts`: kSelectThreads ints of shared memory. *total: over
/// all.
__device__ inline int sum_before(int value, int* counts, int* total) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  counts[thread] = value;
  for (int distance = 1; distance < kSelectThreads; distance *= 2) {
    __syncthreads();
    const int other = thread >= distance ? counts[thread - distance] : 0;
    __syncthreads();
    counts[thread] += other;
  }
  __syncthreads();
  *total = counts[kSelectThreads - 1];
  return counts[thread] - value;
}

/// [first, last) of `count` things that this thread owns.
struct OwnRun {
  int first, last;
};
__device__ inline OwnRun own_run(int count) {
  const int each = (count + kSelectThreads - 1) / kSelectThreads, first = static_cast<int>(threadIdx.x) * each;
  return {first < count ? first : count, first + each < count ? first + each : count};
}

/// Numbers the events after which some even chunk enters before the next event has changed the state.
__device__ inline int number_snapshots(const std::int32_t* chunk, int events, int chunks, std::int32_t* snapshot,
                                       int* counts) {
  const OwnRun run = own_run(events);
  const auto is_read = [&](int i) {
    const int last = i + 1 < events ? chunk[i + 1] : chunks - 1;  // the state enters chunks up to here
    return last / 2 * 2 > chunk[i];
  };
  int mine = 0, total = 0;
  for (int i = run.first; i < run.last; ++i) mine += is_read(i) ? 1 : 0;
  int next = sum_before(mine, counts, &total);
  for (int i = run.first; i < run.last; ++i) snapshot[i] = is_read(i) ? next++ : -1;
  return total;
}

__global__ void lay_out_events_kernel(SparseSelectArgs a) {
  __shared__ int counts[kSelectThreads];
  const int group = static_cast<int>(blockIdx.x), b = static_cast<int>(blockIdx.y), chunks = a.chunk_count(b),
            pairs = a.pair_count(b);
  if (chunks == 0) return;
  const SparseSelection s = selection_of(a, b);
  std::uint8_t* mask = s.mask + static_cast<std::int64_t>(group) * chunks;
  mark_events(a, s, group, chunks, mask);
  int row = 0;
  while (s.row_group[row] != group) ++row;
  std::int32_t* chunk = s.event_chunk + s.row_ptr[row];
  std::int32_t* snapshot = s.event_snapshot + s.row_ptr[row];
  std::int32_t* entry_count = s.entry_count + static_cast<std::int64_t>(group) * pairs;
  const OwnRun run = own_run(chunks);
  int mine = 0, events = 0;
  for (int c = run.first; c < run.last; ++c) mine += mask[c];
  int next = sum_before(mine, counts, &events);
  for (int c = run.first; c < run.last; ++c) {
    if (c % 2 == 0) entry_count[c / 2] = next;
    if (mask[c]) chunk[next++] = c;
  }
  __syncthreads();
  const int snapshots = number_snapshots(chunk, events, chunks, snapshot, counts);
  if (threadIdx.x == 0) s.snapshot_count[group] = snapshots;
  __syncthreads();
  for (int r = static_cast<int>(threadIdx.x); r < pairs; r += kSelectThreads) {
    const int before = entry_count[r];
    s.entry_event[static_cast<std::int64_t>(group) * pairs + r] = before > 0 ? chunk[before - 1] : -1;
    s.entry_snapshot[static_cast<std::int64_t>(group) * pairs + r] = before > 0 ? snapshot[before - 1] : -1;
  }
}

}  // namespace cairn::gpu
