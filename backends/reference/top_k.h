// The k largest of n, largest first; ties: lower index first.
#pragma once

#include <cstdint>

namespace cairn::reference {

/// Writes the indices of the k largest scores; 0 <= k <= n.
template <class Score>
void top_k(const Score* scores, std::int32_t n, std::int32_t k, std::int32_t* chosen) {
  std::int32_t held = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    std::int32_t place = held;
    while (place > 0 && scores[i] > scores[chosen[place - 1]]) --place;
    if (place == k) continue;
    if (held < k) ++held;
    for (std::int32_t j = held - 1; j > place; --j) chosen[j] = chosen[j - 1];
    chosen[place] = i;
  }
}

}  // namespace cairn::reference
