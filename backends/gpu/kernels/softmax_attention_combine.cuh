// combine_slots: what the slots of a decode (softmax_attention_decode.cuh) hold becomes the output, oldest chunk first.
//   Launch    grid (HQ, B), early: V / 4 threads own a row of weighted values, so several slots are read at once. A
//             thread's first kHeldSlots rows are on their way while the shares are found
//   Traffic   V + 2 floats for each head and slot that holds something
#pragma once

#include "backends/gpu/kernels/softmax_attention_chunks.cuh"

namespace cairn::gpu {

inline constexpr int kHeldSlots = 4, kCombineThreads = 256;

template <int kThreads>
__global__ void __launch_bounds__(kThreads) combine_slots_kernel(DecodeAttentionArgs args) {
  let_next_kernel_start();
  __shared__ float largest_of[kMaxSlots], total_of[kMaxSlots], shares[kMaxSlots];
  float* joined = reinterpret_cast<float*>(dynamic_shared());  // [rows at once, V]
  const SoftmaxAttentionArgs& call = args.call;
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x), value_dim = call.value_dim;
  const int b = args.first_sequence + static_cast<int>(blockIdx.y), slots = args.slot_count;
  const SeenChunks seen = seen_chunks(args, b);
  const int used = seen.last - seen.first + 1 < slots ? static_cast<int>(seen.last - seen.first + 1) : slots;
  const std::int64_t first_row = (static_cast<std::int64_t>(blockIdx.y) * call.query_heads + head) * slots;
  const int first_slot = static_cast<int>(static_cast<std::uint32_t>(seen.first) % static_cast<std::uint32_t>(slots));
  const auto row_of_slot = [&](int i) {
    return first_row + (first_slot + i < slots ? first_slot + i : first_slot + i - slots);
  };
  const int row_threads = value_dim / 4, row = thread / row_threads, column = thread % row_threads * 4;
  const int rows_at_once = kThreads / row_threads;
  wait_for_previous_kernel();  // positions are no kernel's work
  float held[kHeldSlots][4] = {};
#pragma unroll
  for (int n = 0; n < kHeldSlots; ++n) {
    const int i = row + n * rows_at_once;
    if (row < rows_at_once && i < used) load_four(args.sums + row_of_slot(i) * value_dim + column, held[n]);
  }
  if (thread < used) {
    largest_of[thread] = args.totals[row_of_slot(thread) * 2];
    total_of[thread] = args.totals[row_of_slot(thread) * 2 + 1];
  }
  __syncthreads();
  float largest = -INFINITY, total = 0;
  for (int i = 0; i < used; ++i) largest = fmaxf(largest, largest_of[i]);
  if (thread < used) shares[thread] = exp2f(largest_of[thread] - largest);
  __syncthreads();
  for (int i = 0; i < used; ++i) total += shares[i] * total_of[i];
  if (row < rows_at_once) {
    float sums[4] = {};
#pragma unroll
    for (int n = 0; n < kHeldSlots; ++n) {
      const float share = row + n * rows_at_once < used ? shares[row + n * rows_at_once] : 0.0f;
      for (int j = 0; j < 4; ++j) sums[j] = fmaf(share, held[n][j], sums[j]);
    }
#pragma unroll 4
    for (int i = row + kHeldSlots * rows_at_once; i < used; i += rows_at_once) {
      float v[4];
      load_four(args.sums + row_of_slot(i) * value_dim + column, v);
      for (int j = 0; j < 4; ++j) sums[j] = fmaf(shares[i], v[j], sums[j]);
    }
    store_four(joined + row * value_dim + column, sums);
  }
  __syncthreads();
  for (int v = thread; v < value_dim; v += kThreads) {
    float sum = 0;
    for (int r = 0; r < rows_at_once; ++r) sum += joined[r * value_dim + v];
    store(call.out, call.dtype, b, static_cast<std::int64_t>(head) * value_dim + v, sum / total);
  }
}

}  // namespace cairn::gpu
