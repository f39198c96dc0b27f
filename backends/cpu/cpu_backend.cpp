#include "backends/cpu/cpu_backend.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/linear_cpu.h"
#include "backends/reference/reference_backend.h"
#include "cairn/status.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace cairn::cpu {

#define CAIRN_CPU_OVERRIDE(stem) void override_##stem(OpTable&);
#include "backends/cpu/cpu_overrides.inc"
#undef CAIRN_CPU_OVERRIDE

namespace {

constexpr std::size_t kAlignment = 256;

void* default_allocate(std::size_t size_bytes, std::size_t alignment) {
  if (size_bytes > SIZE_MAX - alignment) return nullptr;
  return std::aligned_alloc(alignment, (size_bytes + alignment - 1) / alignment * alignment);
}
void default_release(void* memory, std::size_t) { std::free(memory); }

constexpr HostServices kDefaultServices = {default_allocate, default_release, nullptr};
std::atomic<const HostServices*> host_services{&kDefaultServices};

BackendDevice* handle_of(Device* device) { return reinterpret_cast<BackendDevice*>(device); }

std::size_t worker_scratch_bytes(const Device& device) {
  return static_cast<std::size_t>(device.pool.thread_count() - 1) * kThreadScratchBytes;
}

std::int32_t device_count(BackendError*) { return 1; }

BackendDevice* open_device(const DeviceOptions& options, BackendError* error) {
  if (options.index != 0) {
    backend_failure(error, CAIRN_STATUS_NOT_FOUND, "cpu: device %d does not exist (devices: 1)", options.index);
    return nullptr;
  }
  if (options.thread_count < 0) {
    backend_failure(error, CAIRN_STATUS_INVALID_ARGUMENT, "cpu: thread count %d is negative", options.thread_count);
    return nullptr;
  }
  Device* device = new (std::nothrow) Device(options);
  const std::size_t scratch_bytes = device ? worker_scratch_bytes(*device) : 0;
  if (scratch_bytes) {
    device->worker_scratch = static_cast<std::byte*>(host_services.load()->allocate(scratch_bytes, kAlignment));
  }
  if (!device || (scratch_bytes && !device->worker_scratch)) {
    backend_failure(error, CAIRN_STATUS_OUT_OF_MEMORY, "cpu: %zu bytes for a device and its threads refused",
                    scratch_bytes);
    delete device;
    return nullptr;
  }
  return handle_of(device);
}

void close_device(BackendDevice* handle) {
  Device* device = &device_of(handle);
  if (device->worker_scratch) host_services.load()->release(device->worker_scratch, worker_scratch_bytes(*device));
  delete device;
}

/// The processor's own name (CPUID leaves 0x80000002 to 4), or "cpu".
void describe_processor(char (&name)[128]) {
  std::strcpy(name, "cpu");
#if defined(__x86_64__)
  std::uint32_t words[12];
  for (std::uint32_t leaf = 0; leaf < 3; ++leaf) {
    std::uint32_t* w = words + 4 * leaf;
    if (!__get_cpuid(0x80000002u + leaf, w, w + 1, w + 2, w + 3)) return;
  }
  std::memcpy(name, words, sizeof words);
  name[sizeof words] = 0;
#endif
}

bool describe_device(BackendDevice* handle, DeviceDescription* description, BackendError*) {
  const Device& device = device_of(handle);
  *description = {};
  describe_processor(description->name);
  describe_cpu_features(device.features, description->features, sizeof description->features);
  description->thread_count = device.pool.thread_count();
  const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  description->memory_total_bytes = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes;
  description->memory_free_bytes = static_cast<std::uint64_t>(sysconf(_SC_AVPHYS_PAGES)) * page_bytes;
  return true;
}

void* allocate(BackendDevice*, std::size_t size_bytes, MemoryKind, BackendError* error) {
  void* memory = host_services.load()->allocate(size_bytes ? size_bytes : kAlignment, kAlignment);
  if (!memory) backend_failure(error, CAIRN_STATUS_OUT_OF_MEMORY, "cpu: %zu bytes of memory refused", size_bytes);
  return memory;
}

void release(BackendDevice*, void* memory, std::size_t size_bytes, MemoryKind) {
  if (memory) host_services.load()->release(memory, size_bytes ? size_bytes : kAlignment);
}

BackendQueue* create_queue(BackendDevice* device, void* native_queue, BackendError* error) {
  if (native_queue) {
    backend_failure(error, CAIRN_STATUS_UNSUPPORTED, "cpu: native queues are not supported");
    return nullptr;
  }
  Queue* queue = new (std::nothrow) Queue{&device_of(device), {}};
  if (!queue) backend_failure(error, CAIRN_STATUS_OUT_OF_MEMORY, "cpu: no memory for a queue");
  return reinterpret_cast<BackendQueue*>(queue);
}

void destroy_queue(BackendQueue* queue) { delete &queue_of(queue); }

bool synchronize(BackendQueue* handle, BackendError* error) {
  Queue& queue = queue_of(handle);
  if (queue.error.status == CAIRN_STATUS_OK) return true;
  *error = queue.error;
  queue.error = {};
  return false;
}

bool copy(BackendQueue*, void* to, const void* from, std::size_t size_bytes, CopyKind, BackendError*) {
  if (size_bytes) std::memmove(to, from, size_bytes);
  return true;
}

bool zero(BackendQueue*, void* memory, std::size_t size_bytes, BackendError*) {
  if (size_bytes) std::memset(memory, 0, size_bytes);
  return true;
}

const OpTable& cpu_ops() {
  static const OpTable ops = [] {
    OpTable table = *reference::reference_backend()->ops;
#define CAIRN_CPU_OVERRIDE(stem) override_##stem(table);
#include "backends/cpu/cpu_overrides.inc"
#undef CAIRN_CPU_OVERRIDE
    table.delta_inputs = no_fused_form<DeltaInputsArgs>();
    table.linear_swiglu = no_fused_form<LinearArgs>();
    table.delta_step = no_fused_form<DeltaStepArgs>();
    return table;
  }();
  return ops;
}

}  // namespace

const Backend* cpu_backend() {
  static const Backend backend = {
      .name = "cpu",
      .host_memory = true,
      .activation_dtype = DType::kF32,
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
      .ops = &cpu_ops(),
  };
  return &backend;
}

void set_host_services(const HostServices* services) { host_services.store(services ? services : &kDefaultServices); }

}  // namespace cairn::cpu
