// linear: y = x W^T (+ bias) (+ y), one row at a time, so a row's bits depend on the row and the weight alone.
#include "backends/reference/linear_weight_reference.h"
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/scalar_functions.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {

const char* weight_unsupported_reason(const char* what, const LinearWeight& w) {
  if (const char* reason = require_sizes(what, {w.out_dim, w.in_dim})) return reason;
  if (is_float_storage(w.dtype) || w.dtype == DType::kI8) return nullptr;
  if (w.dtype != DType::kI4) {
    return unsupported("%s: %s weights are not supported (supported: f32, bf16, f16, i8, i4)", what,
                       dtype_name(w.dtype));
  }
  if ((w.group_size != 32 && w.group_size != 64) || w.in_dim % w.group_size) {
    return unsupported("%s: i4 groups of %d in rows of %d are not supported (supported: 32, 64, dividing the row)",
                       what, w.group_size, w.in_dim);
  }
  return nullptr;
}

double weight_at(const LinearWeight& w, std::int32_t out, std::int32_t in) {
  const std::int64_t index = static_cast<std::int64_t>(out) * w.in_dim + in;
  if (w.dtype == DType::kI8) return static_cast<const std::int8_t*>(w.data)[index] * static_cast<double>(w.scales[out]);
  if (w.dtype != DType::kI4) return element(w.data, w.dtype, index);
  const std::uint8_t pair = static_cast<const std::uint8_t*>(w.data)[index / 2];
  const int nibble = index % 2 ? pair >> 4 : pair & 15;
  const double scale = w.scales[static_cast<std::int64_t>(out) * (w.in_dim / w.group_size) + in / w.group_size];
  return (nibble < 8 ? nibble : nibble - 16) * scale;
}

double weight_row_dot(const LinearWeight& w, std::int32_t out, const float* x) {
  double sum = 0;
  for (std::int32_t i = 0; i < w.in_dim; ++i) sum += weight_at(w, out, i) * x[i];
  return sum;
}

double weight_row_dot(const LinearWeight& w, std::int32_t out, const double* x) {
  double sum = 0;
  for (std::int32_t i = 0; i < w.in_dim; ++i) sum += weight_at(w, out, i) * x[i];
  return sum;
}

const char* linear_unsupported_reason(const LinearArgs& a) {
  return first_reason({require_f32("linear", a.dtype), require_f32("linear", a.out_dtype),
                       weight_unsupported_reason("linear", *a.weight)});
}

std::size_t linear_scratch_bytes(const LinearArgs&) { return 0; }

void linear_run(BackendQueue*, const LinearArgs& a, void*) {
  const LinearWeight& w = *a.weight;
  for (std::int32_t t = 0; t < a.token_count; ++t) {
    for (std::int32_t o = 0; o < w.out_dim; ++o) {
      float& y = row(a.out, t)[o];
      double sum = weight_row_dot(w, o, row(a.in, t));
      if (w.bias) sum += w.bias[o];
      if (a.accumulate) sum += y;
      y = static_cast<float>(sum);
    }
  }
}

}  // namespace cairn::reference
