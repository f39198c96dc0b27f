// The calling thread between two calls of the library: the device that the host chose for it in a vendor's runtime is
// current again.
#pragma once

#include "backends/interface/backend.h"

namespace cairn {

/// Adds a backend that was loaded to those that may have chosen a device. Never unloaded.
void remember_backend(const Backend& backend);

/// For the moments when the host's code goes on: its own device is current again. A backend chooses its device anew in
/// every function but operators: none may follow in the same step. No lock.
void restore_host_thread() noexcept;

}  // namespace cairn
