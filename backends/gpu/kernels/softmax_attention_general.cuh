// softmax_attention, any sizes and types: a block owns one query of one head and walks over its keys, 128 at a time,
// with a running maximum and sum. Keys before the call come from the cache, the call's own from its rows.
//   Launch    grid (T, HQ), 128 threads; K + V floats of shared memory
//   Traffic   every key and value once per query and head: the simple form, not the fast one
//   Numerics  f32; blocks of keys start at absolute multiples of 128: bits do not depend on how a prompt is cut
#pragma once

#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {

inline constexpr int kKeysAtOnce = 128;

/// Where the key or value at `position` of sequence b lies.
struct CachedRow {
  const void* data;
  DType type;
  std::int64_t first;
};

__device__ inline CachedRow row_at(const SoftmaxAttentionArgs& args, int b, std::int64_t position, int head,
                                   bool is_value) {
  const int dim = is_value ? args.value_dim : args.key_dim;
  const std::int64_t fresh = position - args.starts[b];
  if (fresh >= 0) {
    const ConstRows& rows = is_value ? args.v : args.k;
    return {rows.data, args.dtype,
            (args.batch.offsets[b] + fresh) * rows.stride + static_cast<std::int64_t>(head) * dim};
  }
  const KvCache& cache = args.caches[b];
  const std::int64_t row = position % cache.capacity;
  return {is_value ? cache.values : cache.keys, DType::kF32, (row * args.kv_heads + head) * dim};
}

__global__ void softmax_attention_general_kernel(SoftmaxAttentionArgs args) {
  __shared__ float partial[32];
  __shared__ float weights[kKeysAtOnce];
  float* query = reinterpret_cast<float*>(dynamic_shared());  // [K], then the output [V]
  float* sum_V = query + args.key_dim;
  const int t = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y),
            thread = static_cast<int>(threadIdx.x);
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

}  // namespace cairn::gpu
