// SparseGDN, stage 3: the events as rows of chunks per group, and which states the outputs will read (spec 3.3).
#pragma once

#include <cstdint>

#include "backends/interface/scratch_layout.h"

namespace cairn::reference {

/// Rows are groups, high tiers first, lower group first within a tier.
struct SparseGdnLayout {
  std::int32_t* row_group;    ///< [n]
  std::int32_t* row_ptr;      ///< [n + 1]
  std::int32_t* event_chunk;  ///< [events]: ascending within a row
  std::int32_t*
      event_snapshot;  ///< [events]: place of the state right after the event among its group's snapshots; -1: not read
  std::int32_t* snapshot_count;  ///< [n], by group
  std::int32_t* entry_event;     ///< [n, ceil(C / 2)], by group: the last event before chunk 2 r; -1: the initial state
  std::int32_t* entry_snapshot;  ///< [n, ceil(C / 2)]: its snapshot
};

SparseGdnLayout carve_sparse_gdn_layout(std::int32_t chunk_count, std::int32_t group_count, ScratchLayout& layout);

/// mask [n, C], tier [n].
void lay_out_sparse_gdn(const std::uint8_t* mask, const std::int32_t* tier, std::int32_t chunk_count,
                        std::int32_t group_count, const SparseGdnLayout& layout);

}  // namespace cairn::reference
