// What the four delta rules share on the cpu: chunked prefill and one-pass decode, over sequences and heads.
#pragma once

#include "backends/cpu/cpu_device.h"

namespace cairn::cpu {

/// delta_net, gdn: one decay per token (or none); kda, gdn2: one per key row.
enum class DecayRows : std::uint8_t { kNone = 0, kToken = 1, kKeyRow = 2 };

std::size_t delta_rule_scratch_bytes(const DeltaRuleArgs& args);
void run_delta_rule(DecayRows decay, BackendQueue* queue, const DeltaRuleArgs& args, void* scratch);

}  // namespace cairn::cpu
