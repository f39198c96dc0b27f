#include "backends/gpu/gpu_backend.h"

#include <cstring>
#include <new>

#include "backends/gpu/gpu_device.h"
#include "backends/gpu/linear_gpu.h"
#include "cairn/status.h"

namespace cairn::gpu {

#define CAIRN_GPU_OPERATORS(stem) void add_##stem(OpTable&);
#include "backends/gpu/gpu_ops.inc"
#undef CAIRN_GPU_OPERATORS

namespace {

constexpr const char* kFamily = CAIRN_GPU_FAMILY;

bool device_failure(BackendError* error, Error code, const char* what) {
  (void)take_failure(code);
  const std::int32_t status = code == kNoMemory ? CAIRN_STATUS_OUT_OF_DEVICE_MEMORY : CAIRN_STATUS_DEVICE;
  return backend_failure(error, status, "%s: %s failed: %s", kFamily, what, error_text(code));
}

/// What the host had before the first select() of a call.
thread_local Current hosts_current;
thread_local bool has_selected = false;

/// Every entry point may come from a thread that has not chosen the device yet.
bool select(const Device& device, BackendError* error) {
  if (!has_selected) hosts_current = find_current();
  has_selected = true;
  const Error code = select_device(device.index);
  return code == kSuccess || device_failure(error, code, "choosing the device");
}

void restore_thread() {
  if (has_selected) make_current(hosts_current);
  has_selected = false;
}

/// -1 without a driver, or with one that is too old: the vendor's words tell which.
std::int32_t device_count(BackendError* error) {
  int count = 0;
  const Error code = count_devices(&count);
  if (!take_failure(code)) return count;
  backend_failure(error, CAIRN_STATUS_NOT_FOUND, "no device was found: %s", error_text(code));
  return -1;
}

BackendDevice* open_device(const DeviceOptions& options, BackendError* error) {
  BackendError reason;
  const std::int32_t count = device_count(&reason);
  if (count < 0) {
    backend_failure(error, CAIRN_STATUS_NOT_FOUND, "%s: device %d does not exist: %s", kFamily, options.index, reason.text);
    return nullptr;
  }
  if (options.index < 0 || options.index >= count) {
    backend_failure(error, CAIRN_STATUS_NOT_FOUND, "%s: device %d does not exist (devices: %d)", kFamily, options.index,
                    count);
    return nullptr;
  }
  Device* device = new (std::nothrow) Device{options.index, {}};
  if (!device) {
    backend_failure(error, CAIRN_STATUS_OUT_OF_MEMORY, "%s: no memory for a device", kFamily);
    return nullptr;
  }
  if (const Error code = read_properties(options.index, &device->properties); code != kSuccess) {
    device_failure(error, code, "reading the device's properties");
    delete device;
    return nullptr;
  }
  return reinterpret_cast<BackendDevice*>(device);
}

void close_device(BackendDevice* handle) { delete &device_of(handle); }

bool describe_device(BackendDevice* handle, DeviceDescription* description, BackendError* error) {
  const Device& device = device_of(handle);
  *description = {};
  std::memcpy(description->name, device.properties.name, sizeof description->name);
  std::snprintf(description->features, sizeof description->features, "%s %d.%d", kFamily, device.properties.major,
                device.properties.minor);
  description->thread_count = device.properties.multiprocessors;
  std::size_t free_bytes = 0, total_bytes = 0;
  if (!select(device, error)) return false;
  if (const Error code = free_memory(&free_bytes, &total_bytes); code != kSuccess) {
    return device_failure(error, code, "reading the free memory");
  }
  description->memory_total_bytes = total_bytes;
  description->memory_free_bytes = free_bytes;
  return true;
}

void* allocate(BackendDevice* handle, std::size_t size_bytes, MemoryKind kind, BackendError* error) {
  if (!select(device_of(handle), error)) return nullptr;
  void* memory = nullptr;
  const std::size_t bytes = size_bytes ? size_bytes : 256;
  const Error code = kind == MemoryKind::kDevice ? allocate_device(&memory, bytes) : allocate_pinned(&memory, bytes);
  if (!take_failure(code)) return memory;
  const bool is_device = kind == MemoryKind::kDevice;
  backend_failure(error,
                  code != kNoMemory ? CAIRN_STATUS_DEVICE
                  : is_device       ? CAIRN_STATUS_OUT_OF_DEVICE_MEMORY
                                    : CAIRN_STATUS_OUT_OF_MEMORY,
                  "%s: %zu bytes of %s memory refused: %s", kFamily, size_bytes, is_device ? "device" : "pinned host",
                  error_text(code));
  return nullptr;
}

void release(BackendDevice* handle, void* memory, std::size_t, MemoryKind kind) {
  BackendError ignored;
  if (!memory || !select(device_of(handle), &ignored)) return;
  (void)take_failure(kind == MemoryKind::kDevice ? release_device(memory) : release_pinned(memory));
}

BackendQueue* create_queue(BackendDevice* handle, void* native_queue, BackendError* error) {
  if (!select(device_of(handle), error)) return nullptr;
  Queue* queue = new (std::nothrow) Queue{&device_of(handle), static_cast<Stream>(native_queue), native_queue == nullptr};
  if (!queue) {
    backend_failure(error, CAIRN_STATUS_OUT_OF_MEMORY, "%s: no memory for a queue", kFamily);
    return nullptr;
  }
  if (queue->owns_stream) {
    if (const Error code = create_stream(&queue->stream); code != kSuccess) {
      device_failure(error, code, "creating a stream");
      delete queue;
      return nullptr;
    }
  }
  return reinterpret_cast<BackendQueue*>(queue);
}

void destroy_queue(BackendQueue* handle) {
  Queue& queue = queue_of(handle);
  BackendError ignored;
  if (queue.owns_stream && select(*queue.device, &ignored)) (void)take_failure(destroy_stream(queue.stream));
  delete &queue;
}

bool synchronize(BackendQueue* handle, BackendError* error) {
  Queue& queue = queue_of(handle);
  if (!select(*queue.device, error)) return false;
  note_error(queue, wait_for_stream(queue.stream), "the queue");
  if (queue.error == kSuccess) return true;
  device_failure(error, queue.error, queue.failed_operator);
  queue.error = kSuccess;
  return false;
}

bool copy(BackendQueue* handle, void* to, const void* from, std::size_t size_bytes, CopyKind, BackendError* error) {
  Queue& queue = queue_of(handle);
  if (size_bytes == 0) return true;
  if (!select(*queue.device, error)) return false;
  const Error code = copy_async(to, from, size_bytes, queue.stream);
  return code == kSuccess || device_failure(error, code, "a copy");
}

bool zero(BackendQueue* handle, void* memory, std::size_t size_bytes, BackendError* error) {
  Queue& queue = queue_of(handle);
  if (size_bytes == 0) return true;
  if (!select(*queue.device, error)) return false;
  const Error code = set_async(memory, 0, size_bytes, queue.stream);
  return code == kSuccess || device_failure(error, code, "zeroing memory");
}

#if !defined(CAIRN_GPU_EMULATOR)
bool begin_recording(BackendQueue* handle, BackendError* error) {
  Queue& queue = queue_of(handle);
  if (!select(*queue.device, error)) return false;
  const Error code = begin_capture(queue.stream);
  return code == kSuccess || device_failure(error, code, "starting a recording");
}

/// What a BackendRecording is.
struct DeviceRecording {
  const Device& device;
  Recording work;
};
DeviceRecording& recording_of(BackendRecording* handle) { return *reinterpret_cast<DeviceRecording*>(handle); }

BackendRecording* end_recording(BackendQueue* handle, BackendError* error) {
  Queue& queue = queue_of(handle);
  Recording work = nullptr;
  note_error(queue, end_capture(queue.stream, &work), "a recording");
  if (queue.error == kSuccess) {
    if (auto* recording = new (std::nothrow) DeviceRecording{*queue.device, work}) {
      return reinterpret_cast<BackendRecording*>(recording);
    }
    backend_failure(error, CAIRN_STATUS_OUT_OF_MEMORY, "%s: no memory for a recording", kFamily);
  } else {
    device_failure(error, queue.error, queue.failed_operator);
    queue.error = kSuccess;
  }
  if (work) (void)take_failure(release_capture(work));
  return nullptr;
}

bool replay_recording(BackendQueue* handle, BackendRecording* recording, BackendError* error) {
  Queue& queue = queue_of(handle);
  const Error code = replay_capture(recording_of(recording).work, queue.stream);
  return code == kSuccess || device_failure(error, code, "replaying a recording");
}

void release_recording(BackendRecording* handle) {
  DeviceRecording& recording = recording_of(handle);
  BackendError ignored;
  if (select(recording.device, &ignored)) (void)take_failure(release_capture(recording.work));
  delete &recording;
}
#else
constexpr decltype(Backend::begin_recording) begin_recording = nullptr;
constexpr decltype(Backend::end_recording) end_recording = nullptr;
constexpr decltype(Backend::replay_recording) replay_recording = nullptr;
constexpr decltype(Backend::release_recording) release_recording = nullptr;
#endif

/// The place of operators that this backend lacks: models that need them are refused at load.
template <class Args>
constexpr Op<Args> missing_operator() {
  return {[](const Args&) -> const char* { return "the operator is missing in this backend"; },
          [](const Args&) -> std::size_t { return 0; }, [](BackendQueue*, const Args&, void*) {}};
}

}  // namespace

OpTable shared_operators() {
  OpTable ops;
#define CAIRN_OP(field, Args, what) ops.field = missing_operator<Args>();
#include "backends/interface/ops.inc"
#undef CAIRN_OP
#define CAIRN_GPU_OPERATORS(stem) add_##stem(ops);
#include "backends/gpu/gpu_ops.inc"
#undef CAIRN_GPU_OPERATORS
  return ops;
}

Backend make_backend(const char* name, const OpTable* ops) {
  return {
      .name = name,
      .host_memory = false,
      .activation_dtype = DType::kBF16,
      .device_count = device_count,
      .open_device = open_device,
      .close_device = close_device,
      .describe_device = describe_device,
      .allocate = allocate,
      .release = release,
      .create_queue = create_queue,
      .destroy_queue = destroy_queue,
      .synchronize = synchronize,
      .copy = copy,
      .zero = zero,
      .pack_linear = pack_linear,
      .unpack_linear = unpack_linear,
      .ops = ops,
      .begin_recording = begin_recording,
      .end_recording = end_recording,
      .replay_recording = replay_recording,
      .release_recording = release_recording,
      .restore_thread = restore_thread,
  };
}

}  // namespace cairn::gpu
