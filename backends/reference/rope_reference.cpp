// rope: half-split pairs (i, i + r / 2) of the first r columns turn by  position * theta^(-2 i / r).   Spec 7.
#include <cmath>

#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {

const char* rope_unsupported_reason(const RopeArgs& a) {
  if (a.rotary_dim < 0 || a.rotary_dim > a.dim || a.rotary_dim % 2) {
    return unsupported("rope: %d rotated columns of %d are not supported (supported: even, at most all)", a.rotary_dim,
                       a.dim);
  }
  return first_reason({require_f32("rope", a.dtype), require_sizes("rope", {a.head_count, a.dim})});
}

std::size_t rope_scratch_bytes(const RopeArgs&) { return 0; }

void rope_run(BackendQueue*, const RopeArgs& a, void*) {
  const std::int32_t half = a.rotary_dim / 2;
  for (std::int32_t b = 0; b < a.batch.sequence_count; ++b) {
    const std::int32_t first = a.batch.offsets_host[b];
    for (std::int32_t t = first; t < a.batch.offsets_host[b + 1]; ++t) {
      const double position = static_cast<double>(a.starts[b] + (t - first));
      for (std::int32_t i = 0; i < half; ++i) {
        const double angle = position * std::pow(static_cast<double>(a.theta), -2.0 * i / a.rotary_dim);
        const double c = std::cos(angle), s = std::sin(angle);
        for (std::int32_t h = 0; h < a.head_count; ++h) {
          float* x = row(a.x, t) + h * a.dim;
          const double left = x[i], right = x[i + half];
          x[i] = static_cast<float>(left * c - right * s);
          x[i + half] = static_cast<float>(right * c + left * s);
        }
      }
    }
  }
}

}  // namespace cairn::reference
