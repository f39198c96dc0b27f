// The backend "cpu": the reference table, with every operator that has a fast version replaced.
#pragma once

#include "backends/interface/backend.h"

namespace cairn::cpu {

const Backend* cpu_backend();

/// Where host memory comes from, set once by the plug-in's entry. Default: aligned_alloc and free.
void set_host_services(const HostServices* services);

}  // namespace cairn::cpu
