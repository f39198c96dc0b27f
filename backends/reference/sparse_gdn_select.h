// SparseGDN, stage 2: which chunks of which group run an event (spec 3.2). Host code; also for backends that select
// there.
#pragma once

#include "backends/interface/op_args.h"
#include "backends/interface/scratch_layout.h"

namespace cairn::reference {

/// C chunks, n groups of HV / n value heads. scores and gamma_log2 [C, HV]: tail scores and whole-chunk decays of
/// stage 1.
struct SparseGdnSelectionInput {
  std::int32_t chunk_count, group_count, head_count;
  const double* scores;
  const double* gamma_log2;
  const double* eta;  ///< [HV] gate energy, see sparse_gdn_gate_energy
  SparsePolicy policy;
  std::uint64_t seed;
  const std::uint8_t* given_mask;  ///< kGiven: [n, C]
  const std::int32_t* given_tier;  ///< kGiven: [n], null: all high
};

/// What was selected, and why. kAll and kGiven leave everything but mask, tier and keep unset.
struct SparseGdnSelection {
  std::uint8_t* mask;        ///< [n, C]: 1 where the group runs an event
  std::int32_t* tier;        ///< [n]: 0 low, 1 medium, 2 high
  double* rank;              ///< [n, C]
  std::int32_t* order;       ///< [n, C]: chunks, first kept first
  double* retention;         ///< [HV]
  double* lifetime;          ///< [HV]
  double* visibility;        ///< [HV]
  double* gain_low_medium;   ///< [n]
  double* gain_medium_high;  ///< [n]
  double* high_separation;   ///< [n]: B(gain_medium_high, 1), B(.., 2), ...; high_choices of them
  std::int32_t keep[3];      ///< chunks kept by a low, medium, high group
  std::int32_t high_count, high_choices;
  std::int32_t medium_count, medium_choices;
  std::int32_t medium_counts[3];  ///< the counts that were allowed
  double medium_separation[3];
  std::int32_t* by_gain;  ///< [n] working space
  std::int32_t* rest;     ///< [n] working space
  double* sorted;         ///< [n] working space
};

SparseGdnSelection carve_sparse_gdn_selection(std::int32_t chunk_count, std::int32_t group_count,
                                              std::int32_t head_count, ScratchLayout& layout);

/// eta [HV] of one sequence: sampled energy of the output gate, gate [T, HV, V] its pre-activation, norm_weight [V].
void sparse_gdn_gate_energy(const ConstRows& gate, std::int32_t first_row, std::int32_t token_count,
                            std::int32_t head_count, std::int32_t value_dim, const float* norm_weight, double* eta);

void select_sparse_gdn(const SparseGdnSelectionInput& input, SparseGdnSelection* selection);

/// round(numerator / denominator), ties to even, in integers; denominator > 0.
std::int64_t round_half_even(std::int64_t numerator, std::int64_t denominator);

}  // namespace cairn::reference
