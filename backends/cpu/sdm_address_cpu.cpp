#include "backends/cpu/sdm_address_cpu.h"

#include <algorithm>

namespace cairn::cpu {

std::int32_t sdm_slots_held(std::int32_t side, std::int32_t count) {
  return static_cast<std::int32_t>(std::min<std::int64_t>(count, static_cast<std::int64_t>(side) * side));
}

SdmAddressWork carve_sdm_address_work(std::int32_t side, std::int32_t count, ScratchLayout& layout) {
  const std::size_t kept = std::min(count, side);
  SdmAddressWork work;
  work.rows = layout.take<std::int32_t>(kept);
  work.columns = layout.take<std::int32_t>(kept);
  work.search = layout.take<float>(4 * static_cast<std::size_t>(side) + 64);
  work.offers = layout.take<double>(kept + 8);
  work.taken = layout.take<std::int32_t>(kept);
  work.sums = layout.take<double>(sdm_slots_held(side, count));
  return work;
}

void find_sdm_slots(const RecurrentKernels& kernels, const SdmAddressArgs& a, const SdmAddressWork& work,
                    std::int32_t* slots, float* weights) {
  const std::int32_t kept = std::min(a.count, a.side), held = sdm_slots_held(a.side, a.count);
  kernels.largest_places({a.side, kept, true, a.scores, work.search, work.rows});
  kernels.largest_places({a.side, kept, false, a.scores + a.side, work.search, work.columns});
  kernels.best_pairs(
      {a.side, kept, held, a.scores, work.rows, work.columns, work.offers, work.taken, slots, work.sums});
  for (std::int32_t i = 0; i < held; ++i) {
    weights[i] = static_cast<float>(static_cast<double>(a.scale) * (work.sums[i] - work.sums[0]));
  }
  kernels.exponentials(held, weights, weights);
  double total = 0;
  for (std::int32_t i = 0; i < held; ++i) total += weights[i];
  for (std::int32_t i = 0; i < held; ++i) weights[i] = static_cast<float>(weights[i] / total);
}

}  // namespace cairn::cpu
