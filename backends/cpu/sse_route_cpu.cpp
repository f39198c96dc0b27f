#include "backends/cpu/sse_route_cpu.h"

#include <algorithm>
#include <cmath>

#include "backends/cpu/recurrent_kernels.h"
#include "backends/reference/top_k.h"

namespace cairn::cpu {
namespace {

bool is_masked(const SseArgs& a) { return a.path == SsePath::kMasked; }

SseMember member(const SseArgs& a, std::int32_t token, int place, float weight) {
  return {token, place, a.gate_write ? weight : 1.0f, a.gate_read ? weight : 1.0f, true};
}

void list_chosen(const SseArgs& a, const SseRoutes& routes, std::int32_t first_token, int n, const SseMembership& out) {
  std::fill_n(out.first, a.partition_count + 1, 0);
  const std::int64_t begin = static_cast<std::int64_t>(first_token) * a.top_k,
                     count = static_cast<std::int64_t>(n) * a.top_k;
  for (std::int64_t i = begin; i < begin + count; ++i) ++out.first[routes.partition[i] + 1];
  for (std::int32_t p = 0; p < a.partition_count; ++p) out.first[p + 1] += out.first[p];
  for (std::int64_t i = 0; i < count; ++i) {  // first[p] walks to the end of p ...
    const auto place = static_cast<int>(i / a.top_k);
    out.members[out.first[routes.partition[begin + i]]++] =
        member(a, first_token + place, place, routes.weight[begin + i]);
  }
  for (std::int32_t p = a.partition_count; p > 0; --p)
    out.first[p] = out.first[p - 1];  // ... which is where p + 1 begins
  out.first[0] = 0;
}

void list_everyone(const SseArgs& a, const SseRoutes& routes, std::int32_t first_token, int n,
                   const SseMembership& out) {
  for (std::int32_t p = 0; p < a.partition_count; ++p) {
    out.first[p] = p * n;
    for (int place = 0; place < n; ++place) out.members[p * n + place] = {first_token + place, place, 0, 0, false};
  }
  out.first[a.partition_count] = a.partition_count * n;
  for (int place = 0; place < n; ++place) {
    for (std::int32_t j = 0; j < a.top_k; ++j) {
      const std::int64_t route = static_cast<std::int64_t>(first_token + place) * a.top_k + j;
      out.members[routes.partition[route] * n + place] = member(a, first_token + place, place, routes.weight[route]);
    }
  }
}

}  // namespace

SseRoutes carve_sse_routes(const SseArgs& a, ScratchLayout& layout) {
  const std::size_t count = static_cast<std::size_t>(a.batch.token_count) * a.top_k;
  return {layout.take<std::int32_t>(count), layout.take<float>(count)};
}

SseMembership carve_sse_membership(const SseArgs& a, ScratchLayout& layout) {
  const std::size_t per_token = is_masked(a) ? a.partition_count : a.top_k;
  return {layout.take<SseMember>(kChunk * per_token), layout.take<std::int32_t>(a.partition_count + 1)};
}

void route_sse_tokens(const SseArgs& a, const SseRoutes& routes, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const float* logits_P = a.route_logits + t * a.partition_count;
    std::int32_t* chosen = routes.partition + t * a.top_k;
    reference::top_k(logits_P, a.partition_count, a.top_k, chosen);
    double total = 0;
    for (std::int32_t p = 0; p < a.partition_count; ++p)
      total += std::exp(static_cast<double>(logits_P[p]) - logits_P[chosen[0]]);
    for (std::int32_t j = 0; j < a.top_k; ++j) {
      routes.weight[t * a.top_k + j] =
          static_cast<float>(std::exp(static_cast<double>(logits_P[chosen[j]]) - logits_P[chosen[0]]) / total);
    }
  }
}

void list_sse_members(const SseArgs& a, const SseRoutes& routes, std::int32_t first_token, int n,
                      const SseMembership& out) {
  is_masked(a) ? list_everyone(a, routes, first_token, n, out) : list_chosen(a, routes, first_token, n, out);
}

}  // namespace cairn::cpu
