// Devices, their memory and their queues: RAII over the backend interface.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "backends/interface/backend.h"
#include "runtime/support/status.h"

namespace cairn {

class Device;

/// Memory of a device, given back on destruction. Empty by default.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  void* data() const { return data_; }
  template <class T> T* as() const { return static_cast<T*>(data_); }
  std::size_t size_bytes() const { return size_bytes_; }
  explicit operator bool() const { return data_ != nullptr; }
  /// The memory holds state: it is zeroed before it is given back.
  void zero_on_release() { zero_on_release_ = true; }

 private:
  friend class Device;
  void swap(DeviceBuffer& other) noexcept;
  DeviceBuffer(std::shared_ptr<const Device> device, void* data, std::size_t size_bytes, MemoryKind kind);
  std::shared_ptr<const Device> device_;
  void* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  MemoryKind kind_ = MemoryKind::kDevice;
  bool zero_on_release_ = false;
};

/// A device opened for use. Thread-safe.
class Device : public std::enable_shared_from_this<Device> {
 public:
  /// backend "auto": the first available of cuda, rocm, cpu. A named backend is that one or an error.
  static Result<std::shared_ptr<Device>> open(const std::string& backend, const DeviceOptions& options);
  ~Device();

  const Backend& backend() const { return *backend_; }
  const OpTable& ops() const { return *backend_->ops; }
  BackendDevice* handle() const { return handle_; }
  const DeviceOptions& options() const { return options_; }
  Result<DeviceDescription> describe() const;

  /// 256-aligned, contents undefined. size 0 gives an empty buffer.
  Result<DeviceBuffer> allocate(std::size_t size_bytes, MemoryKind kind = MemoryKind::kDevice) const;

 private:
  friend class DeviceBuffer;
  void wipe(void* memory, std::size_t size_bytes, MemoryKind kind) const;
  Device(const Backend* backend, const DeviceOptions& options);
  const Backend* backend_;
  BackendDevice* handle_ = nullptr;
  DeviceOptions options_;
  mutable std::mutex wipe_mutex_;
  mutable BackendQueue* wipe_queue_ = nullptr;  ///< made when device memory is wiped for the first time
};

/// Queued work kept for replay. Empty by default.
class Recording {
 public:
  Recording() = default;
  Recording(const Backend& backend, BackendRecording* handle) : backend_(&backend), handle_(handle) {}
  Recording(Recording&& other) noexcept : backend_(other.backend_), handle_(std::exchange(other.handle_, nullptr)) {}
  Recording& operator=(Recording&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Recording() {
    if (handle_) backend_->release_recording(handle_);
  }
  BackendRecording* handle() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  const Backend* backend_ = nullptr;
  BackendRecording* handle_ = nullptr;
};

/// A queue of work on a device. One user at a time.
class Queue {
 public:
  /// native_queue: the host's own stream, or null for a new one.
  static Result<std::unique_ptr<Queue>> create(std::shared_ptr<const Device> device, void* native_queue = nullptr);
  ~Queue();  ///< waits for its work

  BackendQueue* handle() const { return handle_; }
  const Device& device() const { return *device_; }
  Status synchronize();
  Status copy(void* to, const void* from, std::size_t size_bytes, CopyKind kind);
  Status zero(void* memory, std::size_t size_bytes);

 private:
  explicit Queue(std::shared_ptr<const Device> device);
  std::shared_ptr<const Device> device_;
  BackendQueue* handle_ = nullptr;
};

/// Waits for the queue's work at the end of a scope. Declared after memory that queued work uses and that a failure gives
/// back: the work is done before the memory is gone.
class QueueDrain {
 public:
  explicit QueueDrain(Queue& queue) : queue_(queue) {}
  ~QueueDrain() { (void)queue_.synchronize().ok(); }
  QueueDrain(const QueueDrain&) = delete;
  QueueDrain& operator=(const QueueDrain&) = delete;

 private:
  Queue& queue_;
};

}  // namespace cairn
