// SparseGDN, stage 5: outputs, group-local: both chunks of a pair read the state that enters the even one (spec 3.4).
#pragma once

#include "backends/reference/sparse_gdn_event_scan.h"

namespace cairn::reference {

/// Writes value head h's outputs. scan.snapshots as left by the event scan; entry_KV and sum_V are working space.
void write_sparse_gdn_outputs(const SparseGdnSequence& sequence, const SparseGdnIntra& intra,
                              const SparseGdnLayout& layout, std::int32_t h, const float* initial_KV,
                              const double* snapshots, double* entry_KV, double* sum_V);

}  // namespace cairn::reference
