// decay_gate: natural log-decays, <= 0, from their pre-activations.  Spec 1 (softplus), 4 (GLA), 8.
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/scalar_functions.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {

const char* decay_gate_unsupported_reason(const DecayGateArgs& a) {
  if (a.kind == DecayKind::kLogSigmoid && !(a.parameter > 0)) {
    return unsupported("decay_gate: root %g is not supported (supported: > 0)", static_cast<double>(a.parameter));
  }
  if (a.kind == DecayKind::kLowerBound && !(a.parameter < 0)) {
    return unsupported("decay_gate: lower bound %g is not supported (supported: < 0)",
                       static_cast<double>(a.parameter));
  }
  return first_reason({require_f32("decay_gate", a.dtype), require_sizes("decay_gate", {a.head_count, a.rows})});
}

std::size_t decay_gate_scratch_bytes(const DecayGateArgs&) { return 0; }

void decay_gate_run(BackendQueue*, const DecayGateArgs& a, void*) {
  const std::int32_t width = a.head_count * a.rows;
  for (std::int32_t t = 0; t < a.token_count; ++t) {
    for (std::int32_t i = 0; i < width; ++i) {
      const double x = static_cast<double>(row(a.in, t)[i]) + (a.bias ? a.bias[i] : 0);
      const double rate = a.a_log ? std::exp(static_cast<double>(a.a_log[i / a.rows])) : 1;
      double g = 0;
      switch (a.kind) {
        case DecayKind::kSoftplus: g = -rate * softplus(x); break;
        case DecayKind::kLogSigmoid: g = log_sigmoid(x) / a.parameter; break;
        case DecayKind::kLowerBound: g = a.parameter * sigmoid(rate * x); break;
      }
      a.out[static_cast<std::int64_t>(t) * width + i] = static_cast<float>(g);
    }
  }
}

}  // namespace cairn::reference
