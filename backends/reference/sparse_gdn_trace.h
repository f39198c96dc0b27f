// Copies the stage tensors of a SparseGDN prefill to where a test asked for them.
#pragma once

#include "backends/reference/sparse_gdn_event_scan.h"
#include "backends/reference/sparse_gdn_select.h"

namespace cairn::reference {

/// After stage 3: everything but U' and the snapshots. eta [HV].
void trace_sparse_gdn_stages(const SparseGdnTrace& trace, const SparseGdnSequence& sequence,
                             const SparseGdnIntra& intra, const SparseGdnSelection& selection,
                             const SparseGdnLayout& layout, const double* eta);

/// After stage 4 of value head h.
void trace_sparse_gdn_scan(const SparseGdnTrace& trace, const SparseGdnSequence& sequence, const SparseGdnIntra& intra,
                           const SparseGdnLayout& layout, std::int32_t h, const double* snapshots);

}  // namespace cairn::reference
