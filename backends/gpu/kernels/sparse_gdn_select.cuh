// Stages 2 and 3: which chunks of which groups update the state, and where their events and snapshots lie. Doubles and exact
// integers, as spec 3 says; nothing leaves the device.
#pragma once

#include "backends/gpu/kernels/sparse_gdn_plan.cuh"

namespace cairn::gpu {

__device__ inline std::int64_t round_half_even(std::int64_t numerator, std::int64_t denominator) {
  std::int64_t quotient = numerator / denominator, remainder = numerator % denominator;
  if (remainder < 0) {
    remainder += denominator;
    --quotient;
  }
  return quotient + (2 * remainder > denominator || (2 * remainder == denominator && quotient % 2 != 0) ? 1 : 0);
}

/// Chunks that tier (0 low, 1 medium, 2 high) keeps of C.
__device__ inline int keep_count(int chunk_count, int tier) {
  const int percent = tier == 0 ? 8 : tier == 1 ? 30 : 95, least = chunk_count < 2 ? chunk_count : 2;
  const auto kept = static_cast<int>(round_half_even(static_cast<std::int64_t>(percent) * chunk_count, 100));
  return kept < least ? least : kept > chunk_count ? chunk_count : kept;
}

/// Rank values, and r and L of the group's heads: a block owns a group. Thread 0 sums; others divide the chunks.
__global__ void rank_chunks_kernel(SparseGdnStage stage) {
  const int group = static_cast<int>(blockIdx.x), per = stage.per_group(), heads = stage.call.delta.value_heads, chunks = stage.chunk_count;
  const int thread = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  double* rank = stage.scratch.rank + static_cast<std::int64_t>(group) * chunks;
  for (int h = group * per + thread; h < (group + 1) * per; h += step) {
    double square = 0, sum = 0, lifetime = 0, power = 1;
    const int last = chunks < 16 ? chunks : 16;
    for (int c = 0; c < chunks; ++c) square += static_cast<double>(stage.scratch.scores[static_cast<std::int64_t>(c) * heads + h]) * stage.scratch.scores[static_cast<std::int64_t>(c) * heads + h];
    for (int c = chunks - last; c < chunks; ++c) sum += exp2(static_cast<double>(stage.scratch.gamma[static_cast<std::int64_t>(c) * heads + h]));
    for (int j = 1; j <= chunks - 2; ++j) lifetime += power *= sum / last;
    stage.scratch.retention[h] = sum / last;
    stage.scratch.lifetime[h] = lifetime;
    stage.scratch.visibility[h] = sqrt(square);  // the norm, until the gains need the place
  }
  __syncthreads();
  for (int c = thread; c < chunks; c += step) {
    double value = 0;
    for (int h = group * per; h < (group + 1) * per; ++h) {
      const double norm = stage.scratch.visibility[h];
      if (norm > 0) value += stage.scratch.scores[static_cast<std::int64_t>(c) * heads + h] / norm / per;
    }
    rank[c] = value - value == 0 ? value : 0;  // what is not finite has no place in an order
  }
}

/// Anchors first, then by rank, ties to the lower chunk: a thread finds one chunk's place.
__global__ void order_chunks_kernel(SparseGdnStage stage) {
  const int group = static_cast<int>(blockIdx.y), chunks = stage.chunk_count;
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= chunks) return;
  const double* rank = stage.scratch.rank + static_cast<std::int64_t>(group) * chunks;
  int place = c == 0 ? 0 : 1;
  if (c > 0 && c < chunks - 1) {
    place = 2;
    for (int other = 1; other < chunks - 1; ++other) place += rank[other] > rank[c] || (rank[other] == rank[c] && other < c) ? 1 : 0;
  }
  stage.scratch.order[static_cast<std::int64_t>(group) * chunks + place] = c;
}

/// eta of one head a block; samples are added in order by thread 0.
__global__ void gate_energy_kernel(SparseGdnStage stage) {
  if (threadIdx.x != 0) return;
  const int head = static_cast<int>(blockIdx.x), value_dim = stage.call.delta.value_dim;
  double eta = 0;
  for (int sample = 0; stage.call.gate.data && sample < 4 * stage.chunk_count; ++sample) {  // without an output gate: 0
    const int t = kChunk * (sample / 4) + 8 + 16 * (sample % 4), v = static_cast<int>(73LL * sample % value_dim);
    if (t >= stage.token_count) continue;
    const double z = load(stage.call.gate, stage.call.delta.dtype, stage.first_token + t, static_cast<std::int64_t>(head) * value_dim + v);
    const double seen = stage.call.norm_weight[v] * z / (1 + exp(-z));
    eta += seen * seen / (4 * stage.chunk_count);
  }
  stage.scratch.eta[head] = eta;
}

