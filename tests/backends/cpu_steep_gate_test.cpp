// Log-decays where e^A_log leaves f32, on every instruction set of the cpu backend, against the reference.
#include <doctest/doctest.h>

#include <cmath>

#include "backends/cpu/cpu_backend.h"
#include "backends/reference/reference_backend.h"
#include "tests/backends/cpu_feature_sets.h"
#include "tests/support/op_rig.h"
#include "tests/support/random_inputs.h"
#include "tests/support/tolerance.h"

namespace cairn::test {
namespace {

const std::vector<float> kRates = {-3, 79, 81, 88.8F, 89, 100, 150, 170, 250};
const std::vector<float> kInputs = {0,   -0.0F, 1e-30F, 1e-38F, -1e-38F, -20,  -79, -81, -88,
                                    -90, -100,  -104,   -110,   -150,    -250, 3,   40};

/// out [T, H, rows]: every input under every rate.
std::vector<float> log_decays(const Backend& backend, DecayKind kind, std::int32_t rows) {
  OpRig rig(backend, 1);
  const auto heads = static_cast<std::int32_t>(kRates.size()), tokens = static_cast<std::int32_t>(kInputs.size());
  const std::int32_t width = heads * rows;
  std::vector<float> x;
  for (const float input : kInputs) x.insert(x.end(), static_cast<std::size_t>(width), input);
  float* out = rig.poisoned<float>(x.size());
  const DecayGateArgs args{
      DType::kF32, kind, -5, tokens, heads, rows, rig.upload(kRates), nullptr, {rig.upload(x), width}, out};
  REQUIRE(rig.run(rig.ops().decay_gate, args) == "");
  return rig.download(out, x.size());
}

}  // namespace

TEST_CASE("a log-decay whose exp(A_log) is beyond f32 is the reference's") {
  for (const cpu::CpuFeatures& most : kCpuFeatureSets) {
    const FeatureLimit limit(most);
    for (const DecayKind kind : {DecayKind::kSoftplus, DecayKind::kLowerBound}) {
      for (const std::int32_t rows : {1, 5}) {
        const std::vector<float> got = log_decays(*cpu::cpu_backend(), kind, rows);
        const std::vector<float> want = log_decays(*reference::reference_backend(), kind, rows);
        for (std::size_t i = 0; i < want.size(); ++i) {
          CAPTURE(most.avx512);
          CAPTURE(static_cast<int>(kind));
          CAPTURE(kInputs[i / (kRates.size() * static_cast<std::size_t>(rows))]);
          CAPTURE(kRates[i / static_cast<std::size_t>(rows) % kRates.size()]);
          if (std::isinf(want[i])) {
            CHECK(got[i] == want[i]);
          } else {
            CHECK(std::abs(got[i] - want[i]) <= op_tolerance("decay_gate") * (std::abs(want[i]) + 1e-30));
          }
        }
      }
    }
  }
}

}  // namespace cairn::test
