// gdn2: erase and write gates apart, one token:   S <- diag(exp(g)) S;   r = w v - S^T (b k);   S <- S + k r^T;   o =
// S^T q. Source: spec 1; D4 Eqs. 21-24: the erase key is b k, the write key stays k. Numerics: double inside a token;
// the state is f32 between tokens.
#include <cmath>

#include "backends/reference/delta_rule_run.h"
#include "backends/reference/reference_ops.h"

namespace cairn::reference {
namespace {

void gdn2_step(const DeltaToken& t, DeltaDims d, float* state_KV, double* r_V, double* o_V) {
  for (std::int32_t v = 0; v < d.value_dim; ++v) r_V[v] = static_cast<double>(t.write_V[v]) * t.v_V[v], o_V[v] = 0;
  for (std::int32_t k = 0; k < d.key_dim; ++k) {
    const double decay = std::exp(static_cast<double>(t.log_decay[k])),
                 erase = static_cast<double>(t.erase_K[k]) * t.k_K[k];
    for (std::int32_t v = 0; v < d.value_dim; ++v) r_V[v] -= decay * state_KV[k * d.value_dim + v] * erase;
  }
  for (std::int32_t k = 0; k < d.key_dim; ++k) {
    const double decay = std::exp(static_cast<double>(t.log_decay[k])), write = t.k_K[k], query = t.q_K[k];
    for (std::int32_t v = 0; v < d.value_dim; ++v) {
      const double s = decay * state_KV[k * d.value_dim + v] + write * r_V[v];
      o_V[v] += s * query;
      state_KV[k * d.value_dim + v] = static_cast<float>(s);
    }
  }
}

}  // namespace

const char* gdn2_unsupported_reason(const DeltaRuleArgs& a) { return delta_rule_unsupported_reason("gdn2", a); }
std::size_t gdn2_scratch_bytes(const DeltaRuleArgs& a) { return delta_rule_scratch_bytes(a); }
void gdn2_run(BackendQueue*, const DeltaRuleArgs& a, void* scratch) {
  run_delta_rule(gdn2_step, a.key_dim, a, scratch);
}

}  // namespace cairn::reference
