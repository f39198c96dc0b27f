// A log-decay as the chunked forms sum it.
#pragma once

#include "backends/gpu/platform/gpu_platform.h"

namespace cairn::gpu {

/// -120 at least: e^-120 is 0 as well (spec 2), and sums stay exact enough. One that is no number stays so.
__device__ __forceinline__ float clamp_decay(float g) { return g < -120.0f ? -120.0f : g; }

}  // namespace cairn::gpu
