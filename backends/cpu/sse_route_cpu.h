// Which tokens of a chunk enter which partition, and with which weights (spec 4, 8).
#pragma once

#include "backends/cpu/cpu_device.h"
#include "backends/interface/scratch_layout.h"

namespace cairn::cpu {

/// The chosen partitions of every token, best first; softmax weights, not renormalised.
struct SseRoutes {
  std::int32_t* partition;  ///< [T, top_k]
  float* weight;            ///< [T, top_k]
};

/// A token of a chunk as one partition sees it.
struct SseMember {
  std::int32_t token;  ///< row of the batch
  std::int32_t place;  ///< within the chunk
  float write, read;   ///< weights on both sides; 1 where the gate is switched off
  bool is_active;      ///< false (masked path): no decay, no write, no read
};

/// Members of every partition, in time order: partition p owns [first[p], first[p + 1]).
struct SseMembership {
  SseMember* members;
  std::int32_t* first;  ///< [P + 1]
};

SseRoutes carve_sse_routes(const SseArgs& args, ScratchLayout& layout);
SseMembership carve_sse_membership(const SseArgs& args, ScratchLayout& layout);

/// Routes of tokens [begin, end) of the batch.
void route_sse_tokens(const SseArgs& args, const SseRoutes& routes, std::int64_t begin, std::int64_t end);

/// Members of the chunk [first_token, first_token + n): those that chose a partition, or (masked) everyone in each.
void list_sse_members(const SseArgs& args, const SseRoutes& routes, std::int32_t first_token, int n,
                      const SseMembership& out);

}  // namespace cairn::cpu
