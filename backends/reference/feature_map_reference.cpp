// feature_map: per head   out = map(x * scale) * out_scale.   Spec 1 and 4; l2 has eps 1e-6 under the root.
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/scalar_functions.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {
namespace {

double map_element(FeatureMap map, double x) {
  switch (map) {
    case FeatureMap::kSilu: return silu(x);
    case FeatureMap::kRelu: return x > 0 ? x : 0;
    case FeatureMap::kEluPlusOne: return x > 0 ? x + 1 : std::exp(x);
    case FeatureMap::kSigmoid: return sigmoid(x);
    default: return x;
  }
}

/// Softmax: the largest input, which the exponent leaves out; else 0.
double shift_of(const FeatureMapArgs& a, const float* x) {
  if (a.map != FeatureMap::kSoftmax) return 0;
  double largest = -INFINITY;
  for (std::int32_t d = 0; d < a.dim; ++d) largest = std::fmax(largest, static_cast<double>(x[d]) * a.scale);
  return largest;
}

/// What the head is divided by.
double norm_of(const FeatureMapArgs& a, const float* x, double shift) {
  double sum = 0;
  for (std::int32_t d = 0; d < a.dim; ++d) {
    const double value = static_cast<double>(x[d]) * a.scale;
    sum += a.map == FeatureMap::kSoftmax ? std::exp(value - shift) : a.map == FeatureMap::kL2 ? value * value : value;
  }
  switch (a.map) {
    case FeatureMap::kSoftmax:
    case FeatureMap::kSumNorm: return sum;
    case FeatureMap::kL2: return std::sqrt(sum + 1e-6);
    default: return 1;
  }
}

}  // namespace

const char* feature_map_unsupported_reason(const FeatureMapArgs& a) {
  return first_reason({require_f32("feature_map", a.dtype), require_f32("feature_map", a.out_dtype),
                       require_sizes("feature_map", {a.head_count, a.dim})});
}

std::size_t feature_map_scratch_bytes(const FeatureMapArgs&) { return 0; }

void feature_map_run(BackendQueue*, const FeatureMapArgs& a, void*) {
  for (std::int32_t t = 0; t < a.token_count; ++t) {
    for (std::int32_t h = 0; h < a.head_count; ++h) {
      const float* x = row(a.in, t) + h * a.dim;
      float* out = row(a.out, t) + h * a.dim;
      const double shift = shift_of(a, x), norm = norm_of(a, x, shift);
      for (std::int32_t d = 0; d < a.dim; ++d) {
        const double value = static_cast<double>(x[d]) * a.scale;
        const double mapped = a.map == FeatureMap::kSoftmax ? std::exp(value - shift) : map_element(a.map, value);
        out[d] = static_cast<float>(mapped / norm * a.out_scale);
      }
    }
  }
}

}  // namespace cairn::reference
