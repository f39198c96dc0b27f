#include "backends/reference/reference_backend.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "backends/reference/reference_ops.h"
#include "cairn/status.h"

namespace cairn::reference {
namespace {

constexpr std::size_t kAlignment = 256;

void* aligned_allocate(std::size_t size_bytes, std::size_t alignment) {
  if (size_bytes > SIZE_MAX - alignment) return nullptr;
  return std::aligned_alloc(alignment, (size_bytes + alignment - 1) / alignment * alignment);
}
void aligned_release(void* memory, std::size_t) { std::free(memory); }

constexpr HostServices kDefaultServices = {aligned_allocate, aligned_release, nullptr};
std::atomic<const HostServices*> host_services{&kDefaultServices};

// The device and the queue hold nothing: their addresses say that they are there.
char the_device, the_queue;

std::int32_t device_count(BackendError*) { return 1; }

BackendDevice* open_device(const DeviceOptions& options, BackendError* error) {
  if (options.index != 0) {
    backend_failure(error, CAIRN_STATUS_NOT_FOUND, "reference: device %d does not exist (devices: 1)", options.index);
    return nullptr;
  }
  return reinterpret_cast<BackendDevice*>(&the_device);
}

void close_device(BackendDevice*) {}

bool describe_device(BackendDevice*, DeviceDescription* description, BackendError*) {
  *description = {};
  std::strncpy(description->name, "reference (float64)", sizeof description->name - 1);
  std::strncpy(description->features, "float64", sizeof description->features - 1);
  description->thread_count = 1;
  return true;
}

void* allocate(BackendDevice*, std::size_t size_bytes, MemoryKind, BackendError* error) {
  void* memory = host_services.load()->allocate(size_bytes ? size_bytes : kAlignment, kAlignment);
  if (!memory) backend_failure(error, CAIRN_STATUS_OUT_OF_MEMORY, "reference: %zu bytes of memory refused", size_bytes);
  return memory;
}

void release(BackendDevice*, void* memory, std::size_t size_bytes, MemoryKind) {
  if (memory) host_services.load()->release(memory, size_bytes ? size_bytes : kAlignment);
}

BackendQueue* create_queue(BackendDevice*, void* native_queue, BackendError* error) {
  if (native_queue) {
    backend_failure(error, CAIRN_STATUS_UNSUPPORTED, "reference: native queues are not supported");
    return nullptr;
  }
  return reinterpret_cast<BackendQueue*>(&the_queue);
}

void destroy_queue(BackendQueue*) {}
bool synchronize(BackendQueue*, BackendError*) { return true; }

bool copy(BackendQueue*, void* to, const void* from, std::size_t size_bytes, CopyKind, BackendError*) {
  if (size_bytes) std::memmove(to, from, size_bytes);
  return true;
}

bool zero(BackendQueue*, void* memory, std::size_t size_bytes, BackendError*) {
  if (size_bytes) std::memset(memory, 0, size_bytes);
  return true;
}

bool pack_linear(BackendDevice*, LinearWeight*, BackendError*) { return true; }
void unpack_linear(BackendDevice*, LinearWeight*) {}

constexpr OpTable kOps = {
#define CAIRN_OP(field, Args, what) {field##_unsupported_reason, field##_scratch_bytes, field##_run},
#include "backends/interface/ops.inc"
#undef CAIRN_OP
};

constexpr Backend kBackend = {
    .name = "reference",
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
    .ops = &kOps,
};

}  // namespace

const Backend* reference_backend() { return &kBackend; }

void set_host_services(const HostServices* services) { host_services.store(services ? services : &kDefaultServices); }

}  // namespace cairn::reference
