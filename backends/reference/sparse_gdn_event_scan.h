// SparseGDN, stage 4: the state walks from event to event; chunks without one only decay it (spec 3.3, H).
#pragma once

#include "backends/reference/sparse_gdn_intra.h"
#include "backends/reference/sparse_gdn_layout.h"

namespace cairn::reference {

/// Working space of one value head.
struct SparseGdnScan {
  double* state_KV;
  double* w_K;        ///< one row of the correction W
  double* snapshots;  ///< [snapshots of the group, K, V]
};

SparseGdnScan carve_sparse_gdn_scan(const SparseGdnArgs& args, std::int32_t chunk_count, ScratchLayout& layout);

/// Scans value head h from `initial_KV`: U' of the events overwrites U, the states that outputs read go to snapshots,
/// state_KV ends as the state after the last chunk.
void scan_sparse_gdn_events(const SparseGdnSequence& sequence, const SparseGdnIntra& intra,
                            const SparseGdnLayout& layout, std::int32_t row_of_group, std::int32_t h,
                            const float* initial_KV, const SparseGdnScan& scan);

}  // namespace cairn::reference
