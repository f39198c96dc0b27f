// swiglu_linear: y = silu(x G^T + b) * (x U^T + c), with the rows of G and U one after the other in one weight.
#include "backends/reference/linear_weight_reference.h"
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/scalar_functions.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {

const char* swiglu_linear_unsupported_reason(const SwigluLinearArgs& a) {
  if (a.linear.weight->out_dim % 2) return unsupported("swiglu_linear: %d rows are no pairs", a.linear.weight->out_dim);
  return linear_unsupported_reason(a.linear);
}

std::size_t swiglu_linear_scratch_bytes(const SwigluLinearArgs&) { return 0; }

void swiglu_linear_run(BackendQueue*, const SwigluLinearArgs& a, void*) {
  const LinearWeight& w = *a.linear.weight;
  const std::int32_t hidden = w.out_dim / 2;
  const auto output = [&](std::int32_t t, std::int32_t o) {
    return weight_row_dot(w, o, row(a.linear.in, t)) + (w.bias ? w.bias[o] : 0);
  };
  for (std::int32_t t = 0; t < a.linear.token_count; ++t) {
    for (std::int32_t i = 0; i < hidden; ++i) {
      row(a.linear.out, t)[i] = static_cast<float>(activate(GateKind::kSilu, output(t, i)) * output(t, hidden + i));
    }
  }
}

}  // namespace cairn::reference
