// linear prefill by the sm_90 kernels, for operators that bring weights in another form.
#pragma once

#include "backends/gpu/gpu_device.h"

namespace cairn::gpu {

/// Queues y = x W^T with `weight_rows` in place of args.weight->data: bf16, packed rows of in_dim (a multiple of 8),
/// 16-byte aligned, as are the rows of args.in (bf16).  row_scales [out_dim]: factors of the sums before the bias, or
/// null.
void run_linear_prefill(const Launcher& launcher, const LinearArgs& args, const std::uint16_t* weight_rows,
                        const float* row_scales);

}  // namespace cairn::gpu
