// rms_norm, gated_rms_norm: per head   x / sqrt(mean(x^2) + eps) * weight   (* gate(z));   spec 1, output.
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/scalar_functions.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {
namespace {

struct Centred {
  double mean, inverse_deviation;
};

Centred moments(NormKind norm, const float* x, std::int32_t dim, double eps) {
  double mean = 0, square = 0;
  if (norm == NormKind::kLayerNorm) {
    for (std::int32_t d = 0; d < dim; ++d) mean += x[d];
    mean /= dim;
  }
  for (std::int32_t d = 0; d < dim; ++d) square += (x[d] - mean) * (x[d] - mean);
  return {mean, 1 / std::sqrt(square / dim + eps)};
}

}  // namespace

const char* rms_norm_unsupported_reason(const RmsNormArgs& a) {
  return first_reason({require_f32("rms_norm", a.dtype), require_sizes("rms_norm", {a.head_count, a.dim})});
}

std::size_t rms_norm_scratch_bytes(const RmsNormArgs&) { return 0; }

void rms_norm_run(BackendQueue*, const RmsNormArgs& a, void*) {
  for (std::int32_t t = 0; t < a.token_count; ++t) {
    for (std::int32_t h = 0; h < a.head_count; ++h) {
      const float* x = row(a.in, t) + h * a.dim;
      float* out = row(a.out, t) + h * a.dim;
      const double factor = moments(NormKind::kRms, x, a.dim, a.eps).inverse_deviation;
      for (std::int32_t d = 0; d < a.dim; ++d)
        out[d] = static_cast<float>(x[d] * factor * (a.weight ? a.weight[d] : 1));
    }
  }
}

const char* gated_rms_norm_unsupported_reason(const GatedRmsNormArgs& a) {
  return first_reason({require_f32("gated_rms_norm", a.dtype), require_sizes("gated_rms_norm", {a.head_count, a.dim})});
}

std::size_t gated_rms_norm_scratch_bytes(const GatedRmsNormArgs&) { return 0; }

void gated_rms_norm_run(BackendQueue*, const GatedRmsNormArgs& a, void*) {
  for (std::int32_t t = 0; t < a.token_count; ++t) {
    for (std::int32_t h = 0; h < a.head_count; ++h) {
      const float* x = row(a.in, t) + h * a.dim;
      const float* z = a.gate_kind == GateKind::kNone ? nullptr : row(a.gate, t) + h * a.dim;
      float* out = row(a.out, t) + h * a.dim;
      const Centred m = moments(a.norm, x, a.dim, a.eps);
      for (std::int32_t d = 0; d < a.dim; ++d) {
        double y = (x[d] - m.mean) * m.inverse_deviation * (a.weight ? a.weight[d] : 1);
        if (a.norm == NormKind::kLayerNorm && a.bias) y += a.bias[d];
        out[d] = static_cast<float>(z ? y * activate(a.gate_kind, z[d]) : y);
      }
    }
  }
}

}  // namespace cairn::reference
