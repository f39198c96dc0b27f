// moe: the experts of a token and their weights. 32 lanes for each token; lane l has the experts l, l + 32, ...
//   Computes  as moe_reference.cpp. Ties go to the lower index; a NaN counts as minus infinity. A softmax router
//             chooses by its logits, which tie more rarely than their exponentials, and has no groups, no correction
//   Launch    ceil(T / 4) blocks of 128 threads
#pragma once

#include "backends/gpu/kernels/moe_plan.cuh"

namespace cairn::gpu {

inline constexpr int kRoutedTokens = 4, kRouteLanes = 32;

/// What one token's lanes keep in shared memory.
struct RoutedToken {
  float weight[kMaxExperts], score[kMaxExperts], group[kMaxExperts];
};

template <class Combine>
__device__ inline float combine_lanes(float value, const Combine& combine) {
#pragma unroll
  for (int distance = kRouteLanes / 2; distance > 0; distance /= 2)
    value = combine(value, shuffle_xor(value, distance));
  return value;
}

/// Scores outside of the best groups (by the sum of their two best) become minus infinity; `out` gets the bits of this
/// lane.
__device__ inline std::uint32_t leave_groups_out(const MoeArgs& args, RoutedToken& token, int lane) {
  const int size = args.expert_count / args.group_count;
  for (int g = lane; g < args.group_count; g += kRouteLanes) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      const float score = token.score[e];
      if (score > first) {
        second = first;
        first = score;
      } else if (score > second) {
        second = score;
      }
    }
    token.group[g] = size > 1 ? first + second : first;
  }
  warp_barrier();
  std::uint32_t left_out = 0;
  for (int e = lane; e < args.expert_count; e += kRouteLanes) {
    const int mine = e / size;
    int better = 0;
    for (int g = 0; g < args.group_count; ++g) {
      better += token.group[g] > token.group[mine] || (token.group[g] == token.group[mine] && g < mine);
    }
    if (better >= args.top_groups) left_out |= 1u << (e / kRouteLanes);
  }
  return left_out;
}

struct MoeRouteArgs {
  MoePlan plan;
  MatrixListArgs list;  ///< written by one more block, if there is any
};

__global__ void route_experts_kernel(MoeRouteArgs route) {
  __shared__ RoutedToken tokens[kRoutedTokens];
  let_next_kernel_start();
  wait_for_previous_kernel();
  const MoePlan& plan = route.plan;
  if (static_cast<int>(blockIdx.x) * kRoutedTokens >= plan.call.token_count) return list_matrices(route.list);
  const MoeArgs& args = plan.call;
  const int lane = static_cast<int>(threadIdx.x) % kRouteLanes, slot = static_cast<int>(threadIdx.x) / kRouteLanes;
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kRoutedTokens + slot;
  if (t >= args.token_count) return;
  RoutedToken& token = tokens[slot];
  const float* logits = args.router_logits + t * args.expert_count;
  const bool is_softmax = args.router == RouterKind::kSoftmax;
  float largest = -INFINITY, sum = 0;
  for (int e = lane; e < args.expert_count; e += kRouteLanes) largest = fmaxf(largest, logits[e]);
  largest = combine_lanes(largest, [](float a, float b) { return fmaxf(a, b); });
  for (int e = lane; e < args.expert_count; e += kRouteLanes) {
    token.weight[e] = is_softmax ? expf(logits[e] - largest) : sigmoid(logits[e]);
    sum += token.weight[e];
  }
  sum = combine_lanes(sum, [](float a, float b) { return a + b; });
  for (int e = lane; e < args.expert_count; e += kRouteLanes) {
    if (is_softmax) token.weight[e] /= sum;
    const float corrected = token.weight[e] + (args.correction_bias ? args.correction_bias[e] : 0.0f);
    const float score = is_softmax ? logits[e] : corrected;
    token.score[e] = score == score ? score : -INFINITY;
  }
  warp_barrier();
  std::uint32_t taken = !is_softmax && args.group_count > 1 ? leave_groups_out(args, token, lane) : 0;

  float best_score = 0, total = is_softmax ? 0.0f : 1e-20f;
  int best = -1;  // of this lane
  const auto find_best = [&] {
    best = -1;
    for (int e = lane, i = 0; e < args.expert_count; e += kRouteLanes, ++i) {
      if ((taken >> i & 1u) != 0 || (best >= 0 && !(token.score[e] > best_score))) continue;
      best = e;
      best_score = token.score[e];
    }
  };
  find_best();
  std::int32_t* chosen = plan.scratch.chosen + t * args.top_k;
  for (int i = 0; i < args.top_k; ++i) {
    float score = best_score;
    int expert = best;
#pragma unroll
    for (int distance = kRouteLanes / 2; distance > 0; distance /= 2) {
      const float other_score = shuffle_xor(score, distance);
      const int other = shuffle_xor(expert, distance);
      if (other >= 0 && (expert < 0 || other_score > score || (other_score == score && other < expert))) {
        score = other_score;
        expert = other;
      }
    }
    if (lane == i % kRouteLanes) chosen[i] = expert;
    total += token.weight[expert];
    if (expert % kRouteLanes == lane) {
      taken |= 1u << (expert / kRouteLanes);
      find_best();
    }
  }
  for (int i = lane; i < args.top_k; i += kRouteLanes) {
    plan.scratch.factors[t * args.top_k + i] =
        token.weight[chosen[i]] / (args.renormalize ? total : 1.0f) * args.routed_scale;
  }
}

}  // namespace cairn::gpu
