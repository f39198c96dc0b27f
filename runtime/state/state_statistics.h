// Numbers about one layer's memory, for watching months of drift.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/state/state.h"

namespace cairn {

struct StateStatistics {
  double max_abs = 0, norm = 0;
  std::uint64_t non_finite_count = 0;
  std::uint64_t slots_written = 0, slots_total = 0;
};

/// Over the layer's recurrent slots; of a slot table, over its written rows. Non-finite values count in nothing else.
Result<StateStatistics> read_statistics(const State& state, Queue& queue, std::int32_t layer);

/// One byte per slot of the layer's table, [heads, slots]: 1 when it left M0 behind. UNSUPPORTED: the layer has no table.
Result<std::vector<std::uint8_t>> read_written_slots(const State& state, Queue& queue, std::int32_t layer);

/// Slots of the layer's table, heads * slots; 0: it has none.
std::int64_t slot_count(const State& state, std::int32_t layer);

}  // namespace cairn
