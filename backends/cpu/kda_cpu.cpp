// kda on the cpu: the chunked delta rule with one decay per key row.
#include "backends/cpu/delta_rule_cpu.h"

namespace cairn::cpu {
namespace {

void run(BackendQueue* queue, const DeltaRuleArgs& args, void* scratch) {
  run_delta_rule(DecayRows::kKeyRow, queue, args, scratch);
}

}  // namespace

void override_kda(OpTable& table) {
  table.kda.scratch_bytes = delta_rule_scratch_bytes;
  table.kda.run = run;
}

}  // namespace cairn::cpu
