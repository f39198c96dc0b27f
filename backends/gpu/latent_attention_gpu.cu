// latent_attention: the absorbed form. A block owns one query of one head: the query is mapped to the latent space, scores
// are dot products with latents, and the weighted latent is mapped to values at the end. No key or value is ever formed.
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {
namespace {

constexpr int kKeysAtOnce = 128;

struct LatentKernelArgs {
  LatentAttentionArgs call;
  LinearWeight kv_b;  ///< members are device pointers
};

/// Element i of [latent | shared key] at `position` of sequence b.
__device__ inline float cached(const LatentAttentionArgs& args, int b, std::int64_t position, int i) {
  const std::int64_t fresh = position - args.starts[b];
  if (fresh < 0) {
    const KvCache& cache = args.caches[b];
    return cache.keys[position % cache.capacity * (args.rank + args.shared_dim) + i];
  }
  const std::int64_t t = args.batch.offsets[b] + fresh;
  return i < args.rank ? load(args.latent, args.dtype, t, i) : load(args.shared_key, args.dtype, t, i - args.rank);
}

__global__ void latent_attention_kernel(LatentKernelArgs kernel_args) {
  const LatentAttentionArgs& args = kernel_args.call;
  __shared__ float partial[32];
  __shared__ float weights[kKeysAtOnce];
  const int width = args.rank + args.shared_dim;
  float* query = reinterpret_cast<float*>(dynamic_shared());  // [rank + shared_dim], scaled
  float* sum = query + width;                                 // [rank]
  const int t = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int b = sequence_of(args.batch.offsets, args.batch.sequence_count, t);
  const std::int64_t position = args.starts[b] + t - args.batch.offsets[b];
  const std::int64_t first_q = static_cast<std::int64_t>(head) * (args.nope_dim + args.shared_dim);
  const std::int64_t first_row = static_cast<std::int64_t>(head) * (args.nope_dim + args.value_dim);
  for (int i = thread; i < width; i += kKeysAtOnce) {
    float value = 0;
    if (i < args.rank) {
      for (int n = 0; n < args.nope_dim; ++n) {
        value += load(args.q, args.dtype, t, first_q + n) * weight_value(kernel_args.kv_b, first_row + n, i);
      }
    } else {
      value = load(args.q, args.dtype, t, first_q + args.nope_dim + i - args.rank);
    }
    query[i] = value * args.scale;
    if (i < args.rank) sum[i] = 0;
  }
  __syncthreads();
  float largest = -INFINITY, total = 0;
  for (std::int64_t first = 0; first <= position; first += kKeysAtOnce) {
    const std::int64_t key = first + thread;
    float score = -INFINITY;
    if (key <= position) {
      score = 0;
      for (int i = 0; i < width; ++i) score += query[i] * cached(args, b, key, i);
    }
    const float next = fmaxf(largest, block_max(score, partial));
    const float shrink = expf(largest - next);
    weights[thread] = expf(score - next);
    total = total * shrink + block_sum(weights[thread], partial);
    largest = next;
    __syncthreads();
    for (int i = thread; i < args.rank; i += kKeysAtOnce) {
      float mixed = sum[i] * shrink;
      for (int j = 0; j < kKeysAtOnce && first + j <= position; ++j) mixed += weights[j] * cached(args, b, first + j, i);
      sum[i] = mixed;
    }
    __syncthreads();
  }
  for (int v = thread; v < args.value_dim; v += kKeysAtOnce) {
    float out = 0;
    for (int i = 0; i < args.rank; ++i) out += sum[i] * weight_value(kernel_args.kv_b, first_row + args.nope_dim + v, i);
    store(args.out, args.dtype, t, static_cast<std::int64_t>(head) * args.value_dim + v, out / total);
  }
}

__global__ void store_latents_kernel(LatentAttentionArgs args) {
  const int t = static_cast<int>(blockIdx.x), width = args.rank + args.shared_dim;
  const int b = sequence_of(args.batch.offsets, args.batch.sequence_count, t);
  const KvCache& cache = args.caches[b];
  const std::int64_t position = args.starts[b] + t - args.batch.offsets[b];
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
    cache.keys[position % cache.capacity * width + i] = cached(args, b, position, i);
  }
}

const char* unsupported_reason(const LatentAttentionArgs& args) {
  const char* name = "latent_attention";
  return first_reason({require_activations(name, args.dtype), require_range(name, "rank", args.rank, 1, 4096),
                       require_range(name, "shared_dim", args.shared_dim, 0, 4096),
                       require_range(name, "head_count", args.head_count, 1, 65535)});
}

void run(BackendQueue* queue, const LatentAttentionArgs& args, void*) {
  const Launcher launcher(queue, "latent_attention");
  const std::size_t shared_bytes = static_cast<std::size_t>(2 * args.rank + args.shared_dim) * sizeof(float);
  launcher(latent_attention_kernel, dim3(static_cast<unsigned>(args.batch.token_count), static_cast<unsigned>(args.head_count)),
           dim3(kKeysAtOnce), shared_bytes, LatentKernelArgs{args, *args.kv_b});
  launch_rows(launcher, store_latents_kernel, args.batch.token_count, args.rank + args.shared_dim, args);
}

}  // namespace

void add_latent_attention(OpTable& ops) { ops.latent_attention = {unsupported_reason, no_scratch<LatentAttentionArgs>, run}; }

}  // namespace cairn::gpu
