#include "backends/reference/sdm_address.h"

#include <algorithm>
#include <cmath>

#include "backends/reference/top_k.h"

namespace cairn::reference {

std::int32_t sdm_address_size(std::int32_t side, std::int32_t count) {
  return static_cast<std::int32_t>(std::min<std::int64_t>(count, static_cast<std::int64_t>(side) * side));
}

SdmAddressScratch carve_sdm_address(std::int32_t side, std::int32_t count, ScratchLayout& layout) {
  const std::int32_t kept = std::min(count, side);
  SdmAddressScratch scratch;
  scratch.rows = layout.take<std::int32_t>(kept);
  scratch.columns = layout.take<std::int32_t>(kept);
  scratch.sums = layout.take<double>(static_cast<std::size_t>(kept) * kept);
  scratch.places = layout.take<std::int32_t>(sdm_address_size(side, count));
  return scratch;
}

void sdm_address(const float* scores, std::int32_t side, std::int32_t count, double scale, const SdmAddressScratch& s,
                 std::int32_t* slots, double* weights) {
  const std::int32_t kept = std::min(count, side), size = sdm_address_size(side, count);
  top_k(scores, side, kept, s.rows);
  top_k(scores + side, side, kept, s.columns);
  std::sort(s.rows, s.rows + kept);  // candidates in slot order, so that top_k settles ties by the lower slot
  std::sort(s.columns, s.columns + kept);
  for (std::int32_t i = 0; i < kept; ++i) {
    for (std::int32_t j = 0; j < kept; ++j) {
      s.sums[i * kept + j] = static_cast<double>(scores[s.rows[i]]) + scores[side + s.columns[j]];
    }
  }
  top_k(s.sums, kept * kept, size, s.places);
  double total = 0;
  for (std::int32_t i = 0; i < size; ++i) {
    slots[i] = s.rows[s.places[i] / kept] * side + s.columns[s.places[i] % kept];
    weights[i] = std::exp(scale * (s.sums[s.places[i]] - s.sums[s.places[0]]));
    total += weights[i];
  }
  for (std::int32_t i = 0; i < size; ++i) weights[i] /= total;
}

}  // namespace cairn::reference
