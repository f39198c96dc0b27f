// moe: a block routes one token; then a warp computes one hidden unit of one (token, expert) pair, and one output element.
// Sums run over the inputs in lane order: bits do not depend on which tokens share an expert.
//   Traffic   an expert's weights once per token that chose it: right for decode, slow for long prompts
#include <vector>

#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"
#include "backends/interface/scratch_layout.h"

namespace cairn::gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int32_t kMaxExperts = 1024;
constexpr std::int64_t kMaxWarps = 4 * ((std::int64_t{1} << 31) - 1);  // 4 a block, 2^31 - 1 blocks in x

struct MoeScratch {
  std::int32_t* chosen;     ///< [T, k]
  float* factors;           ///< [T, k]
  float* hidden;            ///< [T, k, hidden_dim]
  LinearWeight* weights;    ///< [3, E]: gate, up, down
  std::size_t size_bytes;
};

MoeScratch carve(const MoeArgs& args, void* scratch) {
  const std::size_t pairs = static_cast<std::size_t>(args.token_count) * static_cast<std::size_t>(args.top_k);
  ScratchLayout layout(scratch);
  MoeScratch pieces{};
  pieces.chosen = layout.take<std::int32_t>(pairs);
  pieces.factors = layout.take<float>(pairs);
  pieces.hidden = layout.take<float>(pairs * static_cast<std::size_t>(args.hidden_dim));
  pieces.weights = layout.take<LinearWeight>(3 * static_cast<std::size_t>(args.expert_count));
  pieces.size_bytes = layout.size_bytes();
  return pieces;
}

struct MoeKernelArgs {
  MoeArgs call;
  MoeScratch scratch;
};

/// Thread 0 chooses: experts are few. Ties go to the lower index.
__device__ inline void choose(const MoeArgs& args, const float* score, bool* is_out, std::int32_t* chosen) {
  if (args.group_count > 1) {  // groups by the sum of their two best; the others are out
    const int size = args.expert_count / args.group_count;
    for (int keep = 0; keep < args.group_count - args.top_groups; ++keep) {
      int worst = -1;
      float worst_score = INFINITY;
      for (int g = args.group_count - 1; g >= 0; --g) {
        if (is_out[g * size]) continue;
        float first = -INFINITY, second = -INFINITY;
        for (int e = g * size; e < (g + 1) * size; ++e) {
          if (score[e] > first) {
            second = first;
            first = score[e];
          } else if (score[e] > second) {
            second = score[e];
          }
        }
        const float sum = size > 1 ? first + second : first;
        if (worst < 0 || sum < worst_score) {  // the first one also when it is NaN
          worst_score = sum;
          worst = g;
        }
      }
      for (int e = worst * size; e < (worst + 1) * size; ++e) is_out[e] = true;
    }
  }
  for (int i = 0; i < args.top_k; ++i) {
    int best = -1;
    for (int e = 0; e < args.expert_count; ++e) {
      if (!is_out[e] && (best < 0 || score[e] > score[best])) best = e;
    }
    is_out[best] = true;
    chosen[i] = best;
  }
}

__global__ void route_experts_kernel(MoeKernelArgs kernel_args) {
  const MoeArgs& args = kernel_args.call;
  __shared__ float weight[kMaxExperts];
  __shared__ float score[kMaxExperts];
  __shared__ bool is_out[kMaxExperts];
  __shared__ float partial[32];
  const std::int64_t t = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  const float* logits = args.router_logits + t * args.expert_count;
  float largest = -INFINITY, sum = 0;
  for (int e = thread; e < args.expert_count; e += step) largest = fmaxf(largest, logits[e]);
  largest = block_max(largest, partial);
  for (int e = thread; e < args.expert_count; e += step) {
    weight[e] = args.router == RouterKind::kSoftmax ? expf(logits[e] - largest) : sigmoid(logits[e]);
    sum += weight[e];
  }
  sum = block_sum(sum, partial);
  for (int e = thread; e < args.expert_count; e += step) {
    if (args.router == RouterKind::kSoftmax) weight[e] /= sum;
    score[e] = weight[e] + (args.correction_bias ? args.correction_bias[e] : 0.0f);
    is_out[e] = false;
  }
  __syncthreads();
  if (thread != 0) return;
  std::int32_t* chosen = kernel_args.scratch.chosen + t * args.top_k;
  choose(args, score, is_out, chosen);
  float total = args.router == RouterKind::kSoftmax ? 0.0f : 1e-20f;
  for (int i = 0; i < args.top_k; ++i) total += weight[chosen[i]];
  for (int i = 0; i < args.top_k; ++i) {
    kernel_args.scratch.factors[t * args.top_k + i] = weight[chosen[i]] / (args.renormalize ? total : 1.0f) * args.routed_scale;
  }
}

