// Matrix products of the cpu backend, for the operator `linear` and for the operators that hold weights of their own.
#pragma once

#include "backends/cpu/cpu_device.h"

namespace cairn::cpu {

/// Backend::pack_linear and unpack_linear.
bool pack_linear(BackendDevice* device, LinearWeight* weight, BackendError* error);
void unpack_linear(BackendDevice* device, LinearWeight* weight);

}  // namespace cairn::cpu
