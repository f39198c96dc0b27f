// The plug-in's one exported symbol: offers the backend cuda. Loads without a driver: there are then no devices.
#include "backends/cuda/cuda_overrides.h"
#include "backends/gpu/gpu_backend.h"

extern "C" __attribute__((visibility("default"))) const cairn::BackendList* cairn_backend_entry(
    const cairn::HostServices*) {
  static const cairn::OpTable ops = [] {
    cairn::OpTable table = cairn::gpu::shared_operators();
    cairn::gpu::override_for_cuda(table);
    return table;
  }();
  static const cairn::Backend backend = cairn::gpu::make_backend("cuda", &ops);
  static const cairn::Backend* const backends[] = {&backend};
  static const cairn::BackendList list = {cairn::kBuildId, 1, backends};
  return &list;
}
