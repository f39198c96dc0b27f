// Log-decays where e^A_log leaves f32, against the reference.
#pragma once

#include <doctest/doctest.h>

#include <cmath>

#include "backends/reference/reference_backend.h"
#include "tests/support/op_rig.h"
#include "tests/support/tolerance.h"

namespace cairn::test {

inline const std::vector<float> kSteepRates = {-3, 79, 81, 88.8F, 89, 100, 150, 170, 250};
inline const std::vector<float> kSteepInputs = {0,   -0.0F, 1e-30F, 1e-38F, -1e-38F, -20,  -79, -81, -88,
                                                -90, -100,  -104,   -110,   -150,    -250, 3,   40};

/// out [T, H, rows]: every input under every rate.
inline std::vector<float> steep_log_decays(const Backend& backend, DecayKind kind, std::int32_t rows) {
  OpRig rig(backend, 1);
  const auto heads = static_cast<std::int32_t>(kSteepRates.size()),
             tokens = static_cast<std::int32_t>(kSteepInputs.size());
  const std::int32_t width = heads * rows;
  std::vector<float> x;
  for (const float input : kSteepInputs) x.insert(x.end(), static_cast<std::size_t>(width), input);
  float* out = rig.poisoned<float>(x.size());
  const DecayGateArgs args{
      DType::kF32, kind, -5, tokens, heads, rows, rig.upload(kSteepRates), nullptr, {rig.upload(x), width}, out};
  REQUIRE(rig.run(rig.ops().decay_gate, args) == "");
  return rig.download(out, x.size());
}

inline void check_steep_log_decays(const Backend& backend) {
  for (const DecayKind kind : {DecayKind::kSoftplus, DecayKind::kLowerBound}) {
    for (const std::int32_t rows : {1, 5}) {
      const std::vector<float> got = steep_log_decays(backend, kind, rows);
      const std::vector<float> want = steep_log_decays(*reference::reference_backend(), kind, rows);
      for (std::size_t i = 0; i < want.size(); ++i) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(kSteepInputs[i / (kSteepRates.size() * static_cast<std::size_t>(rows))]);
        CAPTURE(kSteepRates[i / static_cast<std::size_t>(rows) % kSteepRates.size()]);
        if (std::isinf(want[i])) {
          CHECK(got[i] == want[i]);
        } else {
          CHECK(std::abs(got[i] - want[i]) <= op_tolerance("decay_gate") * (std::abs(want[i]) + 1e-30));
        }
      }
    }
  }
}

}  // namespace cairn::test
