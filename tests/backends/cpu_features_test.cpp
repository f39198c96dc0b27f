// The cpu backend with its instruction sets masked off one by one: the same results, within tolerance, without a
// SIGILL.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "backends/cpu/cpu_features.h"

#include <doctest/doctest.h>

#include "backends/cpu/cpu_backend.h"
#include "backends/reference/reference_backend.h"
#include "tests/backends/cpu_feature_sets.h"
#include "tests/backends/op_cases.h"
#include "tests/support/tolerance.h"

namespace cairn::test {
namespace {

double largest_error(const Outcome& got, const Outcome& want) {
  if (!got.trouble.empty() || got.outputs.size() != want.outputs.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < want.outputs.size(); ++i) {
    double largest = 0, difference = 0;
    for (std::size_t j = 0; j < want.outputs[i].values.size(); ++j) {
      const double x = got.outputs[i].values[j], y = want.outputs[i].values[j];
      if (!std::isfinite(x)) return INFINITY;
      largest = std::fmax(largest, std::fabs(y));
      difference = std::fmax(difference, std::fabs(x - y));
    }
    if (difference > 0) worst = std::fmax(worst, difference / largest);
  }
  return worst;
}

void check_cases(const char* op, const std::vector<OpCase>& cases) {
  for (const OpCase& c : cases) {
    INFO(op << ": " << c.name);
    OpRig reference(*reference::reference_backend());
    const Outcome want = c.read(reference, all_at_once(c.lengths), Phase::kPrefill);
    for (const cpu::CpuFeatures& most :
         {cpu::CpuFeatures{false, false, false, false}, cpu::CpuFeatures{true, false, false, false}}) {
      const FeatureLimit limit(most);
      CAPTURE(most.avx2);
      OpRig rig(*cpu::cpu_backend(), 2);

      const Outcome got = c.read(rig, all_at_once(c.lengths), Phase::kPrefill);

      if (got.trouble.find(kNoFusedForm) != std::string::npos) continue;  // its parts are operators too
      CHECK(largest_error(got, want) <= (c.tolerance >= 0 ? c.tolerance : op_tolerance(op)));
    }
  }
}

TEST_CASE("every operator computes the same without AVX-512 and without any AVX") {
#define CAIRN_OP(field, Args, what) check_cases(#field, field##_cases());
#include "backends/interface/ops.inc"
#undef CAIRN_OP
}

TEST_CASE("masked features are not described") {
  char text[64];
  const FeatureLimit limit({true, false, true, true});

  cpu::describe_cpu_features(cpu::cpu_features(), text, sizeof text);

  CHECK(std::string(text).find("avx512") == std::string::npos);
}

}  // namespace
}  // namespace cairn::test
