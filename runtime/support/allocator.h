// Host memory of everything big: the host's allocator table, or aligned memory of the C library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "cairn/log.h"
#include "runtime/support/status.h"

namespace cairn {

/// Replaces the table for allocations from now on; null restores the default. INVALID_ARGUMENT: a null function.
/// WRONG_STATE: a block is alive, also one of a call in flight.
Status set_allocator(const cairn_allocator* allocator);

/// Null when there is no memory. A size of 0 gives a unique address. alignment: a power of two, at most 4,096.
void* host_allocate(std::size_t size_bytes, std::size_t alignment);
/// Gives memory of host_allocate() back, by the table of today: it does not change while a block is alive.
void host_release(void* memory, std::size_t size_bytes);

struct AllocatorCounters {
  std::uint64_t live_bytes = 0, peak_bytes = 0;
  std::uint64_t live_count = 0, total_count = 0;
};
AllocatorCounters allocator_counters();

/// Memory with an owner. Empty by default.
class HostBuffer {
 public:
  enum class OnRelease : std::uint8_t { kNothing = 0, kZero = 1 };

  /// 64-aligned, contents undefined. `what` is named in the OUT_OF_MEMORY message. kZero: for memory that has held state.
  static Result<HostBuffer> allocate(std::uint64_t size_bytes, const char* what,
                                     OnRelease on_release = OnRelease::kNothing);
  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept { swap(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~HostBuffer();

  std::byte* data() const { return data_; }
  template <class T> T* as() const { return reinterpret_cast<T*>(data_); }
  std::size_t size_bytes() const { return size_bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void swap(HostBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(on_release_, other.on_release_);
  }
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  OnRelease on_release_ = OnRelease::kNothing;
};

}  // namespace cairn
