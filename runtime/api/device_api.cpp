// cairn/device.h: backends and devices.
#include "runtime/api/objects.h"
#include "runtime/device/backend_registry.h"

namespace cairn::api {
namespace {

Status describe_backend(std::int32_t index, cairn_backend_info* out) {
  CAIRN_TRY(check_info(out, "cairn_backend_info"));
  BackendRegistry& registry = BackendRegistry::instance();
  const std::int32_t count = registry.count();
  if (index < 0 || index >= count) return Status::invalid_argument("backend index %d is outside [0, %d)", index, count);
  const BackendReport report = registry.report(index);
  cairn_backend_info info = CAIRN_BACKEND_INFO_INIT;
  copy_text(report.name.c_str(), sizeof info.name, info.name);
  copy_text(report.path.c_str(), sizeof info.path, info.path);
  copy_text(report.reason.c_str(), sizeof info.reason, info.reason);
  info.device_count = report.device_count;
  info.is_available = report.device_count > 0 ? 1 : 0;
  return write_info(info, "cairn_backend_info", out);
}

Status open_device(const cairn_device_options* options_in, cairn_device** device) {
  CAIRN_REQUIRE(device);
  *device = nullptr;
  cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
  CAIRN_TRY(read_options(options_in, "cairn_device_options", options));
  DeviceOptions own;
  own.index = options.index;
  own.thread_count = options.thread_count;
  auto object = std::make_shared<DeviceObject>();
  CAIRN_TRY_ASSIGN(object->device, Device::open(options.backend ? options.backend : "auto", own));
  return give_out(std::move(object), device);
}

Status describe_device(const cairn_device* device, cairn_device_info* out) {
  CAIRN_TRY(check_info(out, "cairn_device_info"));
  CAIRN_TRY_ASSIGN(const Pin<DeviceObject> object, pin<DeviceObject>(device));
  CAIRN_TRY_ASSIGN(const DeviceDescription description, object->device->describe());
  cairn_device_info info = CAIRN_DEVICE_INFO_INIT;
  copy_text(object->device->backend().name, sizeof info.backend, info.backend);
  copy_text(description.name, sizeof info.name, info.name);
  copy_text(description.features, sizeof info.features, info.features);
  info.index = object->device->options().index;
  info.thread_count = description.thread_count;
  info.memory_total_bytes = description.memory_total_bytes;
  info.memory_free_bytes = description.memory_free_bytes;
  return write_info(info, "cairn_device_info", out);
}

}  // namespace
}  // namespace cairn::api

using namespace cairn;
using namespace cairn::api;

extern "C" {

cairn_status cairn_backend_count(int32_t* count) {
  return guarded([&]() -> Status {
    CAIRN_REQUIRE(count);
    *count = BackendRegistry::instance().count();
    return {};
  });
}

cairn_status cairn_backend_get_info(int32_t index, cairn_backend_info* info) {
  return guarded([&] { return describe_backend(index, info); });
}

cairn_status cairn_device_open(const cairn_device_options* options, cairn_device** device) {
  return guarded([&] { return open_device(options, device); });
}

cairn_status cairn_device_get_info(const cairn_device* device, cairn_device_info* info) {
  return guarded([&] { return describe_device(device, info); });
}

void cairn_device_release(cairn_device* device) { give_back<DeviceObject>(device); }

}  // extern "C"
