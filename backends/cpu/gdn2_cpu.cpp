// gdn2 on the cpu: as kda, with an erase key of its own and gated values.
#include "backends/cpu/delta_rule_cpu.h"

namespace cairn::cpu {
namespace {

void run(BackendQueue* queue, const DeltaRuleArgs& args, void* scratch) {
  run_delta_rule(DecayRows::kKeyRow, queue, args, scratch);
}

}  // namespace

void override_gdn2(OpTable& table) {
  table.gdn2.scratch_bytes = delta_rule_scratch_bytes;
  table.gdn2.run = run;
}

}  // namespace cairn::cpu
