// The plug-in's one exported symbol: offers the backends cpu and reference.
#include "backends/cpu/cpu_backend.h"
#include "backends/reference/reference_backend.h"

extern "C" __attribute__((visibility("default"))) const cairn::BackendList* cairn_backend_entry(
    const cairn::HostServices* services) {
  static const cairn::Backend* const backends[] = {cairn::cpu::cpu_backend(), cairn::reference::reference_backend()};
  static const cairn::BackendList list = {cairn::kBuildId, 2, backends};
  cairn::cpu::set_host_services(services);
  cairn::reference::set_host_services(services);
  return &list;
}
