// An allocator that fails on demand: its call number `fail_at`, and when `forever` every later one.
#pragma once

#include <cstdlib>

#include "runtime/support/allocator.h"

namespace cairn::test {

class FaultyAllocator {
 public:
  FaultyAllocator() {
    const cairn_allocator table = {sizeof(cairn_allocator), this, allocate, release};
    (void)set_allocator(&table).ok();
  }
  ~FaultyAllocator() { (void)set_allocator(nullptr).ok(); }
  FaultyAllocator(const FaultyAllocator&) = delete;
  FaultyAllocator& operator=(const FaultyAllocator&) = delete;

  void arm(long number, bool stays) { calls = 0, fail_at = number, forever = stays; }
  void disarm() { fail_at = -1; }

  long calls = 0, fail_at = -1;
  bool forever = false;

 private:
  static void* allocate(void* user, std::size_t size_bytes, std::size_t alignment) {
    auto& self = *static_cast<FaultyAllocator*>(user);
    const long number = self.calls++;
    if (self.fail_at >= 0 && (number == self.fail_at || (self.forever && number > self.fail_at))) return nullptr;
    void* memory = nullptr;
    return posix_memalign(&memory, alignment < sizeof(void*) ? sizeof(void*) : alignment, size_bytes ? size_bytes : 1) == 0 ? memory : nullptr;
  }
  static void release(void*, void* memory, std::size_t) { std::free(memory); }
};

}  // namespace cairn::test
