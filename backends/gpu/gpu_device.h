// What BackendDevice and BackendQueue are on a GPU.
#pragma once

#include "backends/gpu/platform/gpu_platform.h"
#include "backends/interface/backend.h"

namespace cairn::gpu {

struct Device {
  std::int32_t index;
  DeviceProperties properties;
};

/// A stream and the first error of a launch on it, kept until synchronize() reports it. Used by one thread at a time.
struct Queue {
  Device* device;
  Stream stream;
  bool owns_stream;
  Error error = kSuccess;
  const char* failed_operator = nullptr;
};

inline Device& device_of(BackendDevice* handle) { return *reinterpret_cast<Device*>(handle); }
inline Queue& queue_of(BackendQueue* handle) { return *reinterpret_cast<Queue*>(handle); }

/// True for a failure. The runtime then forgets it: whoever asks it next would take it for his own.
inline bool take_failure(Error error) {
  if (error != kSuccess) (void)last_error();
  return error != kSuccess;
}

/// Remembers the first failure. `what` is static text: the operator's name.
inline void note_error(Queue& queue, Error error, const char* what) {
  if (!take_failure(error) || queue.error != kSuccess) return;
  queue.error = error;
  queue.failed_operator = what;
}

/// One operator's way to the device:  `Launcher(queue, "rms_norm")(kernel<float>, grid, block, shared_bytes, args)`.
class Launcher {
 public:
  Launcher(BackendQueue* queue, const char* name) : queue_(queue_of(queue)), name_(name) {}

  template <class Args>
  void operator()(void (*kernel)(Args), dim3 grid, dim3 block, std::size_t shared_bytes, const Args& args) const {
    if (is_allowed(kernel, grid, shared_bytes)) {
      note_error(queue_, launch(kernel, grid, block, shared_bytes, queue_.stream, args), name_);
    }
  }
  /// For a kernel that calls wait_for_previous_kernel(): it may start while the one before it still runs.
  /// cluster: of launch_early(); a kernel that has one is never launched on older chips.
  template <class Args>
  void early(void (*kernel)(Args), dim3 grid, dim3 block, std::size_t shared_bytes, const Args& args,
             unsigned cluster = 1) const {
    if (queue_.device->properties.major < 9) return (*this)(kernel, grid, block, shared_bytes, args);
    if (is_allowed(kernel, grid, shared_bytes)) {
      note_error(queue_, launch_early(kernel, grid, block, shared_bytes, queue_.stream, args, cluster), name_);
    }
  }
  void zero(void* memory, std::size_t bytes) const { note_error(queue_, set_async(memory, 0, bytes, queue_.stream), name_); }
  void copy(void* to, const void* from, std::size_t bytes) const {
    note_error(queue_, copy_async(to, from, bytes, queue_.stream), name_);
  }

  Stream stream() const { return queue_.stream; }
  const Device& device() const { return *queue_.device; }
  Queue& queue() const { return queue_; }

 private:
  /// Chips give 48 KB to whoever asks, static shared memory included: no kernel that has dynamic memory beside it has
  /// more than 8 KB of it.
  static constexpr std::size_t kUnaskedBytes = 40 * 1024;

  /// False: nothing to launch, or the queue has failed.
  template <class Args>
  bool is_allowed(void (*kernel)(Args), dim3 grid, std::size_t shared_bytes) const {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return false;
    if (shared_bytes > kUnaskedBytes && queue_.error == kSuccess) {
      note_error(queue_, allow_shared_memory(kernel, device().properties.shared_bytes_per_block), name_);
    }
    return queue_.error == kSuccess;
  }

  Queue& queue_;
  const char* name_;
};

}  // namespace cairn::gpu
