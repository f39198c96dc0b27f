// A plug-in that behaves like a GPU on host memory, so that every path for device memory runs in CI: backend "delayed".
// Copies and zeroing wait in their queue until it is synchronised or an operator runs; host sources are read at that
// moment, so a caller that reuses them too early is found. Fresh device memory is full of NaN. An operator whose
// scratch is too small fails its queue; sparse_gdn wants more of it with the full inverse, as on GPUs.
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backends/reference/reference_backend.h"
#include "cairn/status.h"

namespace cairn::test {
namespace {

struct Work {
  std::mutex mutex;
  std::vector<std::function<void()>> items;
  std::string failure;  ///< empty: none
};

/// Bytes of every piece of memory that is lent.
struct Lent {
  std::mutex mutex;
  std::map<const std::byte*, std::size_t> sizes;
};

Lent& lent() {
  static Lent& instance = *new Lent;
  return instance;
}

/// Bytes from `memory` to the end of its piece; 0 outside of all.
std::size_t room_at(const void* memory) {
  const auto* at = static_cast<const std::byte*>(memory);
  const std::lock_guard lock(lent().mutex);
  const auto after = lent().sizes.upper_bound(at);
  if (after == lent().sizes.begin()) return 0;
  const auto& [begin, size_bytes] = *std::prev(after);
  return at < begin + size_bytes ? static_cast<std::size_t>(begin + size_bytes - at) : 0;
}

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
  if (!memory) return nullptr;
  std::memset(memory, 0xff, size_bytes);
  const std::lock_guard lock(lent().mutex);
  lent().sizes[static_cast<const std::byte*>(memory)] = size_bytes;
  return memory;
}

void release(BackendDevice* device, void* memory, std::size_t size_bytes, MemoryKind kind) {
  {
    const std::lock_guard lock(lent().mutex);
    lent().sizes.erase(static_cast<const std::byte*>(memory));
  }
  reference::reference_backend()->release(device, memory, size_bytes, kind);
}

BackendQueue* create_queue(BackendDevice*, void*, BackendError*) { return reinterpret_cast<BackendQueue*>(new Work); }

void destroy_queue(BackendQueue* queue) {
  flush(queue);
  delete work_of(queue);
}

bool synchronize(BackendQueue* queue, BackendError* error) {
  flush(queue);
  const std::string failure = std::exchange(work_of(queue)->failure, {});
  return failure.empty() || backend_failure(error, CAIRN_STATUS_DEVICE, "%s", failure.c_str());
}

bool copy(BackendQueue* queue, void* to, const void* from, std::size_t size_bytes, CopyKind, BackendError*) {
  add(queue, [=] { std::memmove(to, from, size_bytes); });
  return true;
}

bool zero(BackendQueue* queue, void* memory, std::size_t size_bytes, BackendError*) {
  add(queue, [=] { std::memset(memory, 0, size_bytes); });
  return true;
}

const OpTable& delayed_ops();

template <auto kField, class Args>
void run_after_copies(BackendQueue* queue, const Args& args, void* scratch) {
  flush(queue);
  const std::size_t need = (delayed_ops().*kField).scratch_bytes(args), room = room_at(scratch);
  if (need > room) {
    work_of(queue)->failure = std::to_string(room) + " bytes of scratch, needed: " + std::to_string(need);
    return;
  }
  (reference::reference_backend()->ops->*kField).run(nullptr, args, scratch);
}

const OpTable& delayed_ops() {
  static const OpTable table = [] {
    OpTable ops = *reference::reference_backend()->ops;
#define CAIRN_OP(field, Args, what) ops.field.run = run_after_copies<&OpTable::field, Args>;
#include "backends/interface/ops.inc"
#undef CAIRN_OP
    ops.sparse_gdn.scratch_bytes = [](const SparseGdnArgs& args) {
      return reference::reference_backend()->ops->sparse_gdn.scratch_bytes(args) * (args.full_inverse ? 2 : 1);
    };
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
    copy_of_reference.release = release;
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
