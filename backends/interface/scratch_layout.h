// Carving an operator's scratch: scratch_bytes() and run() call the same function with the same arguments.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn {

/// Hands out 256-aligned pieces of one buffer. With a null base it only counts.
class ScratchLayout {
 public:
  explicit ScratchLayout(void* base) : base_(static_cast<std::byte*>(base)) {}

  template <class T>
  T* take(std::size_t count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + size_bytes_) : nullptr;
    size_bytes_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }

  std::size_t size_bytes() const { return size_bytes_; }

 private:
  static constexpr std::size_t kAlignment = 256;
  std::byte* base_;
  std::size_t size_bytes_ = 0;
};

}  // namespace cairn
