// The plug-in's one exported symbol: offers the backend rocm. Loads without a driver: there are then no devices.
#include <hip/hip_runtime_api.h>

#include "backends/gpu/gpu_backend.h"
#include "backends/gpu/gpu_device.h"
#include "backends/rocm/rocm_architectures.h"
#include "cairn/status.h"

namespace cairn::gpu {
namespace {

constexpr const char* kArchitectures = CAIRN_ROCM_ARCHITECTURE_LIST;

const Backend& shared_backend() {
  static const OpTable ops = shared_operators();
  static const Backend backend = make_backend("rocm", &ops);
  return backend;
}

/// As the shared backend counts, with a hint.
std::int32_t count_visible(BackendError* error) {
  BackendError reason;
  const std::int32_t count = shared_backend().device_count(&reason);
  if (count < 0) backend_failure(error, CAIRN_STATUS_NOT_FOUND, "%s (is /dev/kfd there and readable?)", reason.text);
  return count;
}

/// False, with the reason, for a device that this build has no code for.
bool is_usable(std::int32_t index, BackendError* error) {
  hipDeviceProp_t properties;
  if (const hipError_t code = hipGetDeviceProperties(&properties, index); take_failure(code)) {
    return backend_failure(error, CAIRN_STATUS_DEVICE, "rocm: reading the properties of device %d failed: %s", index,
                           hipGetErrorString(code));
  }
  return has_machine_code(properties.gcnArchName, kArchitectures) ||
         backend_failure(error, CAIRN_STATUS_UNSUPPORTED, "rocm: device %d is %s, this build has code for: %s", index,
                         properties.gcnArchName, kArchitectures);
}

/// All devices when at least one can be used; else -1 and why, so that an automatic choice goes on to the next backend.
std::int32_t device_count(BackendError* error) {
  const std::int32_t count = count_visible(error);
  for (std::int32_t index = 0; index < count; ++index) {
    if (is_usable(index, error)) return count;
  }
  return count == 0 ? 0 : -1;
}

BackendDevice* open_device(const DeviceOptions& options, BackendError* error) {
  BackendError reason;
  const std::int32_t count = count_visible(&reason);
  if (count < 0) {
    backend_failure(error, CAIRN_STATUS_NOT_FOUND, "rocm: device %d does not exist: %s", options.index, reason.text);
    return nullptr;
  }
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
