// delta_inputs: the four operators that it stands for, one after the other.
#include "backends/reference/reference_ops.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {
namespace {

FeatureMapArgs norm_args(const DeltaInputsArgs& a) {
  const ConstRows heads = a.conv.out;
  return {a.conv.dtype, a.conv.dtype, a.norm, a.conv.batch.token_count, 2 * a.key_heads, a.key_dim, 1, 1, heads, a.conv.out};
}

}  // namespace

const char* delta_inputs_unsupported_reason(const DeltaInputsArgs& a) {
  if (2 * a.key_heads * a.key_dim > a.conv.channel_count) {
    return unsupported("delta_inputs: %d channels hold no %d query and key heads of %d", a.conv.channel_count, 2 * a.key_heads,
                       a.key_dim);
  }
  return first_reason({short_conv_unsupported_reason(a.conv), feature_map_unsupported_reason(norm_args(a)),
                       decay_gate_unsupported_reason(a.decay), feature_map_unsupported_reason(a.beta)});
}

std::size_t delta_inputs_scratch_bytes(const DeltaInputsArgs&) { return 0; }

void delta_inputs_run(BackendQueue* queue, const DeltaInputsArgs& a, void*) {
  short_conv_run(queue, a.conv, nullptr);
  feature_map_run(queue, norm_args(a), nullptr);
  decay_gate_run(queue, a.decay, nullptr);
  feature_map_run(queue, a.beta, nullptr);
}

}  // namespace cairn::reference
