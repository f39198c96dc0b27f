// The plug-in's one exported symbol: offers the backend cuda. Loads without a driver: there are then no devices.
#include "backends/cuda/cuda_overrides.h"
#include "backends/gpu/gpu_backend.h"
#include "backends/gpu/gpu_device.h"
#include "cairn/status.h"

namespace cairn::gpu {
namespace {

constexpr int kOldestMajor = 8;  // machine code begins at sm_80

const Backend& shared_backend() {
  static const OpTable ops = [] {
    OpTable table = shared_operators();
    override_for_cuda(table);
    return table;
  }();
  static const Backend backend = make_backend("cuda", &ops);
  return backend;
}

/// False, with the reason, for a device that this build has no code for.
bool is_usable(std::int32_t index, BackendError* error) {
  DeviceProperties properties;
  if (const Error code = read_properties(index, &properties); take_failure(code)) {
    return backend_failure(error, CAIRN_STATUS_DEVICE, "cuda: reading the properties of device %d failed: %s", index,
                           error_text(code));
  }
  return properties.major >= kOldestMajor ||
         backend_failure(error, CAIRN_STATUS_UNSUPPORTED,
                         "cuda: device %d is of compute capability %d.%d, this build has code for %d.0 and newer",
                         index, properties.major, properties.minor, kOldestMajor);
}

/// All devices when at least one can be used; else -1 and why, so that an automatic choice goes on to the next backend.
std::int32_t device_count(BackendError* error) {
  const std::int32_t count = shared_backend().device_count(error);
  for (std::int32_t index = 0; index < count; ++index) {
    if (is_usable(index, error)) return count;
  }
  return count == 0 ? 0 : -1;
}

BackendDevice* open_device(const DeviceOptions& options, BackendError* error) {
  const std::int32_t count = shared_backend().device_count(error);
  if (options.index >= 0 && options.index < count && !is_usable(options.index, error)) return nullptr;
  return shared_backend().open_device(options, error);
}

}  // namespace
}  // namespace cairn::gpu

extern "C" __attribute__((visibility("default"))) const cairn::BackendList* cairn_backend_entry(
    const cairn::HostServices*) {
  static const cairn::Backend backend = [] {
    cairn::Backend checked = cairn::gpu::shared_backend();
    checked.device_count = cairn::gpu::device_count;
    checked.open_device = cairn::gpu::open_device;
    return checked;
  }();
  static const cairn::Backend* const backends[] = {&backend};
  static const cairn::BackendList list = {cairn::kBuildId, 1, backends};
  return &list;
}
