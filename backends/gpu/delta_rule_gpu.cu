// delta_net, gdn, kda, gdn2: the recurrence, one launch; decode of the usual shapes has its own kernel. Architectures replace prefill and decode by faster forms.
#include "backends/gpu/gpu_device.h"
#include "backends/gpu/gpu_unsupported.h"
#include "backends/gpu/kernels/delta_rule_decode.cuh"

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

/// The shapes of delta_rule_decode.
bool is_plain_decode(const DeltaRuleArgs& a) {
  if (a.phase != Phase::kDecode || a.value_dim % kRecurrenceColumns != 0) return false;
  if (a.key_dim != 64 && a.key_dim != 128 && a.key_dim != 256) return false;
  for (std::int32_t b = 0; b <= a.batch.sequence_count; ++b) {
    if (a.batch.offsets_host[b] != b) return false;
  }
  return true;
}

template <DeltaRule kRule, class Element>
void launch_decode(const Launcher& launcher, const DeltaRuleArgs& a) {
  const dim3 grid(a.value_dim / kRecurrenceColumns, a.value_heads, a.batch.sequence_count);
  const auto kernel = a.key_dim == 64    ? delta_rule_decode_kernel<Element, kRule, 4>
                      : a.key_dim == 128 ? delta_rule_decode_kernel<Element, kRule, 8>
                                         : delta_rule_decode_kernel<Element, kRule, 16>;
  launcher(kernel, grid, dim3(kDecodeThreads), 0, a);
}

template <DeltaRule kRule>
void run(BackendQueue* queue, const DeltaRuleArgs& a, const char* name) {
  const Launcher launcher(queue, name);
  with_element(a.dtype, [&](auto element) {
    if constexpr (kRule != DeltaRule::kGdn2) {
      if (is_plain_decode(a)) return launch_decode<kRule, decltype(element)>(launcher, a);
    }
    launch_recurrence<kRule, decltype(element)>(launcher, a);
  });
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
