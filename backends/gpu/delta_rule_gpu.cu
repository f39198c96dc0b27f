// delta_net, gdn, kda, gdn2: the recurrence, one launch. Architectures replace prefill and decode by faster forms.
#include "backends/gpu/gpu_device.h"
#include "backends/gpu/gpu_unsupported.h"
#include "backends/gpu/kernels/delta_rule_recurrence.cuh"

namespace cairn::gpu {
namespace {

const char* unsupported_reason(const char* name, const DeltaRuleArgs& a) {
  return first_reason({require_activations(name, a.dtype), require_heads(name, a.key_heads, a.value_heads),
                       require_range(name, "key_dim", a.key_dim, 1, 256),
                       require_range(name, "value_dim", a.value_dim, 1, 65536),
                       require_range(name, "value head count", a.value_heads, 1, 65535)});
}

std::size_t no_scratch(const DeltaRuleArgs&) { return 0; }

template <DeltaRule kRule, class Element>
void launch_recurrence(const Launcher& launcher, const DeltaRuleArgs& a) {
  const dim3 grid((a.value_dim + kRecurrenceColumns - 1) / kRecurrenceColumns, a.value_heads, a.batch.sequence_count);
  const auto kernel = a.key_dim <= 64    ? delta_rule_recurrence_kernel<Element, kRule, 16>
                      : a.key_dim <= 128 ? delta_rule_recurrence_kernel<Element, kRule, 32>
                                         : delta_rule_recurrence_kernel<Element, kRule, 64>;
  launcher(kernel, grid, dim3(kRecurrenceThreads), 0, a);
}

template <DeltaRule kRule>
void run(BackendQueue* queue, const DeltaRuleArgs& a, const char* name) {
  const Launcher launcher(queue, name);
  with_element(a.dtype, [&](auto element) { launch_recurrence<kRule, decltype(element)>(launcher, a); });
}

}  // namespace

#define CAIRN_DELTA_RULE(field, kRule)                                                                  \
  ops.field = {[](const DeltaRuleArgs& a) { return unsupported_reason(#field, a); }, no_scratch,        \
               [](BackendQueue* queue, const DeltaRuleArgs& a, void*) { run<kRule>(queue, a, #field); }}

void add_delta_rule(OpTable& ops) {
  CAIRN_DELTA_RULE(delta_net, DeltaRule::kDeltaNet);
  CAIRN_DELTA_RULE(gdn, DeltaRule::kGdn);
  CAIRN_DELTA_RULE(kda, DeltaRule::kKda);
  CAIRN_DELTA_RULE(gdn2, DeltaRule::kGdn2);
}

}  // namespace cairn::gpu
