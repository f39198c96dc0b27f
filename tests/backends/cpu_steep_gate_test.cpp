// A head whose e^A_log is beyond f32, on every instruction set of the cpu backend.
#include "backends/cpu/cpu_backend.h"
#include "tests/backends/cpu_feature_sets.h"
#include "tests/backends/steep_gate_problem.h"

namespace cairn::test {

TEST_CASE("a log-decay whose exp(A_log) is beyond f32 is the reference's") {
  for (const cpu::CpuFeatures& most : kCpuFeatureSets) {
    const FeatureLimit limit(most);
    CAPTURE(most.avx2);
    CAPTURE(most.avx512);
    check_steep_log_decays(*cpu::cpu_backend());
  }
}

}  // namespace cairn::test
