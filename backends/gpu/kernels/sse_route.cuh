// sse_route: the softmax over partitions and its top k (spec 4): largest first, ties to the lower index, not
// renormalised.
//   A thread routes one token: partitions are few. NaN come last, and no partition twice.
#pragma once

#include "backends/gpu/kernels/element.cuh"
#include "backends/interface/op_args.h"

namespace cairn::gpu {

/// The largest logit and the sum of exponentials below it.
struct RouteSums {
  float largest, sum;
};
__device__ inline RouteSums route_sums(const float* logits, int count) {
  RouteSums sums{-INFINITY, 0};
  for (int i = 0; i < count; ++i) sums.largest = fmaxf(sums.largest, logits[i]);
  for (int i = 0; i < count; ++i) sums.sum += expf(logits[i] - sums.largest);
  return sums;
}

/// The k-th chosen partition: the largest that comes after the one before it. Start with {INFINITY, -1}.
struct Routed {
  float logit;
  int partition;
};
__device__ inline Routed next_partition(const float* logits, int count, const Routed& before, int k) {
  int best = -1;
  for (int i = 0; i < count; ++i) {
    const bool is_left = logits[i] < before.logit || (logits[i] == before.logit && i > before.partition);
    if (is_left && (best < 0 || logits[i] > logits[best])) best = i;
  }
  if (best < 0) {  // only NaN are left: they come in the order of their indices
    int rank = k;
    for (int i = 0; i < count; ++i) rank -= logits[i] == logits[i];
    for (int i = 0; i < count; ++i) {
      if (logits[i] == logits[i] || rank-- > 0) continue;
      best = i;
      break;
    }
  }
  return {logits[best], best};
}
__device__ inline float route_weight(const RouteSums& sums, const Routed& routed) {
  return expf(routed.logit - sums.largest) / sums.sum;
}

struct SseRouteArgs {
  const float* logits;  ///< [T, P]
  std::int64_t token_count;
  std::int32_t partition_count, top_k;
  std::int32_t* chosen;  ///< [T, k]
  float* weight;         ///< [T, k]
};

__global__ void sse_route_kernel(SseRouteArgs a) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (t >= a.token_count) return;
  const float* logits = a.logits + t * a.partition_count;
  const RouteSums sums = route_sums(logits, a.partition_count);
  Routed routed{INFINITY, -1};
  for (int k = 0; k < a.top_k; ++k) {
    routed = next_partition(logits, a.partition_count, routed, k);
    a.chosen[t * a.top_k + k] = routed.partition;
    a.weight[t * a.top_k + k] = route_weight(sums, routed);
  }
}

}  // namespace cairn::gpu