__device__ inline double separation(const double* x, int n, int k) {
  if (k == 0 || k == n) return 0;
  double upper = 0, lower = 0;
  for (int i = 0; i < n; ++i) (i < k ? upper : lower) += x[i];
  const double gap = upper / k - lower / (n - k);
  return static_cast<double>(k) * (n - k) / n * gap * gap;
}

/// Indices of x from the largest, ties to the lower index, by insertion.
__device__ inline void sort_descending(const double* x, int n, std::int32_t* index) {
  for (int i = 0; i < n; ++i) {
    int place = i;
    while (place > 0 && x[index[place - 1]] < x[i]) {
      index[place] = index[place - 1];
      --place;
    }
    index[place] = i;
  }
}

__device__ inline int choose_high(const double* sorted, int n) {
  int best = 1;
  for (int k = 2; k <= (n / 4 > 1 ? n / 4 : 1); ++k) {
    if (separation(sorted, n, k) > separation(sorted, n, best)) best = k;
  }
  return best;
}

__device__ inline int choose_medium(const double* sorted, int n, int rest, int high) {
  const auto centre = static_cast<int>(round_half_even(22LL * n - 87LL * high, 22));
  int best = -1;
  for (int k = centre - 1; centre > 0 && k <= centre + 1; ++k) {
    if (k < 0 || k > rest) continue;
    if (best < 0 || separation(sorted, rest, k) > separation(sorted, rest, best)) best = k;
  }
  return best < 0 ? 0 : best;
}

__device__ inline void choose_tiers(const SparseGdnStage& stage) {
  const SparseGdnScratch& s = stage.scratch;
  const int n = stage.groups();
  const bool is_fixed = stage.call.policy == SparsePolicy::kFixed;
  sort_descending(s.gain_medium_high, n, s.by_gain);
  for (int i = 0; i < n; ++i) s.sorted[i] = s.gain_medium_high[s.by_gain[i]];
  int high = is_fixed ? static_cast<int>(round_half_even(3LL * n, 16)) : choose_high(s.sorted, n);
  if (high < 1) high = 1;
  for (int i = 0; i < n; ++i) s.tier[s.by_gain[i]] = i < high ? 2 : 0;
  int rest = 0;
  for (int p = 0; p < n; ++p) {
    if (s.tier[p] == 2) continue;
    s.rest[rest] = p;
    s.sorted[rest++] = s.gain_low_medium[p];
  }
  sort_descending(s.sorted, rest, s.by_gain);
  for (int i = 0; i < rest; ++i) s.sorted[i] = s.gain_low_medium[s.rest[s.by_gain[i]]];
  int medium = is_fixed ? static_cast<int>(round_half_even(4LL * n, 16)) : choose_medium(s.sorted, n, rest, high);
  if (medium > rest) medium = rest;
  for (int i = 0; i < medium; ++i) s.tier[s.rest[s.by_gain[i]]] = 1;
}

/// Gains of the groups, then their tiers: one block.
__global__ void assign_tiers_kernel(SparseGdnStage stage) {
  const SparseGdnScratch& s = stage.scratch;
  const int heads = stage.call.delta.value_heads, per = stage.per_group(), chunks = stage.chunk_count, thread = static_cast<int>(threadIdx.x);
  double mean = 0;
  for (int h = 0; h < heads; ++h) mean += s.eta[h] / heads;
  for (int h = thread; h < heads; h += static_cast<int>(blockDim.x)) s.visibility[h] = mean > 0 ? sqrt(s.eta[h] / mean) : 1;
  __syncthreads();
  for (int group = thread; group < stage.groups(); group += static_cast<int>(blockDim.x)) {
    double gains[2] = {0, 0};
    for (int upgrade = 0; upgrade < 2; ++upgrade) {
      for (int i = keep_count(chunks, upgrade); i < keep_count(chunks, upgrade + 1); ++i) {
        const std::int64_t c = s.order[static_cast<std::int64_t>(group) * chunks + i];
        for (int h = group * per; h < (group + 1) * per; ++h) gains[upgrade] += s.scores[c * heads + h] * s.lifetime[h] * s.visibility[h];
      }
    }
    s.gain_low_medium[group] = gains[0];
    s.gain_medium_high[group] = gains[1];
  }
  __syncthreads();
  if (thread == 0) choose_tiers(stage);
}

