// What planning may count on: the device of a call is not known yet.
#pragma once

#include "backends/gpu/gpu_device.h"

namespace cairn::gpu {

/// True when every device of this process is of major version 9.
inline bool has_only_sm90() {
  static const bool is_so = [] {
    int count = 0;
    if (take_failure(count_devices(&count))) return false;
    for (int i = 0; i < count; ++i) {
      DeviceProperties properties;
      if (take_failure(read_properties(i, &properties)) || properties.major != 9) return false;
    }
    return count > 0;
  }();
  return is_so;
}

}  // namespace cairn::gpu
