// linear_swiglu: linear into scratch, then swiglu.
#include "backends/interface/scratch_layout.h"
#include "backends/reference/reference_ops.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {

const char* linear_swiglu_unsupported_reason(const LinearArgs& a) {
  if (const char* reason = linear_unsupported_reason(a)) return reason;
  if (a.weight->out_dim % 2 == 0 && !a.accumulate && a.out_dtype == a.dtype) return nullptr;
  return unsupported("linear_swiglu: %d outputs, accumulate %d (supported: an even number, 0)", a.weight->out_dim, a.accumulate);
}

std::size_t linear_swiglu_scratch_bytes(const LinearArgs& a) {
  ScratchLayout layout(nullptr);
  layout.take<float>(static_cast<std::size_t>(a.token_count) * a.weight->out_dim);
  return layout.size_bytes();
}

void linear_swiglu_run(BackendQueue* queue, const LinearArgs& a, void* scratch) {
  const std::int32_t width = a.weight->out_dim;
  float* both = ScratchLayout(scratch).take<float>(static_cast<std::size_t>(a.token_count) * width);
  LinearArgs linear = a;
  linear.out = {both, width};
  linear_run(queue, linear, nullptr);
  const SwigluArgs swiglu{a.dtype, a.token_count, width / 2, {both, width}, {both + width / 2, width}, a.out};
  swiglu_run(queue, swiglu, nullptr);
}

}  // namespace cairn::reference
