// A plug-in that behaves like a GPU on host memory, so that every path for device memory runs in CI: backend "delayed".
// Copies and zeroing wait in their queue until it is synchronised or an operator runs; host sources are read at that
// moment, so a caller that reuses them too early is found. Fresh device memory is full of NaN.
#include <cstring>
#include <functional>
#include <mutex>
#include <vector>

#include "backends/reference/reference_backend.h"

namespace cairn::test {
namespace {

struct Work {
  std::mutex mutex;
  std::vector<std::function<void()>> items;
};

Work* work_of(BackendQueue* queue) { return reinterpret_cast<Work*>(queue); }

void flush(BackendQueue* queue) {
  std::vector<std::function<void()>> items;
  {
    const std::lock_guard lock(work_of(queue)->mutex);
    items.swap(work_of(queue)->items);
  }
  for (const auto& item : items) item();
}

void add(BackendQueue* queue, std::function<void()> item) {
  const std::lock_guard lock(work_of(queue)->mutex);
  work_of(queue)->items.push_back(std::move(item));
}

void* allocate(BackendDevice* device, std::size_t size_bytes, MemoryKind kind, BackendError* error) {
  void* memory = reference::reference_backend()->allocate(device, size_bytes, kind, error);
  if (memory) std::memset(memory, 0xff, size_bytes);
  return memory;
}

BackendQueue* create_queue(BackendDevice*, void*, BackendError*) { return reinterpret_cast<BackendQueue*>(new Work); }

void destroy_queue(BackendQueue* queue) {
  flush(queue);
  delete work_of(queue);
}

bool synchronize(BackendQueue* queue, BackendError*) {
  flush(queue);
  return true;
}

bool copy(BackendQueue* queue, void* to, const void* from, std::size_t size_bytes, CopyKind, BackendError*) {
  add(queue, [=] { std::memmove(to, from, size_bytes); });
  return true;
}

bool zero(BackendQueue* queue, void* memory, std::size_t size_bytes, BackendError*) {
  add(queue, [=] { std::memset(memory, 0, size_bytes); });
  return true;
}

template <auto kField, class Args>
void run_after_copies(BackendQueue* queue, const Args& args, void* scratch) {
  flush(queue);
  (reference::reference_backend()->ops->*kField).run(nullptr, args, scratch);
}

const OpTable& delayed_ops() {
  static const OpTable table = [] {
    OpTable ops = *reference::reference_backend()->ops;
#define CAIRN_OP(field, Args, what) ops.field.run = run_after_copies<&OpTable::field, Args>;
#include "backends/interface/ops.inc"
#undef CAIRN_OP
    return ops;
  }();
  return table;
}

const Backend& delayed_backend() {
  static const Backend backend = [] {
    Backend copy_of_reference = *reference::reference_backend();
    copy_of_reference.name = "delayed";
    copy_of_reference.host_memory = false;
    copy_of_reference.allocate = allocate;
    copy_of_reference.create_queue = create_queue;
    copy_of_reference.destroy_queue = destroy_queue;
    copy_of_reference.synchronize = synchronize;
    copy_of_reference.copy = copy;
    copy_of_reference.zero = zero;
    copy_of_reference.ops = &delayed_ops();
    return copy_of_reference;
  }();
  return backend;
}

}  // namespace
}  // namespace cairn::test

extern "C" __attribute__((visibility("default"))) const cairn::BackendList* cairn_backend_entry(
    const cairn::HostServices* services) {
  static const cairn::Backend* const backends[] = {&cairn::test::delayed_backend()};
  static const cairn::BackendList list = {cairn::kBuildId, 1, backends};
  cairn::reference::set_host_services(services);
  return &list;
}
