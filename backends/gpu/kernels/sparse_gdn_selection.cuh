// Stage 2 of SparseGDN, what its kernels share: the sequences, and the selector's tensors from scores to event rows.
// One launch serves all sequences of a batch. With C chunks and n groups in sequence b, tensors of heads or groups of
// all sequences lie one after another, tensors of chunks begin at chunk_begin[b], those of pairs at pair_begin(b).
#pragma once

#include "backends/gpu/kernels/any_element.cuh"
#include "backends/interface/scratch_layout.h"

namespace cairn::gpu {

inline constexpr int kChunk = 64, kSelectSequences = 128;  ///< of one launch

struct SparseSelection {
  float* scores;                                                     ///< [C, HV] in
  float* gamma;                                                      ///< [C, HV] in: log2-decay of a whole chunk
  double *norm, *retention, *lifetime, *visibility, *eta;            ///< [HV]
  double *gain_low_medium, *gain_medium_high, *sorted, *separation;  ///< [n]
  double* rank;                                                      ///< [n, C]
  std::int32_t* order;                                               ///< [n, C]: place -> chunk
  std::int32_t *tier, *row_group, *by_gain, *rest, *snapshot_count;  ///< [n]
  std::int32_t* first_snapshot;  ///< [n]: where the group's room for snapshots begins, from the kept counts alone
  std::int32_t* row_ptr;         ///< [n + 1], from the sequence's first event
  std::int32_t* tier_rows;       ///< [2]: rows of tier high, of tier medium
  std::uint8_t* mask;            ///< [n, C]
  std::int32_t *event_chunk, *event_snapshot;  ///< [n C]
  std::int32_t *entry_event, *entry_snapshot,
      *entry_count;  ///< [n, ceil(C / 2)]: entry_count events lie before chunk 2 r
};

/// Sequences [first_sequence, first_sequence + sequence_count) of a call; token_begin holds rows of the batch.
struct SparseSelectArgs {
  SparsePolicy policy;
  DType dtype;
  std::uint64_t seed;
  ConstRows gate;
  const float* norm_weight;
  const std::uint8_t* given_mask;
  const std::int32_t* given_tier;
  int group_count, head_count, value_dim, sequence_count;
  SparseSelection s;
  int token_begin[kSelectSequences + 1], chunk_begin[kSelectSequences + 1];

  __host__ __device__ int per_group() const { return head_count / group_count; }
  __host__ __device__ int chunk_count(int b) const { return chunk_begin[b + 1] - chunk_begin[b]; }
  __host__ __device__ int pair_count(int b) const { return (chunk_count(b) + 1) / 2; }
  __host__ __device__ bool is_given() const { return policy == SparsePolicy::kAll || policy == SparsePolicy::kGiven; }
};

__host__ __device__ inline int pair_begin(const int* chunk_begin, int b) { return (chunk_begin[b] + b) / 2; }

/// The tensors of sequence b alone.
__host__ __device__ inline SparseSelection selection_of(const SparseSelectArgs& a, int b) {
  SparseSelection s = a.s;
  const std::int64_t n = a.group_count, heads = a.head_count, chunks = a.chunk_begin[b],
                     pairs = pair_begin(a.chunk_begin, b);
  s.scores += chunks * heads, s.gamma += chunks * heads;
  s.norm += b * heads, s.retention += b * heads, s.lifetime += b * heads, s.visibility += b * heads, s.eta += b * heads;
  s.gain_low_medium += b * n, s.gain_medium_high += b * n, s.sorted += b * n, s.separation += b * n;
  s.rank += n * chunks, s.order += n * chunks, s.mask += n * chunks, s.event_chunk += n * chunks,
      s.event_snapshot += n * chunks;
  s.tier += b * n, s.row_group += b * n, s.by_gain += b * n, s.rest += b * n, s.snapshot_count += b * n;
  s.first_snapshot += b * n, s.row_ptr += b * (n + 1), s.tier_rows += 2 * b;
  s.entry_event += n * pairs, s.entry_snapshot += n * pairs, s.entry_count += n * pairs;
  return s;
}

inline SparseSelection carve_sparse_selection(int groups, int heads, int sequences, std::size_t chunks,
                                              ScratchLayout& layout) {
  const std::size_t n = static_cast<std::size_t>(groups), h = static_cast<std::size_t>(heads),
                    b = static_cast<std::size_t>(sequences);
  const std::size_t pairs = (chunks + b + 1) / 2;
  SparseSelection s{};
  for (float** piece : {&s.scores, &s.gamma}) *piece = layout.take<float>(chunks * h);
  for (double** piece : {&s.norm, &s.retention, &s.lifetime, &s.visibility, &s.eta})
    *piece = layout.take<double>(b * h);
  for (double** piece : {&s.gain_low_medium, &s.gain_medium_high, &s.sorted, &s.separation})
    *piece = layout.take<double>(b * n);
  s.rank = layout.take<double>(n * chunks);
  for (std::int32_t** piece : {&s.tier, &s.row_group, &s.by_gain, &s.rest, &s.snapshot_count, &s.first_snapshot})
    *piece = layout.take<std::int32_t>(b * n);
  s.row_ptr = layout.take<std::int32_t>(b * (n + 1));
  s.tier_rows = layout.take<std::int32_t>(b * 2);
  for (std::int32_t** piece : {&s.order, &s.event_chunk, &s.event_snapshot})
    *piece = layout.take<std::int32_t>(n * chunks);
  for (std::int32_t** piece : {&s.entry_event, &s.entry_snapshot, &s.entry_count})
    *piece = layout.take<std::int32_t>(n * pairs);
  s.mask = layout.take<std::uint8_t>(n * chunks);
  return s;
}

__host__ __device__ inline std::int64_t round_half_even(std::int64_t numerator, std::int64_t denominator) {
  std::int64_t quotient = numerator / denominator, remainder = numerator % denominator;
  if (remainder < 0) {
    remainder += denominator;
    --quotient;
  }
  return quotient + (2 * remainder > denominator || (2 * remainder == denominator && quotient % 2 != 0) ? 1 : 0);
}

/// Chunks that tier (0 low, 1 medium, 2 high) keeps of C.
__host__ __device__ inline int keep_count(int chunk_count, int tier) {
  const int percent = tier == 0 ? 8 : tier == 1 ? 30 : 95, least = chunk_count < 2 ? chunk_count : 2;
  const auto kept = static_cast<int>(round_half_even(static_cast<std::int64_t>(percent) * chunk_count, 100));
  return kept < least ? least : kept > chunk_count ? chunk_count : kept;
}

/// Medium groups around which choose_medium looks, when `high` of n are high.
__host__ __device__ inline int medium_centre(int n, int high) {
  return static_cast<int>(round_half_even(22LL * n - 87LL * high, 22));
}
__host__ __device__ inline int most_high(int n) { return n / 4 > 1 ? n / 4 : 1; }

/// Places that a group with `kept` events may take among the snapshots: one an event, one a pair, and the initial
/// state.
__host__ __device__ inline int snapshot_room(int kept, int chunk_count) {
  const int pairs = (chunk_count + 1) / 2;
  return (kept < pairs ? kept : pairs) + 1;
}

}  // namespace cairn::gpu
