// moe, any element types: a warp computes one hidden unit of one (token, expert) pair, and one output element.
// Sums run over the inputs in lane order: bits do not depend on which tokens share an expert.
//   Traffic   an expert's weights once per token that chose it
#pragma once

#include "backends/gpu/kernels/moe_plan.cuh"

namespace cairn::gpu {

struct MoeGeneralArgs {
  MoeArgs call;
  const std::int32_t* chosen;   ///< [T, k]
  const float* factors;         ///< [T, k]
  float* hidden;                ///< [T, k, F]
  const LinearWeight* weights;  ///< [3, E]: gate, up, down
};

__device__ inline std::int64_t warp_index() {
  return (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / warp_size();
}

/// hidden[t, i, f] = silu(gate x) * (up x), one warp each.
__global__ void expert_hidden_kernel(MoeGeneralArgs general) {
  const MoeArgs& args = general.call;
  const std::int64_t index = warp_index(), pair = index / args.hidden_dim, f = index % args.hidden_dim;
  const std::int64_t t = pair / args.top_k;
  if (t >= args.token_count) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_size();
  const std::int32_t expert = general.chosen[pair];
  const LinearWeight& gate = general.weights[expert];
  const LinearWeight& up = general.weights[args.expert_count + expert];
  float gate_sum = 0, up_sum = 0;
  for (int i = lane; i < args.dim; i += warp_size()) {
    const float x = load(args.in, args.dtype, t, i);
    gate_sum += x * weight_value(gate, f, i);
    up_sum += x * weight_value(up, f, i);
  }
  gate_sum = warp_sum(gate_sum);
  up_sum = warp_sum(up_sum);
  if (lane == 0) general.hidden[index] = silu(gate_sum) * up_sum;
}

/// out[t, d] = sum over the chosen experts, in the order chosen, one warp each.
__global__ void expert_output_kernel(MoeGeneralArgs general) {
  const MoeArgs& args = general.call;
  const std::int64_t index = warp_index(), t = index / args.dim, d = index % args.dim;
  if (t >= args.token_count) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_size();
  float out = 0;
  for (int k = 0; k < args.top_k; ++k) {
    const std::int64_t pair = t * args.top_k + k;
    const LinearWeight& down = general.weights[2 * args.expert_count + general.chosen[pair]];
    float sum = 0;
    for (int f = lane; f < args.hidden_dim; f += warp_size()) {
      sum += general.hidden[pair * args.hidden_dim + f] * weight_value(down, d, f);
    }
    out += general.factors[pair] * warp_sum(sum);
  }
  if (lane == 0) store(args.out, args.dtype, t, d, out);
}

}  // namespace cairn::gpu
