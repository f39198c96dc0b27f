#include "runtime/device/host_thread.h"

#include <atomic>

namespace cairn {
namespace {

/// Grows at its head, under the registry's lock; never shrinks.
struct Choosing {
  const Backend& backend;
  const Choosing* next;
};
std::atomic<const Choosing*> newest{nullptr};

}  // namespace

void remember_backend(const Backend& backend) {
  if (backend.restore_thread) newest.store(new Choosing{backend, newest.load()}, std::memory_order_release);
}

void restore_host_thread() noexcept {
  for (const Choosing* one = newest.load(std::memory_order_acquire); one; one = one->next)
    one->backend.restore_thread();
}

}  // namespace cairn
