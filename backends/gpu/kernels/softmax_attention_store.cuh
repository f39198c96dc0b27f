// The new keys and values of a prefill into the caches: the last `capacity` tokens of each sequence.
//   Launch    grid T, 256 threads: a block stores one token
//   Traffic   keys and values read once, written once as f32
#pragma once

#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {

struct StoreArgs {
  SoftmaxAttentionArgs call;
  bool in_eights;  ///< of rows and widths: 16-byte loads reach every element
};

__device__ inline void store_row(const StoreArgs& args, const ConstRows& rows, int t, int width, float* to) {
  const int thread = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  if (args.in_eights) {
    for (int i = thread * 8; i < width; i += step * 8) {
      float x[8];
      load_eight(rows.data, args.call.dtype, t * rows.stride + i, x);
      store_eight(to, DType::kF32, i, x);
    }
    return;
  }
  for (int i = thread; i < width; i += step) to[i] = load(rows, args.call.dtype, t, i);
}

__global__ void store_keys_values_kernel(StoreArgs store) {
  const SoftmaxAttentionArgs& args = store.call;
  const int t = static_cast<int>(blockIdx.x), b = sequence_of(args.batch.offsets, args.batch.sequence_count, t);
  const KvCache& cache = args.caches[b];
  if (args.batch.offsets[b + 1] - t > cache.capacity) return;
  const std::int64_t row = (args.starts[b] + t - args.batch.offsets[b]) % cache.capacity;
  const int key_width = args.kv_heads * args.key_dim, value_width = args.kv_heads * args.value_dim;
  store_row(store, args.k, t, key_width, cache.keys + row * key_width);
  store_row(store, args.v, t, value_width, cache.values + row * value_width);
}

}  // namespace cairn::gpu
