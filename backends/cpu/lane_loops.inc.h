// Loops over vectors of a row whose length need not be a multiple of kLanes.
#pragma once

#include "backends/cpu/vector_lanes.h"

namespace cairn::cpu::CAIRN_ISA {

/// n == kLanes: a whole vector; else the first n lanes, and 0 in the others.
inline Lanes read(const float* p, int n) { return n == kLanes ? load(p) : load_first(p, n); }
inline void write(float* p, int n, Lanes x) { n == kLanes ? store(p, x) : store_first(p, n, x); }

/// f(i, n) for each vector of [0, count): whole ones, then one with the n remaining lanes.
template <class F>
inline void for_lanes(std::int32_t count, const F& f) {
  std::int32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) f(i, kLanes);
  if (i < count) f(i, count - i);
}

inline const float* row_of(const void* data, std::int64_t stride, std::int64_t row) {
  return static_cast<const float*>(data) + row * stride;
}
inline float* row_of(void* data, std::int64_t stride, std::int64_t row) {
  return static_cast<float*>(data) + row * stride;
}

}  // namespace cairn::cpu::CAIRN_ISA
