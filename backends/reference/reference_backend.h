// The backend "reference": one device that computes on the calling thread, in double.
#pragma once

#include "backends/interface/backend.h"

namespace cairn::reference {

const Backend* reference_backend();

/// Where host memory comes from, set once by the plug-in's entry. Default: aligned_alloc and free.
void set_host_services(const HostServices* services);

}  // namespace cairn::reference
