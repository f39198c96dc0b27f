#include "backends/reference/sparse_gdn_event_scan.h"

#include <algorithm>
#include <cmath>

namespace cairn::reference {
namespace {

constexpr std::int32_t kN = kSparseChunk;

/// U' = U - W S with W = inverse diag(beta 2^g) K, formed now, row by row from the last: a row needs no other row of U.
void correct_u(const SparseGdnSequence& s, const SparseGdnIntra& intra, std::int32_t c, std::int32_t h,
               const SparseGdnScan& scan) {
  const std::int32_t key_dim = s.delta().key_dim, value_dim = s.delta().value_dim;
  const double *inverse = intra.inverse_of(c, h), *decay = intra.decay_log2_of(c, h);
  for (std::int32_t i = 0; i < s.tokens_in(c); ++i) {
    std::fill_n(scan.w_K, key_dim, 0.0);
    for (std::int32_t j = 0; j <= i; ++j) {
      const double weight = inverse[i * kN + j] * s.beta(c, j, h) * std::exp2(decay[j]);
      for (std::int32_t k = 0; k < key_dim; ++k) scan.w_K[k] += weight * s.k_K(c, j, h)[k];
    }
    double* u_V = intra.u_of(c, h) + i * value_dim;
    for (std::int32_t k = 0; k < key_dim; ++k) {
      for (std::int32_t v = 0; v < value_dim; ++v) u_V[v] -= scan.w_K[k] * scan.state_KV[k * value_dim + v];
    }
  }
}

/// S <- 2^gamma S + K^T (U' 2^(gamma - g)).
void write_state(const SparseGdnSequence& s, const SparseGdnIntra& intra, std::int32_t c, std::int32_t h,
                 double* state_KV) {
  const std::int32_t key_dim = s.delta().key_dim, value_dim = s.delta().value_dim;
  const double *decay = intra.decay_log2_of(c, h), gamma = intra.gamma_log2[intra.at(c, h)];
  for (std::int32_t i = 0; i < key_dim * value_dim; ++i) state_KV[i] *= std::exp2(gamma);
  for (std::int32_t i = 0; i < s.tokens_in(c); ++i) {
    const double* u_V = intra.u_of(c, h) + i * value_dim;
    for (std::int32_t k = 0; k < key_dim; ++k) {
      const double write = s.k_K(c, i, h)[k] * std::exp2(gamma - decay[i]);
      for (std::int32_t v = 0; v < value_dim; ++v) state_KV[k * value_dim + v] += write * u_V[v];
    }
  }
}

}  // namespace

SparseGdnScan carve_sparse_gdn_scan(const SparseGdnArgs& args, std::int32_t chunk_count, ScratchLayout& layout) {
  const std::size_t state = static_cast<std::size_t>(args.delta.key_dim) * args.delta.value_dim;
  SparseGdnScan scan;
  scan.state_KV = layout.take<double>(state);
  scan.w_K = layout.take<double>(args.delta.key_dim);
  scan.snapshots = layout.take<double>(state * ((chunk_count + 1) / 2));
  return scan;
}

void scan_sparse_gdn_events(const SparseGdnSequence& s, const SparseGdnIntra& intra, const SparseGdnLayout& layout,
                            std::int32_t row_of_group, std::int32_t h, const float* initial_KV,
                            const SparseGdnScan& scan) {
  const std::int32_t state_size = s.delta().key_dim * s.delta().value_dim;
  std::copy_n(initial_KV, state_size, scan.state_KV);
  const auto bridge = [&](std::int32_t from, std::int32_t to) {  // chunks [from, to) have no event
    double gap_log2 = 0;
    for (std::int32_t c = from; c < to; ++c) gap_log2 += intra.gamma_log2[intra.at(c, h)];
    for (std::int32_t i = 0; i < state_size; ++i) scan.state_KV[i] *= std::exp2(gap_log2);
  };
  std::int32_t reached = 0;
  for (std::int32_t i = layout.row_ptr[row_of_group]; i < layout.row_ptr[row_of_group + 1]; ++i) {
    const std::int32_t c = layout.event_chunk[i];
    bridge(reached, c);
    correct_u(s, intra, c, h, scan);
    write_state(s, intra, c, h, scan.state_KV);
    reached = c + 1;
    if (layout.event_snapshot[i] >= 0) {
      std::copy_n(scan.state_KV, state_size,
                  scan.snapshots + static_cast<std::int64_t>(layout.event_snapshot[i]) * state_size);
    }
  }
  bridge(reached, s.chunk_count);
}

}  // namespace cairn::reference
