// Product-key addressing of sparse delta memory (spec 5): which slots a token writes or reads, and how much.
#pragma once

#include <cstdint>

#include "backends/interface/scratch_layout.h"

namespace cairn::reference {

/// Working space for one address of `count` of side * side slots.
struct SdmAddressScratch {
  std::int32_t* rows;  ///< best of the first half, then sorted by index
  std::int32_t* columns;
  double* sums;
  std::int32_t* places;
};

/// Number of slots that an address holds: min(count, side * side).
std::int32_t sdm_address_size(std::int32_t side, std::int32_t count);

SdmAddressScratch carve_sdm_address(std::int32_t side, std::int32_t count, ScratchLayout& layout);

/// Slot i * side + j has score scores[i] + scores[side + j]. Keeps each half's best min(count, side), of their sums the
/// best `count`, and their softmax(scale * score). Largest score first; ties: lower index, then lower slot.
void sdm_address(const float* scores, std::int32_t side, std::int32_t count, double scale,
                 const SdmAddressScratch& scratch, std::int32_t* slots, double* weights);

}  // namespace cairn::reference
