#include "backends/reference/sparse_gdn_layout.h"

namespace cairn::reference {
namespace {

/// Entry states of one group's chunk pairs; numbers the events that are read, in order.
void map_entries(const std::uint8_t* mask_C, std::int32_t chunk_count, std::int32_t* entry_event,
                 std::int32_t* entry_snapshot, std::int32_t* snapshot_count) {
  std::int32_t last_event = -1, numbered_event = -1, count = 0;
  for (std::int32_t c = 0; c < chunk_count; ++c) {
    if (c % 2 == 0) {
      if (last_event != numbered_event) numbered_event = last_event, ++count;
      entry_event[c / 2] = last_event;
      entry_snapshot[c / 2] = count - 1;
    }
    if (mask_C[c]) last_event = c;
  }
  *snapshot_count = count;
}

std::int32_t snapshot_of(std::int32_t event, std::int32_t pairs, const std::int32_t* entry_event,
                         const std::int32_t* entry_snapshot) {
  for (std::int32_t r = 0; r < pairs; ++r) {
    if (entry_event[r] == event) return entry_snapshot[r];
  }
  return -1;
}

}  // namespace

SparseGdnLayout carve_sparse_gdn_layout(std::int32_t chunk_count, std::int32_t group_count, ScratchLayout& layout) {
  const std::size_t n = group_count, events = n * chunk_count, pairs = n * ((chunk_count + 1) / 2);
  SparseGdnLayout result;
  result.row_group = layout.take<std::int32_t>(n);
  result.row_ptr = layout.take<std::int32_t>(n + 1);
  result.event_chunk = layout.take<std::int32_t>(events);
  result.event_snapshot = layout.take<std::int32_t>(events);
  result.snapshot_count = layout.take<std::int32_t>(n);
  result.entry_event = layout.take<std::int32_t>(pairs);
  result.entry_snapshot = layout.take<std::int32_t>(pairs);
  return result;
}

void lay_out_sparse_gdn(const std::uint8_t* mask, const std::int32_t* tier, std::int32_t chunk_count,
                        std::int32_t group_count, const SparseGdnLayout& layout) {
  const std::int32_t pairs = (chunk_count + 1) / 2;
  std::int32_t rows = 0, events = 0;
  for (std::int32_t wanted = 2; wanted >= 0; --wanted) {
    for (std::int32_t p = 0; p < group_count; ++p) {
      if (tier[p] != wanted) continue;
      const std::uint8_t* mask_C = mask + static_cast<std::int64_t>(p) * chunk_count;
      std::int32_t* entry_event = layout.entry_event + static_cast<std::int64_t>(p) * pairs;
      std::int32_t* entry_snapshot = layout.entry_snapshot + static_cast<std::int64_t>(p) * pairs;
      map_entries(mask_C, chunk_count, entry_event, entry_snapshot, &layout.snapshot_count[p]);
      layout.row_group[rows] = p;
      layout.row_ptr[rows++] = events;
      for (std::int32_t c = 0; c < chunk_count; ++c) {
        if (!mask_C[c]) continue;
        layout.event_chunk[events] = c;
        layout.event_snapshot[events++] = snapshot_of(c, pairs, entry_event, entry_snapshot);
      }
    }
  }
  layout.row_ptr[rows] = events;
}

}  // namespace cairn::reference
