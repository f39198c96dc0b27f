// Which chips this build has machine code for. HIP compiles nothing at run time, and older runtimes end the process at the
// first launch on a chip without code: such a device is refused when it is opened.
#pragma once

#include <string_view>

namespace cairn::gpu {

/// True when `architecture` ("gfx90a:sramecc+:xnack-": features after the first colon) is one of `list` ("gfx90a gfx1030").
inline bool has_machine_code(std::string_view architecture, std::string_view list) {
  architecture = architecture.substr(0, architecture.find(':'));
  if (architecture.empty()) return false;
  while (!list.empty()) {
    const std::string_view listed = list.substr(0, list.find(' '));
    if (listed.substr(0, listed.find(':')) == architecture) return true;
    list.remove_prefix(listed.size() < list.size() ? listed.size() + 1 : list.size());
  }
  return false;
}

}  // namespace cairn::gpu
