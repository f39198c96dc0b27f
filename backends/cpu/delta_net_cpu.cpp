// delta_net on the cpu: the chunked delta rule without decay.
#include "backends/cpu/delta_rule_cpu.h"

namespace cairn::cpu {
namespace {

void run(BackendQueue* queue, const DeltaRuleArgs& args, void* scratch) {
  run_delta_rule(DecayRows::kNone, queue, args, scratch);
}

}  // namespace

void override_delta_net(OpTable& table) {
  table.delta_net.scratch_bytes = delta_rule_scratch_bytes;
  table.delta_net.run = run;
}

}  // namespace cairn::cpu
