// Stage 2 of SparseGDN, first half: what the heads' scores and gates say, and the order of the chunks (spec 3.2).
// Doubles; sums by a fixed tree.
//   Launch  measure_heads  grid (HV, B)                       the norm of a head's scores, r, L, eta
//           sort_chunks    grid (n, B), up to 1,024 threads   the order, up to 4,096 chunks
//           order_chunks   grid (ceil(C / 256), n, B)         the order of more chunks
#pragma once

#include "backends/gpu/kernels/sparse_gdn_selection.cuh"

namespace cairn::gpu {

inline constexpr int kSelectThreads = 256, kSortedChunks = 4096;

/// Sum over a block of kSelectThreads; every thread gets it. `partial`: kSelectThreads doubles of shared memory.
__device__ inline double block_sum_in_order(double value, double* partial) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  partial[thread] = value;
  for (int half = kSelectThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) partial[thread] += partial[thread + half];
  }
  __syncthreads();
  return partial[0];
}

/// Samples of eta, [nu_v silu(Z_{t,h,v})]^2 each: every kSelectThreads-th from this thread's on, eight loads at a time.
__device__ inline double sum_samples(const SparseSelectArgs& a, int b, int head) {
  constexpr int kTogether = 8;
  const int count = 4 * a.chunk_count(b), tokens = a.token_begin[b + 1] - a.token_begin[b];
  double sum = 0;
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kTogether * kSelectThreads) {
    float z[kTogether], weight[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int sample = first + i * kSelectThreads, t = kChunk * (sample / 4) + 8 + 16 * (sample % 4);
      const int v = static_cast<int>(73LL * sample % a.value_dim);
      const bool is_inside = sample < count && t < tokens;
      z[i] = is_inside ? load(a.gate, a.dtype, a.token_begin[b] + t, static_cast<std::int64_t>(head) * a.value_dim + v)
                       : 0.0f;
      weight[i] = is_inside ? a.norm_weight[v] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const double seen = weight[i] * (z[i] / (1 + expf(-z[i])));
      sum += seen * seen;
    }
  }
  return sum;
}

__global__ void measure_heads_kernel(SparseSelectArgs a) {
  __shared__ double partial[kSelectThreads];
  const int head = static_cast<int>(blockIdx.x), b = static_cast<int>(blockIdx.y),
            thread = static_cast<int>(threadIdx.x);
  const int chunks = a.chunk_count(b), heads = a.head_count, last = chunks < 16 ? chunks : 16;
  if (chunks == 0) return;
  const SparseSelection s = selection_of(a, b);
  double square = 0, retained = 0, eta = 0;
  for (int c = thread; c < chunks; c += kSelectThreads) {
    const double score = s.scores[static_cast<std::int64_t>(c) * heads + head];
    square += score * score;
  }
  if (thread < last)
    retained = exp2(static_cast<double>(s.gamma[static_cast<std::int64_t>(chunks - last + thread) * heads + head]));
  if (a.gate.data) eta = sum_samples(a, b, head);
  square = block_sum_in_order(square, partial);
  const double r = block_sum_in_order(retained, partial) / last;
  eta = block_sum_in_order(eta, partial) / (4 * chunks);
  if (thread != 0) return;
  const int powers = chunks - 2;  // L = r + ... + r^powers, in closed form
  s.norm[head] = sqrt(square);
  s.retention[head] = r;
  s.lifetime[head] = powers <= 0 || r == 0 ? 0.0
                     : r == 1              ? static_cast<double>(powers)
                                           : r * -expm1(powers * log(r)) / (1 - r);
  s.eta[head] = eta;
}

/// q_c = mean over the group's heads of s / |s|. What is not finite has no place in an order: 0.
__device__ inline double rank_of(const SparseSelectArgs& a, const SparseSelection& s, int group, int c) {
  const int per = a.per_group();
  double value = 0;
  for (int h = group * per; h < (group + 1) * per; ++h) {
    if (s.norm[h] > 0) value += s.scores[static_cast<std::int64_t>(c) * a.head_count + h] / s.norm[h];
  }
  value /= per;
  return value - value == 0 ? value : 0.0;
}

