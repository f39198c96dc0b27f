// Product-key addressing of sparse delta memory (spec 5) at O(n + W log W) for each token, head and side.
#pragma once

#include <cstdint>

#include "backends/cpu/recurrent_kernels.h"
#include "backends/interface/scratch_layout.h"

namespace cairn::cpu {

struct SdmAddressWork {
  std::int32_t* rows;     ///< [min(count, side)] best of the first half, lowest first
  std::int32_t* columns;  ///< the same of the second half, largest score first
  float* search;
  double* offers;
  std::int32_t* taken;
  double* sums;  ///< [held]
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
