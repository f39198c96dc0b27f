// Stages 2 and 3 of a SparseGDN prefill, for the general form and for the tuned ones: from scores and gates to event
// rows.
#pragma once

#include "backends/gpu/gpu_device.h"
#include "backends/gpu/kernels/sparse_gdn_selection.cuh"

namespace cairn::gpu {

/// Queues the selector of all sequences of `args`. Nothing leaves the device.
void select_sparse_gdn(const Launcher& launcher, const SparseSelectArgs& args);

}  // namespace cairn::gpu
