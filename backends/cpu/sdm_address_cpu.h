// Product-key addressing of sparse delta memory (spec 5) at O(n + W log W) for each token, head and side.
#pragma once

#include <cstdint>

#include "backends/cpu/recurrent_kernels.h"
#include "backends/interface/scratch_layout.h"

namespace cairn::cpu {

/// A pair of places among the halves' best, both largest first.
struct SdmCandidate {
  double score;
  std::int32_t slot, row_place, column_place;
};

struct SdmAddressWork {
  std::int32_t *rows, *columns;  ///< [min(count, side)] best of each half, largest first
  SdmCandidate* frontier;        ///< [min(count, side)] a heap
  float* search;                 ///< [3 side + 64]
};

SdmAddressWork carve_sdm_address_work(std::int32_t side, std::int32_t count, ScratchLayout& layout);

/// Slots held by an address: min(count, side * side).
std::int32_t sdm_slots_held(std::int32_t side, std::int32_t count);

struct SdmAddressArgs {
  const float* scores;  ///< [2 side]
  std::int32_t side, count;
  float scale;
};

/// Writes sdm_slots_held slots and their softmax weights, largest score first; ties: lower slot first.
void find_sdm_slots(const RecurrentKernels& kernels, const SdmAddressArgs& args, const SdmAddressWork& work,
                    std::int32_t* slots, float* weights);

}  // namespace cairn::cpu