__device__ inline std::uint64_t next_random(std::uint64_t* state) {
  std::uint64_t z = *state += 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  return z ^ z >> 31;
}

/// A thread marks one group's events: a prefix of its order; `random` keeps the anchors and draws the others in order.
__global__ void mark_events_kernel(SparseGdnStage stage) {
  const int group = static_cast<int>(blockIdx.x), chunks = stage.chunk_count;
  if (threadIdx.x != 0) return;
  std::uint8_t* mask = stage.scratch.mask + static_cast<std::int64_t>(group) * chunks;
  const SparsePolicy policy = stage.call.policy;
  if (policy == SparsePolicy::kAll || policy == SparsePolicy::kGiven) {
    const bool is_all = policy == SparsePolicy::kAll;
    for (int c = 0; c < chunks; ++c) mask[c] = is_all || stage.call.given_mask[static_cast<std::int64_t>(group) * chunks + c] != 0;
    stage.scratch.tier[group] = is_all || !stage.call.given_tier ? 2 : stage.call.given_tier[group];
    return;
  }
  const std::int32_t* order = stage.scratch.order + static_cast<std::int64_t>(group) * chunks;
  const int kept = keep_count(chunks, stage.scratch.tier[group]), anchors = kept < 2 ? kept : 2;
  for (int c = 0; c < chunks; ++c) mask[c] = 0;
  for (int i = 0; i < (policy == SparsePolicy::kRandom ? anchors : kept); ++i) mask[order[i]] = 1;
  if (policy != SparsePolicy::kRandom) return;
  std::uint64_t state = stage.call.seed * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(group);
  int wanted = kept - anchors, left = chunks - 2;
  for (int i = 2; i < chunks; ++i, --left) {
    if (next_random(&state) % static_cast<std::uint64_t>(left) >= static_cast<std::uint64_t>(wanted)) continue;
    mask[order[i]] = 1;
    --wanted;
  }
}

/// CSR rows, high tiers first, and the map of snapshots: one stored right after an event that a later even chunk reads.
__global__ void lay_out_events_kernel(SparseGdnStage stage) {
  const SparseGdnScratch& s = stage.scratch;
  const int n = stage.groups(), chunks = stage.chunk_count, pairs = stage.pairs();
  if (threadIdx.x == 0) {
    int row = 0, events = 0;
    for (int tier = 2; tier >= 0; --tier) {
      for (int group = 0; group < n; ++group) {
        if (s.tier[group] != tier) continue;
        s.row_group[row] = group;
        s.row_ptr[row++] = events;
        for (int c = 0; c < chunks; ++c) events += s.mask[static_cast<std::int64_t>(group) * chunks + c];
      }
    }
    s.row_ptr[n] = events;
  }
  __syncthreads();
  for (int row = static_cast<int>(threadIdx.x); row < n; row += static_cast<int>(blockDim.x)) {
    const int group = s.row_group[row];
    int event = s.row_ptr[row], last = -1, last_snapshot = -1, snapshots = 0;
    for (int c = 0; c < chunks; ++c) {
      if (c % 2 == 0) {
        if (last >= 0 && last_snapshot < 0) {
          last_snapshot = snapshots++;
          s.event_snapshot[event - 1] = last_snapshot;
        }
        s.entry_event[static_cast<std::int64_t>(group) * pairs + c / 2] = last;
        s.entry_snapshot[static_cast<std::int64_t>(group) * pairs + c / 2] = last_snapshot;
      }
      if (!s.mask[static_cast<std::int64_t>(group) * chunks + c]) continue;
      s.event_chunk[event] = c;
      s.event_snapshot[event++] = -1;
      last = c;
      last_snapshot = -1;
    }
    s.snapshot_count[group] = snapshots;
  }
}

}  // namespace cairn::gpu
