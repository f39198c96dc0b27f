// Runs an operator's items on the device's threads, each with a piece of scratch of its own.
//
// Scratch is planned before a device is known, so the number of pieces follows from the items and the cores of the
// process alone. Threads take items as they come; an item's result depends neither on its thread nor on its piece.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "backends/cpu/thread_pool.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace cairn::cpu {

/// Denormals are zero while this lives: decayed states would otherwise slow every product down a hundredfold.
class DenormalsAreZero {
 public:
#if defined(__SSE2__)
  DenormalsAreZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~DenormalsAreZero() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  DenormalsAreZero() {}
#endif
};

/// Pieces of scratch for `items` items: one for each that may run at the same time.
inline int scratch_pieces(std::int64_t items) {
  static const int most = std::max(16, 2 * usable_core_count());
  return static_cast<int>(std::clamp<std::int64_t>(items, 1, most));
}

/// Heads that one prefill item takes side by side, chunk by chunk: rows of neighbouring heads share pages and cache
/// lines. Limited by what stays in a core's cache, and so that every thread finds items. No result depends on it.
inline std::int32_t heads_per_item(std::int64_t sequences, std::int32_t heads, int threads,
                                   std::int64_t bytes_per_head) {
  constexpr std::int64_t kCacheBytes = 1 << 20;
  const std::int64_t wanted_items = threads == 1 ? 1 : 2 * static_cast<std::int64_t>(threads);
  const std::int64_t most = std::clamp<std::int64_t>(kCacheBytes / std::max<std::int64_t>(bytes_per_head, 1), 1, heads);
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(sequences * heads / wanted_items, 1, most));
}

/// Calls fn(item, scratch) for every item in [0, items); pieces as scratch_pieces(items), piece_bytes apart.
template <class F>
void run_items(ThreadPool& pool, std::int64_t items, std::byte* scratch, std::size_t piece_bytes, const F& fn) {
  std::atomic<std::int64_t> next{0};
  const int pieces = std::min(scratch_pieces(items), pool.thread_count());
  pool.parallel_for(pieces, [&](std::int64_t piece) {
    const DenormalsAreZero guard;
    std::byte* own = scratch + static_cast<std::size_t>(piece) * piece_bytes;
    for (std::int64_t item = next++; item < items; item = next++) fn(item, own);
  });
}

}  // namespace cairn::cpu
