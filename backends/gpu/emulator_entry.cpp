// The entry of libcairn_emulator.so: the shared GPU operators on host blocks, so that tests see their numerics anywhere.
#include "backends/gpu/gpu_backend.h"

extern "C" __attribute__((visibility("default"))) const cairn::BackendList* cairn_backend_entry(
    const cairn::HostServices*) {
  static const cairn::OpTable ops = cairn::gpu::shared_operators();
  static const cairn::Backend backend = cairn::gpu::make_backend("emulator", &ops);
  static const cairn::Backend* const backends[] = {&backend};
  static const cairn::BackendList list = {cairn::kBuildId, 1, backends};
  return &list;
}
