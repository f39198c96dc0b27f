// Operators that have faster forms on some CUDA architecture.
#pragma once

#include "backends/interface/backend.h"

namespace cairn::gpu {

/// Replaces entries of the shared table. Each new entry hands what it does not take back to the one it replaced.
void override_for_cuda(OpTable& ops);

}  // namespace cairn::gpu
