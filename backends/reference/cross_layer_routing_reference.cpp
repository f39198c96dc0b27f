// cross_layer_add (CLER):   v~ = v + gamma side,   gamma a scalar, per head or per channel.   Spec 6.
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {

const char* cross_layer_add_unsupported_reason(const CrossLayerAddArgs& a) {
  return first_reason(
      {require_f32("cross_layer_add", a.dtype), require_sizes("cross_layer_add", {a.head_count, a.dim})});
}

std::size_t cross_layer_add_scratch_bytes(const CrossLayerAddArgs&) { return 0; }

void cross_layer_add_run(BackendQueue*, const CrossLayerAddArgs& a, void*) {
  for (std::int32_t t = 0; t < a.token_count; ++t) {
    for (std::int32_t h = 0; h < a.head_count; ++h) {
      for (std::int32_t d = 0; d < a.dim; ++d) {
        const double gamma = a.gamma[h * a.gamma_head_stride + d * a.gamma_dim_stride];
        const std::int32_t i = h * a.dim + d;
        row(a.out, t)[i] = static_cast<float>(row(a.v, t)[i] + gamma * row(a.side, t)[i]);
      }
    }
  }
}

}  // namespace cairn::reference
