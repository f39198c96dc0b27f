// Choosing a token from logits. Keeps nothing between calls.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/support/status.h"

namespace cairn {

struct SamplerOptions {
  float temperature = 0;  ///< 0: greedy
  std::int32_t top_k = 0;
  float top_p = 0, min_p = 0;
  float repetition_penalty = 0;
  std::uint64_t seed = 0, draw = 0;
  std::span<const std::int32_t> recent_tokens;
};

/// Penalty, then temperature, then top-k, top-p, min-p, in this order; then one draw with a counter-based generator:
/// (seed, draw) decides. NaN logits are never chosen.
Result<std::int32_t> sample(std::span<const float> logits, const SamplerOptions& options);

}  // namespace cairn
