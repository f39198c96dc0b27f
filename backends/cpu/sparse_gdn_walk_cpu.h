// Stages 3 and 4 of a SparseGDN prefill in one walk over chunk pairs: at an even chunk the entry state is the one at
// hand, so no state is ever stored. Chunks without an event add to a pending decay, which the next use of the state
// takes in.
#pragma once

#include "backends/cpu/sparse_gdn_chunk_cpu.h"
#include "backends/reference/sparse_gdn_layout.h"

namespace cairn::cpu {

struct SparseWalk {
  SparseChunk even, odd;
  SparseWork work;
  float* cross;         ///< [64, 64] <q of odd, k of even>
  double* pending;      ///< [HV] by CSR row and head: natural log-decay not yet taken into the state
  std::int32_t* event;  ///< [n] by CSR row: its next event
};

SparseWalk carve_sparse_walk(const DeltaRuleArgs& args, ScratchLayout& layout);

/// Rows [first_row, end_row) of the layout, side by side: outputs and final states [HV, K, V] of their groups' value
/// heads. `out` holds U before.
void walk_sparse_rows(const SparseSequence& sequence, const reference::SparseGdnLayout& layout, std::int32_t first_row,
                      std::int32_t end_row, float* states, const SparseWalk& walk);

}  // namespace cairn::cpu
