#include "backends/reference/sparse_gdn_output.h"

#include <algorithm>
#include <cmath>

#include "backends/reference/row_access.h"

namespace cairn::reference {
namespace {

/// sum_V += weight q_i^T S.
void read_state(const SparseGdnSequence& s, const float* q_K, double weight, const double* state_KV, double* sum_V) {
  const std::int32_t value_dim = s.delta().value_dim;
  for (std::int32_t k = 0; k < s.delta().key_dim; ++k) {
    for (std::int32_t v = 0; v < value_dim; ++v) sum_V[v] += weight * q_K[k] * state_KV[k * value_dim + v];
  }
}

/// sum_V += sum over the first `count` tokens j of chunk c of  <q, k_j> 2^(decay_log2 - g_j) U'_j.
void read_chunk(const SparseGdnSequence& s, const SparseGdnIntra& intra, std::int32_t c, std::int32_t h,
                std::int32_t count, const float* q_K, double decay_log2, double* sum_V) {
  const std::int32_t value_dim = s.delta().value_dim;
  for (std::int32_t j = 0; j < count; ++j) {
    double dot = 0;
    for (std::int32_t k = 0; k < s.delta().key_dim; ++k) dot += static_cast<double>(q_K[k]) * s.k_K(c, j, h)[k];
    dot *= std::exp2(decay_log2 - intra.decay_log2_of(c, h)[j]);
    for (std::int32_t v = 0; v < value_dim; ++v) sum_V[v] += dot * intra.u_of(c, h)[j * value_dim + v];
  }
}

/// The state that enters chunk c: the snapshot of the last event before it, decayed over the gap.
void form_entry_state(const SparseGdnSequence& s, const SparseGdnIntra& intra, std::int32_t c, std::int32_t h,
                      std::int32_t event, const double* snapshot_KV, const float* initial_KV, double* entry_KV) {
  double gap_log2 = 0;
  for (std::int32_t between = event + 1; between < c; ++between) gap_log2 += intra.gamma_log2[intra.at(between, h)];
  for (std::int32_t i = 0; i < s.delta().key_dim * s.delta().value_dim; ++i) {
    entry_KV[i] = std::exp2(gap_log2) * (event >= 0 ? snapshot_KV[i] : initial_KV[i]);
  }
}

}  // namespace

void write_sparse_gdn_outputs(const SparseGdnSequence& s, const SparseGdnIntra& intra, const SparseGdnLayout& layout,
                              std::int32_t h, const float* initial_KV, const double* snapshots, double* entry_KV,
                              double* sum_V) {
  const std::int32_t value_dim = s.delta().value_dim, pairs = (s.chunk_count + 1) / 2, group = h / s.heads_per_group();
  const std::int64_t state_size = static_cast<std::int64_t>(s.delta().key_dim) * value_dim;
  for (std::int32_t c = 0; c < s.chunk_count; ++c) {
    const std::int32_t even = c / 2 * 2, entry = group * pairs + c / 2;
    if (c == even) {
      form_entry_state(s, intra, c, h, layout.entry_event[entry], snapshots + layout.entry_snapshot[entry] * state_size,
                       initial_KV, entry_KV);
    }
    for (std::int32_t i = 0; i < s.tokens_in(c); ++i) {
      const float* q_K = s.q_K(c, i, h);
      const double own_log2 = intra.decay_log2_of(c, h)[i];
      const double since_entry_log2 = c == even ? own_log2 : own_log2 + intra.gamma_log2[intra.at(even, h)];
      std::fill_n(sum_V, value_dim, 0.0);
      read_state(s, q_K, std::exp2(since_entry_log2), entry_KV, sum_V);
      if (c != even) read_chunk(s, intra, even, h, kSparseChunk, q_K, since_entry_log2, sum_V);
      read_chunk(s, intra, c, h, i + 1, q_K, own_log2, sum_V);
      float* out = row(s.delta().out, s.first_row + c * kSparseChunk + i) + h * value_dim;
      for (std::int32_t v = 0; v < value_dim; ++v) out[v] = static_cast<float>(s.delta().scale * sum_V[v]);
    }
  }
}

}  // namespace cairn::reference
