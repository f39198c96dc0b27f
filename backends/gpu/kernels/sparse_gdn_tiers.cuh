// Stage 2 of SparseGDN, second half: the gains of keeping more, and which groups get the high and medium budgets (spec
// 3.2).
//   Launch  sum_gains grid (n, B), assign_tiers grid (B); 256 threads
#pragma once

#include "backends/gpu/kernels/sparse_gdn_rank.cuh"

namespace cairn::gpu {

/// Sum of s L G over the places [from, to) of a group's order.
__device__ inline double sum_gain(const SparseSelectArgs& a, const SparseSelection& s, int group, int chunks, int from,
                                  int to, double mean_eta, double* partial) {
  const int per = a.per_group();
  const std::int32_t* order = s.order + static_cast<std::int64_t>(group) * chunks;
  double gain = 0;
  for (int h = group * per; h < (group + 1) * per; ++h) {
    const double weight = s.lifetime[h] * (mean_eta > 0 ? sqrt(s.eta[h] / mean_eta) : 1.0);
    double scores = 0;
    for (int i = from + static_cast<int>(threadIdx.x); i < to; i += kSelectThreads) {
      scores += s.scores[static_cast<std::int64_t>(order[i]) * a.head_count + h];
    }
    gain += weight * scores;
  }
  gain = block_sum_in_order(gain, partial);
  return gain - gain == 0 ? gain : 0.0;  // what is not finite has no place in an order
}

__global__ void sum_gains_kernel(SparseSelectArgs a) {
  __shared__ double partial[kSelectThreads];
  const int group = static_cast<int>(blockIdx.x), b = static_cast<int>(blockIdx.y), chunks = a.chunk_count(b),
            per = a.per_group();
  if (chunks == 0) return;
  const SparseSelection s = selection_of(a, b);
  double mean = 0;
  for (int h = 0; h < a.head_count; ++h) mean += s.eta[h];
  mean /= a.head_count;
  const double low = sum_gain(a, s, group, chunks, keep_count(chunks, 0), keep_count(chunks, 1), mean, partial);
  const double high = sum_gain(a, s, group, chunks, keep_count(chunks, 1), keep_count(chunks, 2), mean, partial);
  for (int h = group * per + static_cast<int>(threadIdx.x); h < (group + 1) * per; h += kSelectThreads) {
    s.visibility[h] = mean > 0 ? sqrt(s.eta[h] / mean) : 1;
  }
  if (threadIdx.x != 0) return;
  s.gain_low_medium[group] = low;
  s.gain_medium_high[group] = high;
}

/// B(x, k) of x sorted descending.
__device__ inline double separation(const double* x, int n, int k) {
  if (k == 0 || k == n) return 0;
  double upper = 0, lower = 0;
  for (int i = 0; i < n; ++i) (i < k ? upper : lower) += x[i];
  const double gap = upper / k - lower / (n - k);
  return static_cast<double>(k) * (n - k) / n * gap * gap;
}

/// Places of n gains from the largest, ties to the lower index: into by_gain and sorted. All threads.
__device__ inline void sort_gains(const SparseSelection& s, const double* gains, const std::int32_t* members, int n) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kSelectThreads) {
    const double mine = gains[members ? members[i] : i];
    int place = 0;
    for (int j = 0; j < n; ++j) {
      const double other = gains[members ? members[j] : j];
      place += other > mine || (other == mine && j < i) ? 1 : 0;
    }
    s.by_gain[place] = members ? members[i] : i;
    s.sorted[place] = mine;
  }
  __syncthreads();
}

/// The count of lowest..highest with the largest separation, ties to the smallest. All threads get it.
__device__ inline int best_count(const SparseSelection& s, int n, int lowest, int highest) {
  for (int k = lowest + static_cast<int>(threadIdx.x); k <= highest; k += kSelectThreads)
    s.separation[k - lowest] = separation(s.sorted, n, k);
  __syncthreads();
  int best = lowest;
  for (int k = lowest + 1; k <= highest; ++k) {
    if (s.separation[k - lowest] > s.separation[best - lowest]) best = k;
  }
  __syncthreads();
  return best;
}

__device__ inline int choose_high(const SparseSelectArgs& a, const SparseSelection& s) {
  const int n = a.group_count;
  if (a.policy != SparsePolicy::kFixed) return best_count(s, n, 1, most_high(n));
  const auto high = static_cast<int>(round_half_even(3LL * n, 16));
  return high < 1 ? 1 : high;
}

__device__ inline int choose_medium(const SparseSelectArgs& a, const SparseSelection& s, int rest, int high) {
  const int n = a.group_count, centre = medium_centre(n, high);
  if (a.policy == SparsePolicy::kFixed) {
    const auto medium = static_cast<int>(round_half_even(4LL * n, 16));
    return medium < rest ? medium : rest;
  }
  const int highest = centre + 1 < rest ? centre + 1 : rest;
  return centre <= 0 || centre - 1 > highest ? 0 : best_count(s, rest, centre - 1, highest);
}

