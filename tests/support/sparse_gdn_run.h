// Runs a SparseGDN prefill of one sequence and brings back every stage tensor.
#pragma once

#include "tests/support/op_rig.h"

namespace cairn::test {

struct SparseGdnInput {
  std::int32_t T, HK, HV, K, V;
  std::vector<float> q, k, v, g, beta, state;  ///< state [HV, K, V]
  std::vector<float> gate, norm_weight;        ///< empty: the policy needs none
  SparsePolicy policy = SparsePolicy::kAdaptive;
  bool full_inverse = false;
  std::vector<std::uint8_t> mask;  ///< kGiven
  std::vector<std::int32_t> tier;
  std::uint64_t seed = 1;  ///< kRandom

  std::int32_t chunks() const { return (T + 63) / 64; }
};

/// As SparseGdnTrace, on the host; tensors of variable length are cut to it.
struct SparseGdnOutcome {
  std::string trouble;  ///< empty: ran
  std::vector<float> o, state, scores, gamma_log2, u, u_new, inverse_blocks, rank, retention, lifetime, eta, visibility,
      gain_low_medium, gain_medium_high, snapshots;
  std::vector<std::int32_t> order, tier, row_group, row_ptr, event_chunk, event_snapshot, snapshot_count, entry_event,
      entry_snapshot;
  std::vector<std::uint8_t> mask;
};

SparseGdnOutcome run_sparse_gdn(OpRig& rig, const SparseGdnInput& input);

/// inverse diag(beta) X for every chunk, X [T, HV, width] in the place of V: the operator's own inverse applied to
/// other columns.
SparseGdnOutcome run_sparse_gdn_on(OpRig& rig, SparseGdnInput input, std::int32_t width,
                                   const std::vector<float>& columns);

/// 2^(g_t) k_t per value head, g_t the inclusive cumulative log2-decay of t's chunk: the columns that give W. [T, HV,
/// K].
std::vector<float> decayed_keys(const SparseGdnInput& input);

}  // namespace cairn::test
