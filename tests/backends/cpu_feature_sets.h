// The cpu backend with instruction sets masked off: what its tests run through.
#pragma once

#include "backends/cpu/cpu_features.h"

namespace cairn::test {

/// Plain C++, AVX2, all that this processor has.
inline constexpr cpu::CpuFeatures kCpuFeatureSets[] = {
    {false, false, false, false}, {true, false, false, false}, {true, true, true, true}};

/// Devices opened while this lives use at most these features.
class FeatureLimit {
 public:
  explicit FeatureLimit(const cpu::CpuFeatures& most) { cpu::limit_cpu_features(most); }
  ~FeatureLimit() { cpu::limit_cpu_features({true, true, true, true}); }
};

}  // namespace cairn::test
