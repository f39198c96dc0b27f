// delta_step: the three operators that it stands for, one after the other.
#include "backends/reference/reference_ops.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {

const char* delta_step_unsupported_reason(const DeltaStepArgs& a) {
  return first_reason({delta_inputs_unsupported_reason(a.inputs), gdn_unsupported_reason(a.rule),
                       gated_rms_norm_unsupported_reason(a.norm)});
}

std::size_t delta_step_scratch_bytes(const DeltaStepArgs& a) { return gdn_scratch_bytes(a.rule); }

void delta_step_run(BackendQueue* queue, const DeltaStepArgs& a, void* scratch) {
  delta_inputs_run(queue, a.inputs, nullptr);
  gdn_run(queue, a.rule, scratch);
  gated_rms_norm_run(queue, a.norm, nullptr);
}

}  // namespace cairn::reference
