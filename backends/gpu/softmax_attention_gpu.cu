// softmax_attention, any head sizes: a block owns one query of one head and walks over its keys, 128 at a time, with a
// running maximum and sum. Keys before the call come from the cache, the call's own from its rows. A second kernel then
// stores the new keys and values. Architectures replace the first kernel for the head sizes they know.
//   Traffic   every key and value once per query and head: the simple form, not the fast one
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {
namespace {

constexpr int kKeysAtOnce = 128;

/// Where the key or value at `position` of sequence b lies.
struct CachedRow {
  const void* data;
  DType type;
  std::int64_t first;
};

__device__ inline CachedRow row_at(const SoftmaxAttentionArgs& args, int b, std::int64_t position, int head, bool is_value) {
  const int dim = is_value ? args.value_dim : args.key_dim;
  const std::int64_t fresh = position - args.starts[b];
  if (fresh >= 0) {
    const ConstRows& rows = is_value ? args.v : args.k;
    return {rows.data, args.dtype, (args.batch.offsets[b] + fresh) * rows.stride + static_cast<std::int64_t>(head) * dim};
  }
  const KvCache& cache = args.caches[b];
  const std::int64_t row = position % cache.capacity;
  return {is_value ? cache.values : cache.keys, DType::kF32, (row * args.kv_heads + head) * dim};
}

__global__ void softmax_attention_kernel(SoftmaxAttentionArgs args) {
  __shared__ float partial[32];
  __shared__ float weights[kKeysAtOnce];
  float* query = reinterpret_cast<float*>(dynamic_shared());  // [K], then the output [V]
  float* sum_V = query + args.key_dim;
  const int t = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int kv_head = head / (args.query_heads / args.kv_heads);
  const int b = sequence_of(args.batch.offsets, args.batch.sequence_count, t);
  const std::int64_t position = args.starts[b] + t - args.batch.offsets[b];
  const std::int64_t oldest = args.window > 0 && position >= args.window ? position - args.window + 1 : 0;
  for (int i = thread; i < args.key_dim; i += kKeysAtOnce) {
    query[i] = load(args.q, args.dtype, t, static_cast<std::int64_t>(head) * args.key_dim + i) * args.scale;
  }
  for (int i = thread; i < args.value_dim; i += kKeysAtOnce) sum_V[i] = 0;
  __syncthreads();
  float largest = -INFINITY, total = 0;
  // Blocks of keys start at absolute multiples of 128: bits do not depend on how a prompt is cut.
  for (std::int64_t first = oldest / kKeysAtOnce * kKeysAtOnce; first <= position; first += kKeysAtOnce) {
    const std::int64_t key = first + thread;
    float score = -INFINITY;
    if (key >= oldest && key <= position) {
      const CachedRow row = row_at(args, b, key, kv_head, false);
      score = 0;
      for (int i = 0; i < args.key_dim; ++i) score += query[i] * load(row.data, row.type, row.first + i);
    }
    const float next = fmaxf(largest, block_max(score, partial));
    const float shrink = expf(largest - next);
    weights[thread] = expf(score - next);
    total = total * shrink + block_sum(weights[thread], partial);
    largest = next;
    __syncthreads();
    for (int i = thread; i < args.value_dim; i += kKeysAtOnce) {
      float sum = sum_V[i] * shrink;
      for (int j = 0; j < kKeysAtOnce; ++j) {
        const std::int64_t at = first + j;
        if (at < oldest || at > position) continue;
        const CachedRow row = row_at(args, b, at, kv_head, true);
        sum += weights[j] * load(row.data, row.type, row.first + i);
      }
      sum_V[i] = sum;
    }
    __syncthreads();
  }
  for (int i = thread; i < args.value_dim; i += kKeysAtOnce) {
    store(args.out, args.dtype, t, static_cast<std::int64_t>(head) * args.value_dim + i, sum_V[i] / total);
  }
}

/// A block stores one token, if it is among the last `capacity` of its sequence.
__global__ void store_keys_values_kernel(SoftmaxAttentionArgs args) {
  const int t = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  const int b = sequence_of(args.batch.offsets, args.batch.sequence_count, t);
  const KvCache& cache = args.caches[b];
  if (args.batch.offsets[b + 1] - t > cache.capacity) return;
  const std::int64_t row = (args.starts[b] + t - args.batch.offsets[b]) % cache.capacity;
  const int key_width = args.kv_heads * args.key_dim, value_width = args.kv_heads * args.value_dim;
  for (int i = thread; i < key_width; i += step) cache.keys[row * key_width + i] = load(args.k, args.dtype, t, i);
  for (int i = thread; i < value_width; i += step) cache.values[row * value_width + i] = load(args.v, args.dtype, t, i);
}

const char* unsupported_reason(const SoftmaxAttentionArgs& args) {
  const char* name = "softmax_attention";
  return first_reason({require_activations(name, args.dtype), require_heads(name, args.kv_heads, args.query_heads),
                       require_range(name, "key_dim", args.key_dim, 1, 4096), require_range(name, "value_dim", args.value_dim, 1, 4096),
                       require_range(name, "query_heads", args.query_heads, 1, 65535)});
}

void run(BackendQueue* queue, const SoftmaxAttentionArgs& args, void*) {
  const Launcher launcher(queue, "softmax_attention");
  const std::size_t shared_bytes = static_cast<std::size_t>(args.key_dim + args.value_dim) * sizeof(float);
  launcher(softmax_attention_kernel, dim3(static_cast<unsigned>(args.batch.token_count), static_cast<unsigned>(args.query_heads)),
           dim3(kKeysAtOnce), shared_bytes, args);
  launch_rows(launcher, store_keys_values_kernel, args.batch.token_count, std::int64_t{args.kv_heads} * args.value_dim, args);
}

}  // namespace

void add_softmax_attention(OpTable& ops) { ops.softmax_attention = {unsupported_reason, no_scratch<SoftmaxAttentionArgs>, run}; }

}  // namespace cairn::gpu
