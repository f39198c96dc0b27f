#include "runtime/support/allocator.h"

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "runtime/support/checked_math.h"
#include "runtime/support/secure_zero.h"

namespace cairn {
namespace {

void* default_allocate(void*, std::size_t size_bytes, std::size_t alignment) {
  void* memory = nullptr;
  if (alignment < sizeof(void*)) alignment = sizeof(void*);
  return posix_memalign(&memory, alignment, size_bytes ? size_bytes : 1) == 0 ? memory : nullptr;
}

void default_release(void*, void* memory, std::size_t) { std::free(memory); }

constexpr cairn_allocator kDefault = {sizeof(cairn_allocator), nullptr, default_allocate, default_release};

struct Hooks {
  std::mutex mutex;
  cairn_allocator table = kDefault;
  std::atomic<std::uint64_t> live_bytes{0}, peak_bytes{0}, live_count{0}, total_count{0};
};

Hooks& hooks() {
  static Hooks& instance = *new Hooks;  // never destroyed: memory may be given back at process exit
  return instance;
}

/// The table for `blocks` blocks more. It does not change before they are counted out again.
cairn_allocator table_for(std::uint64_t blocks) {
  const std::lock_guard lock(hooks().mutex);
  hooks().live_count.fetch_add(blocks);
  return hooks().table;
}

}  // namespace

Status set_allocator(const cairn_allocator* allocator) {
  if (allocator && (!allocator->allocate || !allocator->release)) {
    return Status::invalid_argument("allocator: allocate and release must not be NULL");
  }
  const std::lock_guard lock(hooks().mutex);
  if (const std::uint64_t live = hooks().live_count.load(); live != 0) {
    return Status::error(CAIRN_STATUS_WRONG_STATE, "the allocator cannot change while %llu blocks of it are in use",
                         static_cast<unsigned long long>(live));
  }
  hooks().table = allocator ? *allocator : kDefault;
  return {};
}

void* host_allocate(std::size_t size_bytes, std::size_t alignment) {
  Hooks& h = hooks();
  const cairn_allocator table = table_for(1);
  void* memory = table.allocate(table.user, size_bytes, alignment);
  if (!memory) {
    h.live_count.fetch_sub(1);
    return nullptr;
  }
  const std::uint64_t live = h.live_bytes.fetch_add(size_bytes, std::memory_order_relaxed) + size_bytes;
  std::uint64_t peak = h.peak_bytes.load(std::memory_order_relaxed);
  while (live > peak && !h.peak_bytes.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
  h.total_count.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

void host_release(void* memory, std::size_t size_bytes) {
  if (!memory) return;
  hooks().live_bytes.fetch_sub(size_bytes, std::memory_order_relaxed);
  const cairn_allocator table = table_for(0);
  table.release(table.user, memory, size_bytes);
  hooks().live_count.fetch_sub(1);
}

AllocatorCounters allocator_counters() {
  const Hooks& h = hooks();
  return {h.live_bytes.load(), h.peak_bytes.load(), h.live_count.load(), h.total_count.load()};
}

Result<HostBuffer> HostBuffer::allocate(std::uint64_t size_bytes, const char* what, OnRelease on_release) {
  const auto size = checked_cast<std::size_t>(size_bytes);
  void* memory = size ? host_allocate(*size, 64) : nullptr;
  if (!memory) {
    return Status::out_of_memory("%s: no host memory for %llu bytes", what, static_cast<unsigned long long>(size_bytes));
  }
  HostBuffer buffer;
  buffer.data_ = static_cast<std::byte*>(memory);
  buffer.size_bytes_ = *size;
  buffer.on_release_ = on_release;
  return buffer;
}

HostBuffer::~HostBuffer() {
  if (!data_) return;
  if (on_release_ == OnRelease::kZero) secure_zero(data_, size_bytes_);
  host_release(data_, size_bytes_);
}

}  // namespace cairn
