// short_conv, one token:   y = act(sum_j w[c, j] x_{t-n+1+j} + bias);   the tail then forgets its oldest input. Spec 1.
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/scalar_functions.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {
namespace {

/// tail_NC: the n - 1 inputs before this token, oldest first.
double convolve(const ShortConvArgs& a, std::int32_t channel, float x, const float* tail_NC) {
  const float* w = a.weight + static_cast<std::int64_t>(channel) * a.kernel_size;
  double y = a.bias ? a.bias[channel] : 0;
  for (std::int32_t j = 0; j < a.kernel_size - 1; ++j) {
    y += static_cast<double>(w[j]) * tail_NC[static_cast<std::int64_t>(j) * a.channel_count + channel];
  }
  return y + static_cast<double>(w[a.kernel_size - 1]) * x;
}

void push(const ShortConvArgs& a, std::int32_t channel, float x, float* tail_NC) {
  if (a.kernel_size == 1) return;
  float* column = tail_NC + channel;
  for (std::int32_t j = 0; j + 2 < a.kernel_size; ++j, column += a.channel_count) *column = column[a.channel_count];
  *column = x;
}

}  // namespace

const char* short_conv_unsupported_reason(const ShortConvArgs& a) {
  if (a.activation == GateKind::kSigmoid)
    return unsupported("short_conv: sigmoid is not supported (supported: none, silu)");
  return first_reason(
      {require_f32("short_conv", a.dtype), require_sizes("short_conv", {a.channel_count, a.kernel_size})});
}

std::size_t short_conv_scratch_bytes(const ShortConvArgs&) { return 0; }

void short_conv_run(BackendQueue*, const ShortConvArgs& a, void*) {
  for (std::int32_t b = 0; b < a.batch.sequence_count; ++b) {
    for (std::int32_t t = a.batch.offsets_host[b]; t < a.batch.offsets_host[b + 1]; ++t) {
      for (std::int32_t c = 0; c < a.channel_count; ++c) {
        const float x = row(a.in, t)[c];
        const double y = convolve(a, c, x, a.tails[b]);
        push(a, c, x, a.tails[b]);
        row(a.out, t)[c] = static_cast<float>(a.activation == GateKind::kSilu ? silu(y) : y);
      }
    }
  }
}

}  // namespace cairn::reference