__device__ inline std::int64_t warp_index() {
  return (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / warp_size();
}

/// hidden[t, i, f] = silu(gate x) * (up x), one warp each.
__global__ void expert_hidden_kernel(MoeKernelArgs kernel_args) {
  const MoeArgs& args = kernel_args.call;
  const std::int64_t index = warp_index(), pair = index / args.hidden_dim, f = index % args.hidden_dim;
  const std::int64_t t = pair / args.top_k;
  if (t >= args.token_count) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_size();
  const std::int32_t expert = kernel_args.scratch.chosen[pair];
  const LinearWeight& gate = kernel_args.scratch.weights[expert];
  const LinearWeight& up = kernel_args.scratch.weights[args.expert_count + expert];
  float gate_sum = 0, up_sum = 0;
  for (int i = lane; i < args.dim; i += warp_size()) {
    const float x = load(args.in, args.dtype, t, i);
    gate_sum += x * weight_value(gate, f, i);
    up_sum += x * weight_value(up, f, i);
  }
  gate_sum = warp_sum(gate_sum);
  up_sum = warp_sum(up_sum);
  if (lane == 0) kernel_args.scratch.hidden[index] = silu(gate_sum) * up_sum;
}

/// out[t, d] = sum over the chosen experts, in the order chosen, one warp each.
__global__ void expert_output_kernel(MoeKernelArgs kernel_args) {
  const MoeArgs& args = kernel_args.call;
  const std::int64_t index = warp_index(), t = index / args.dim, d = index % args.dim;
  if (t >= args.token_count) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_size();
  float out = 0;
  for (int k = 0; k < args.top_k; ++k) {
    const std::int64_t pair = t * args.top_k + k;
    const LinearWeight& down = kernel_args.scratch.weights[2 * args.expert_count + kernel_args.scratch.chosen[pair]];
    float sum = 0;
    for (int f = lane; f < args.hidden_dim; f += warp_size()) {
      sum += kernel_args.scratch.hidden[pair * args.hidden_dim + f] * weight_value(down, d, f);
    }
    out += kernel_args.scratch.factors[pair] * warp_sum(sum);
  }
  if (lane == 0) store(args.out, args.dtype, t, d, out);
}

const char* unsupported_reason(const MoeArgs& args) {
  return first_reason({require_activations("moe", args.dtype), require_range("moe", "expert_count", args.expert_count, 1, kMaxExperts),
                       require_range("moe", "top_k", args.top_k, 1, args.expert_count),
                       require_range("moe", "hidden values of all tokens", std::int64_t{args.token_count} * args.top_k * args.hidden_dim, 0, kMaxWarps),
                       require_range("moe", "output values of all tokens", std::int64_t{args.token_count} * args.dim, 0, kMaxWarps)});
}

std::size_t scratch_bytes(const MoeArgs& args) { return carve(args, nullptr).size_bytes; }

void run(BackendQueue* queue, const MoeArgs& args, void* scratch) {
  if (args.token_count == 0) return;
  const Launcher launcher(queue, "moe");
  const MoeKernelArgs kernel_args{args, carve(args, scratch)};
  const auto experts = static_cast<std::size_t>(args.expert_count);
  launcher.copy(kernel_args.scratch.weights, args.gate, experts * sizeof(LinearWeight));
  launcher.copy(kernel_args.scratch.weights + experts, args.up, experts * sizeof(LinearWeight));
  launcher.copy(kernel_args.scratch.weights + 2 * experts, args.down, experts * sizeof(LinearWeight));
  launcher(route_experts_kernel, dim3(static_cast<unsigned>(args.token_count)), dim3(kThreads), 0, kernel_args);
  // Warps of 32 at least: a grid for 32 covers 64 too, with blocks that have nothing to do.
  const std::int64_t per_block = kThreads / 64, pairs = std::int64_t{args.token_count} * args.top_k;
  const auto blocks = [&](std::int64_t warps) { return dim3(static_cast<unsigned>((warps + per_block - 1) / per_block)); };
  launcher(expert_hidden_kernel, blocks(pairs * args.hidden_dim), dim3(kThreads), 0, kernel_args);
  launcher(expert_output_kernel, blocks(std::int64_t{args.token_count} * args.dim), dim3(kThreads), 0, kernel_args);
}

}  // namespace

void add_moe(OpTable& ops) { ops.moe = {unsupported_reason, scratch_bytes, run}; }

}  // namespace cairn::gpu