/// A rank's place in the order is that of its bits: ranks are never negative. -1: a chunk that is not ranked.
__device__ inline std::int64_t rank_key(double rank, int chunks, int c) {
  if (c <= 0 || c >= chunks - 1) return -1;
  std::int64_t bits = 0;
  memcpy(&bits, &rank, sizeof bits);
  return bits;
}

/// Many chunks: a thread finds one chunk's place by counting.
__global__ void order_chunks_kernel(SparseSelectArgs a) {
  __shared__ std::int64_t keys[kSelectThreads];
  const int group = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z), chunks = a.chunk_count(b);
  const int thread = static_cast<int>(threadIdx.x), own = static_cast<int>(blockIdx.x),
            c = own * kSelectThreads + thread;
  if (own * kSelectThreads >= chunks) return;
  const SparseSelection s = selection_of(a, b);
  const auto key_of = [&](int chunk) {
    return rank_key(chunk < chunks ? rank_of(a, s, group, chunk) : 0, chunks, chunk);
  };
  const std::int64_t mine = key_of(c);
  int before = 0;
  for (int tile = 0; tile * kSelectThreads < chunks; ++tile) {
    __syncthreads();
    keys[thread] = key_of(tile * kSelectThreads + thread);
    __syncthreads();
    const int equal_before = tile < own ? kSelectThreads : tile == own ? thread : 0;
    for (int i = 0; i < equal_before; ++i) before += keys[i] >= mine ? 1 : 0;
    for (int i = equal_before; i < kSelectThreads; ++i) before += keys[i] > mine ? 1 : 0;
  }
  if (c >= chunks) return;
  const int place = c == 0 ? 0 : c == chunks - 1 ? 1 : 2 + before;
  s.rank[static_cast<std::int64_t>(group) * chunks + c] = rank_of(a, s, group, c);
  s.order[static_cast<std::int64_t>(group) * chunks + place] = c;
}

/// Up to kSortedChunks: a block sorts one group's chunks in shared memory, a bitonic network over the next power of
/// two.
__global__ void sort_chunks_kernel(SparseSelectArgs a) {
  const int group = static_cast<int>(blockIdx.x), b = static_cast<int>(blockIdx.y), chunks = a.chunk_count(b);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (chunks == 0) return;
  const SparseSelection s = selection_of(a, b);
  double* rank = s.rank + static_cast<std::int64_t>(group) * chunks;
  std::int32_t* order = s.order + static_cast<std::int64_t>(group) * chunks;
  int size = 1;
  while (size < chunks) size *= 2;
  auto* keys = reinterpret_cast<std::int64_t*>(dynamic_shared());
  auto* index = reinterpret_cast<std::int32_t*>(keys + size);
  for (int c = thread; c < size; c += threads) {
    const double mine = c < chunks ? rank_of(a, s, group, c) : 0;
    keys[c] = rank_key(mine, chunks, c);
    index[c] = c;
    if (c < chunks) rank[c] = mine;
  }
  for (int run = 2; run <= size; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int i = thread; i < size / 2; i += threads) {
        const int within = i & (distance - 1), first = 2 * (i - within) + within, second = first + distance;
        const std::int64_t x = keys[first], y = keys[second];
        const std::int32_t p = index[first], q = index[second];
        const bool is_first_ahead = x > y || (x == y && p < q), is_descending = (first & run) == 0;
        if (is_first_ahead == is_descending) continue;
        keys[first] = y, keys[second] = x;
        index[first] = q, index[second] = p;
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < chunks - 2; i += threads) order[i + 2] = index[i];
  if (thread == 0) order[0] = 0;
  if (thread == 0 && chunks > 1) order[1] = chunks - 1;
}

}  // namespace cairn::gpu
