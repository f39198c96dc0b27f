// Matrix products of the cpu backend, for the operator `linear` and for the operators that hold weights of their own.
#pragma once

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/linear_kernels.h"

namespace cairn::cpu {

/// Outputs of one piece of work with so many rows.
std::int32_t linear_piece_outputs(const LinearWeight& weight, std::int64_t rows);

/// y = x W^T (+ bias) (+ y), all rows, on all threads. own_scratch: kThreadScratchBytes.
struct LinearProduct {
  const LinearWeight* weight;
  const float* x;
  std::int64_t x_stride;
  float* y;
  std::int64_t y_stride;
  std::int64_t rows;
  bool accumulate;
};
void multiply(Device& device, const LinearProduct& product, void* own_scratch);

/// Backend::pack_linear and unpack_linear.
bool pack_linear(BackendDevice* device, LinearWeight* weight, BackendError* error);
void unpack_linear(BackendDevice* device, LinearWeight* weight);

}  // namespace cairn::cpu
