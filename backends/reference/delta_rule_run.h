// What the four delta rules share: the walk over sequences, value heads and tokens. The rules themselves are one step
// each.
#pragma once

#include "backends/interface/op_args.h"

namespace cairn::reference {

/// One token of one value head.
struct DeltaToken {
  const float* q_K;
  const float* k_K;
  const float* v_V;
  const float* log_decay;  ///< GDN: one; KDA, GDN2: [K]; DeltaNet: null
  double beta;             ///< not GDN2
  const float* erase_K;    ///< GDN2
  const float* write_V;    ///< GDN2
};

struct DeltaDims {
  std::int32_t key_dim, value_dim;
};

/// Updates state_KV, leaves the residual r and the unscaled output S^T q.
using DeltaStep = void (*)(const DeltaToken& token, DeltaDims dims, float* state_KV, double* r_V, double* o_V);

const char* delta_rule_unsupported_reason(const char* name, const DeltaRuleArgs& args);
std::size_t delta_rule_scratch_bytes(const DeltaRuleArgs& args);
void run_delta_rule(DeltaStep step, std::int32_t decays_per_head, const DeltaRuleArgs& args, void* scratch);

}  // namespace cairn::reference