__device__ inline void choose_tiers(const SparseSelectArgs& a, const SparseSelection& s) {
  const int n = a.group_count, thread = static_cast<int>(threadIdx.x);
  sort_gains(s, s.gain_medium_high, nullptr, n);
  const int high = choose_high(a, s);
  for (int i = thread; i < n; i += kSelectThreads) s.tier[s.by_gain[i]] = i < high ? 2 : 0;
  __syncthreads();
  int rest = 0;
  for (int p = 0; p < n; ++p) {
    if (s.tier[p] == 2) continue;
    if (thread == 0) s.rest[rest] = p;
    ++rest;
  }
  sort_gains(s, s.gain_low_medium, s.rest, rest);
  const int medium = choose_medium(a, s, rest, high);
  for (int i = thread; i < medium; i += kSelectThreads) s.tier[s.by_gain[i]] = 1;
  __syncthreads();
}

/// Events of a group, once its tier is known.
__device__ inline int count_events(const SparseSelectArgs& a, const SparseSelection& s, int chunks, int group) {
  if (a.policy == SparsePolicy::kAll) return chunks;
  if (a.policy != SparsePolicy::kGiven) return keep_count(chunks, s.tier[group]);
  int count = 0;
  for (int c = 0; c < chunks; ++c) count += a.given_mask[static_cast<std::int64_t>(group) * chunks + c] != 0 ? 1 : 0;
  return count;
}

/// Rows: high tiers first, lower groups first within a tier; then where their events and snapshots begin.
__device__ inline void place_rows(const SparseSelectArgs& a, const SparseSelection& s, int chunks) {
  const int n = a.group_count, thread = static_cast<int>(threadIdx.x);
  for (int group = thread; group < n; group += kSelectThreads) {
    int place = 0;
    for (int other = 0; other < n; ++other) {
      place += s.tier[other] > s.tier[group] || (s.tier[other] == s.tier[group] && other < group) ? 1 : 0;
    }
    s.row_group[place] = group;
    s.row_ptr[place] = count_events(a, s, chunks, group);
  }
  __syncthreads();
  if (thread != 0) return;
  int events = 0, snapshots = 0, high = 0, medium = 0;
  for (int row = 0; row < n; ++row) {
    const int group = s.row_group[row], kept = s.row_ptr[row];
    s.row_ptr[row] = events;
    s.first_snapshot[group] = snapshots;
    events += kept;
    snapshots += snapshot_room(kept, chunks);
    high += s.tier[group] == 2 ? 1 : 0;
    medium += s.tier[group] == 1 ? 1 : 0;
  }
  s.row_ptr[n] = events;
  s.tier_rows[0] = high;
  s.tier_rows[1] = medium;
}

/// The small tensors of up to kSelectThreads groups, near the threads that go through them again and again.
struct NearGroups {
  double gains[2][kSelectThreads], sorted[kSelectThreads], separation[kSelectThreads];
  std::int32_t tier[kSelectThreads], row_group[kSelectThreads], by_gain[kSelectThreads], rest[kSelectThreads];
};
__device__ inline SparseSelection bring_near(const SparseSelection& far, int n, bool has_gains, NearGroups& near) {
  SparseSelection s = far;
  for (int i = static_cast<int>(threadIdx.x); i < n && has_gains; i += kSelectThreads) {
    near.gains[0][i] = far.gain_low_medium[i];
    near.gains[1][i] = far.gain_medium_high[i];
  }
  s.gain_low_medium = near.gains[0], s.gain_medium_high = near.gains[1], s.sorted = near.sorted,
  s.separation = near.separation;
  s.tier = near.tier, s.row_group = near.row_group, s.by_gain = near.by_gain, s.rest = near.rest;
  __syncthreads();
  return s;
}

__global__ void assign_tiers_kernel(SparseSelectArgs a) {
  __shared__ NearGroups near;
  const int b = static_cast<int>(blockIdx.x), chunks = a.chunk_count(b), thread = static_cast<int>(threadIdx.x),
            n = a.group_count;
  if (chunks == 0) return;
  const SparseSelection far = selection_of(a, b);
  const SparseSelection s = n <= kSelectThreads ? bring_near(far, n, !a.is_given(), near) : far;
  if (a.is_given()) {
    const bool has_tiers = a.policy == SparsePolicy::kGiven && a.given_tier;
    for (int group = thread; group < n; group += kSelectThreads) s.tier[group] = has_tiers ? a.given_tier[group] : 2;
    __syncthreads();
  } else {
    choose_tiers(a, s);
  }
  place_rows(a, s, chunks);
  for (int group = thread; group < n; group += kSelectThreads) {
    far.tier[group] = s.tier[group];
    far.row_group[group] = s.row_group[group];
  }
}

}  // namespace cairn::gpu
