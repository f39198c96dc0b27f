// Memory that has held a state is cleared before it is given back.
#pragma once

#include <cstddef>
#include <cstring>

namespace cairn {

/// memset to 0 that the compiler keeps.
inline void secure_zero(void* memory, std::size_t size_bytes) {
  if (size_bytes == 0) return;
  std::memset(memory, 0, size_bytes);
  __asm__ __volatile__("" : : "r"(memory) : "memory");
}

}  // namespace cairn
