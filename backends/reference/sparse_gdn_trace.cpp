#include "backends/reference/sparse_gdn_trace.h"

namespace cairn::reference {
namespace {

template <class From, class To>
void put(const From* from, std::int64_t count, To* to) {
  if (!to) return;
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
}

/// [C, HV, 64, V] -> token-major [T, HV, V], value head h only.
void put_u(const SparseGdnSequence& s, const SparseGdnIntra& intra, std::int32_t h, float* to) {
  if (!to) return;
  for (std::int32_t t = 0; t < s.token_count; ++t) {
    const double* u_V = intra.u_of(t / kSparseChunk, h) + t % kSparseChunk * intra.value_dim;
    put(u_V, intra.value_dim, to + (static_cast<std::int64_t>(t) * intra.value_heads + h) * intra.value_dim);
  }
}

/// The kept blocks 00 10 11 21 22 32 33 of every inverse: [C, HV, 7, 16, 16].
void put_inverse_blocks(const SparseGdnSequence& s, const SparseGdnIntra& intra, float* to) {
  if (!to) return;
  for (std::int32_t c = 0; c < s.chunk_count; ++c) {
    for (std::int32_t h = 0; h < intra.value_heads; ++h) {
      for (std::int32_t block = 0; block < 7; ++block) {
        const std::int32_t block_row = (block + 1) / 2, block_column = block / 2;
        for (std::int32_t i = 0; i < kSparseBlock; ++i, to += kSparseBlock) {
          const double* from =
              intra.inverse_of(c, h) + (block_row * kSparseBlock + i) * kSparseChunk + block_column * kSparseBlock;
          put(from, kSparseBlock, to);
        }
      }
    }
  }
}

}  // namespace

void trace_sparse_gdn_stages(const SparseGdnTrace& trace, const SparseGdnSequence& s, const SparseGdnIntra& intra,
                             const SparseGdnSelection& selection, const SparseGdnLayout& layout, const double* eta) {
  const std::int64_t n = s.delta().key_heads, heads = intra.value_heads, chunks = s.chunk_count,
                     pairs = (chunks + 1) / 2;
  put(intra.scores, chunks * heads, trace.scores);
  put(intra.gamma_log2, chunks * heads, trace.gamma_log2);
  for (std::int32_t h = 0; h < heads; ++h) put_u(s, intra, h, trace.u);
  put_inverse_blocks(s, intra, trace.inverse_blocks);
  put(selection.mask, n * chunks, trace.mask);
  put(selection.tier, n, trace.tier);
  if (s.args.policy != SparsePolicy::kAll && s.args.policy != SparsePolicy::kGiven) {
    put(selection.rank, n * chunks, trace.rank);
    put(selection.order, n * chunks, trace.order);
    put(selection.retention, heads, trace.retention);
    put(selection.lifetime, heads, trace.lifetime);
    put(eta, heads, trace.eta);
    put(selection.visibility, heads, trace.visibility);
    put(selection.gain_low_medium, n, trace.gain_low_medium);
    put(selection.gain_medium_high, n, trace.gain_medium_high);
  }
  put(layout.row_group, n, trace.row_group);
  put(layout.row_ptr, n + 1, trace.row_ptr);
  put(layout.event_chunk, layout.row_ptr[n], trace.event_chunk);
  put(layout.event_snapshot, layout.row_ptr[n], trace.event_snapshot);
  put(layout.snapshot_count, n, trace.snapshot_count);
  put(layout.entry_event, n * pairs, trace.entry_event);
  put(layout.entry_snapshot, n * pairs, trace.entry_snapshot);
}

void trace_sparse_gdn_scan(const SparseGdnTrace& trace, const SparseGdnSequence& s, const SparseGdnIntra& intra,
                           const SparseGdnLayout& layout, std::int32_t h, const double* snapshots) {
  put_u(s, intra, h, trace.u_new);
  if (!trace.snapshots) return;
  const std::int64_t state_size = static_cast<std::int64_t>(s.delta().key_dim) * s.delta().value_dim;
  std::int64_t before = 0;
  for (std::int32_t lower = 0; lower < h; ++lower) before += layout.snapshot_count[lower / s.heads_per_group()];
  put(snapshots, layout.snapshot_count[h / s.heads_per_group()] * state_size, trace.snapshots + before * state_size);
}

}  // namespace cairn::reference
