#include "runtime/device/device.h"

#include <utility>

#include "runtime/device/backend_registry.h"
#include "runtime/support/secure_zero.h"

namespace cairn {
namespace {

/// A backend's error as a status; a backend that gave no code has a bug, but the call failed all the same.
Status backend_status(const Backend& backend, const char* what, const BackendError& error) {
  const cairn_status code = error.status != CAIRN_STATUS_OK ? error.status : CAIRN_STATUS_DEVICE;
  return Status::error(code, "%s: %s: %s", backend.name, what, error.text[0] ? error.text : "no reason given");
}

}  // namespace

// ---------------------------------------------------------------- buffer

DeviceBuffer::DeviceBuffer(std::shared_ptr<const Device> device, void* data, std::size_t size_bytes, MemoryKind kind)
    : device_(std::move(device)), data_(data), size_bytes_(size_bytes), kind_(kind) {}

void DeviceBuffer::swap(DeviceBuffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(kind_, other.kind_);
  std::swap(zero_on_release_, other.zero_on_release_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  DeviceBuffer old;
  old.swap(*this);
  swap(other);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (!data_) return;
  if (zero_on_release_) device_->wipe(data_, size_bytes_, kind_);
  device_->backend().release(device_->handle(), data_, size_bytes_, kind_);
}

// ---------------------------------------------------------------- device

Device::Device(const Backend* backend, const DeviceOptions& options) : backend_(backend), options_(options) {}

Device::~Device() {
  if (wipe_queue_) backend_->destroy_queue(wipe_queue_);
  if (handle_) backend_->close_device(handle_);
}

Result<std::shared_ptr<Device>> Device::open(const std::string& name, const DeviceOptions& options) {
  if (name.empty()) return Status::invalid_argument("the backend's name is empty");
  if (options.index < 0) return Status::invalid_argument("device index %d is negative", options.index);
  if (options.thread_count < 0 || options.thread_count > 1024) {
    return Status::invalid_argument("thread_count %d is outside [0, 1024]", options.thread_count);
  }
  BackendRegistry& registry = BackendRegistry::instance();
  CAIRN_TRY_ASSIGN(const Backend* backend,
                   name == "auto" ? registry.find_automatic() : registry.find(name));
  std::shared_ptr<Device> device(new Device(backend, options));
  BackendError error;
  device->handle_ = backend->open_device(options, &error);
  if (!device->handle_) return backend_status(*backend, "device could not be opened", error);
  return device;
}

Result<DeviceDescription> Device::describe() const {
  DeviceDescription description;
  BackendError error;
  if (!backend_->describe_device(handle_, &description, &error)) {
    return backend_status(*backend_, "device could not be described", error);
  }
  return description;
}

Result<DeviceBuffer> Device::allocate(std::size_t size_bytes, MemoryKind kind) const {
  if (size_bytes == 0) return DeviceBuffer();
  BackendError error;
  void* memory = backend_->allocate(handle_, size_bytes, kind, &error);
  if (!memory) {
    if (error.status == CAIRN_STATUS_OK) error.status = CAIRN_STATUS_OUT_OF_MEMORY;
    return backend_status(*backend_, "memory", error);
  }
  return DeviceBuffer(shared_from_this(), memory, size_bytes, kind);
}

/// On destruction there is nobody to report to: memory of a failed device cannot be read back either.
void Device::wipe(void* memory, std::size_t size_bytes, MemoryKind kind) const {
  if (backend_->host_memory || kind == MemoryKind::kPinnedHost) {
    secure_zero(memory, size_bytes);
    return;
  }
  const std::lock_guard lock(wipe_mutex_);
  BackendError error;
  if (!wipe_queue_) wipe_queue_ = backend_->create_queue(handle_, nullptr, &error);
  if (wipe_queue_ && backend_->zero(wipe_queue_, memory, size_bytes, &error)) backend_->synchronize(wipe_queue_, &error);
}

// ---------------------------------------------------------------- queue

Queue::Queue(std::shared_ptr<const Device> device) : device_(std::move(device)) {}

Queue::~Queue() {
  if (!handle_) return;
  BackendError error;
  device_->backend().synchronize(handle_, &error);
  device_->backend().destroy_queue(handle_);
}

Result<std::unique_ptr<Queue>> Queue::create(std::shared_ptr<const Device> device, void* native_queue) {
  std::unique_ptr<Queue> queue(new Queue(std::move(device)));
  const Backend& backend = queue->device().backend();
  BackendError error;
  queue->handle_ = backend.create_queue(queue->device().handle(), native_queue, &error);
  if (!queue->handle_) return backend_status(backend, "queue could not be made", error);
  return queue;
}

Status Queue::synchronize() {
  BackendError error;
  if (device_->backend().synchronize(handle_, &error)) return {};
  return backend_status(device_->backend(), "queue failed", error);
}

Status Queue::copy(void* to, const void* from, std::size_t size_bytes, CopyKind kind) {
  if (size_bytes == 0) return {};
  BackendError error;
  if (device_->backend().copy(handle_, to, from, size_bytes, kind, &error)) return {};
  return backend_status(device_->backend(), "copy failed", error);
}

Status Queue::zero(void* memory, std::size_t size_bytes) {
  if (size_bytes == 0) return {};
  BackendError error;
  if (device_->backend().zero(handle_, memory, size_bytes, &error)) return {};
  return backend_status(device_->backend(), "zeroing failed", error);
}

}  // namespace cairn
