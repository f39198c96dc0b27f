// gdn on the cpu: the chunked delta rule with one decay per token.
#include "backends/cpu/delta_rule_cpu.h"

namespace cairn::cpu {
namespace {

void run(BackendQueue* queue, const DeltaRuleArgs& args, void* scratch) {
  run_delta_rule(DecayRows::kToken, queue, args, scratch);
}

}  // namespace

void override_gdn(OpTable& table) {
  table.gdn.scratch_bytes = delta_rule_scratch_bytes;
  table.gdn.run = run;
}

}  // namespace cairn::cpu
