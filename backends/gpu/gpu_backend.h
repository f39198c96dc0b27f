// Devices, memory and queues of a GPU backend, and the shared operator table. cuda, rocm and the emulator build on it.
#pragma once

#include "backends/interface/backend.h"

namespace cairn::gpu {

/// A table in which every operator of gpu_ops.inc is present and every other one says that it is missing.
OpTable shared_operators();

/// A backend over `ops`, which must outlive it. Does not touch the driver.
Backend make_backend(const char* name, const OpTable* ops);

}  // namespace cairn::gpu
