// delta_net: the delta rule, one token:   r = v - S^T k;   S <- S + beta k r^T;   o = S^T q.
// Source: spec 1; D4 Eq. 14. Numerics: double inside a token; the state is f32 between tokens.
#include <cmath>

#include "backends/reference/delta_rule_run.h"
#include "backends/reference/reference_ops.h"

namespace cairn::reference {
namespace {

void delta_net_step(const DeltaToken& t, DeltaDims d, float* state_KV, double* r_V, double* o_V) {
  for (std::int32_t v = 0; v < d.value_dim; ++v) r_V[v] = t.v_V[v], o_V[v] = 0;
  for (std::int32_t k = 0; k < d.key_dim; ++k) {
    const double key = t.k_K[k];
    for (std::int32_t v = 0; v < d.value_dim; ++v) r_V[v] -= state_KV[k * d.value_dim + v] * key;
  }
  for (std::int32_t k = 0; k < d.key_dim; ++k) {
    const double write = t.beta * t.k_K[k], query = t.q_K[k];
    for (std::int32_t v = 0; v < d.value_dim; ++v) {
      const double s = state_KV[k * d.value_dim + v] + write * r_V[v];
      o_V[v] += s * query;
      state_KV[k * d.value_dim + v] = static_cast<float>(s);
    }
  }
}

}  // namespace

const char* delta_net_unsupported_reason(const DeltaRuleArgs& a) {
  return delta_rule_unsupported_reason("delta_net", a);
}
std::size_t delta_net_scratch_bytes(const DeltaRuleArgs& a) { return delta_rule_scratch_bytes(a); }
void delta_net_run(BackendQueue*, const DeltaRuleArgs& a, void* scratch) {
  run_delta_rule(delta_net_step, 0, a, scratch);
}

}  // namespace cairn::reference
