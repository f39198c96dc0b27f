// Stage 2 of SparseGDN, first half: what the heads' scores and gates say, and the order of the chunks (spec 3.2).
// Doubles; sums by a fixed tree.
//   Launch  measure_heads  grid (HV, B)                       the norm of a head's scores, r, L, eta
//           order_chunks   grid (ceil(C / 256), n, B)         a thread finds one chunk's place: C compares
#pragma once

#include "backends/gpu/kernels/sparse_gdn_selection.cuh"

namespace cairn::gpu {

inline constexpr int kSelectThreads = 256;

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

/// One sample of eta, [nu_v silu(Z_{t,h,v})]^2, or 0 outside the sequence.
__device__ inline double gate_sample(const SparseSelectArgs& a, int b, int head, int sample) {
  const int t = kChunk * (sample / 4) + 8 + 16 * (sample % 4), v = static_cast<int>(73LL * sample % a.value_dim);
  if (t >= a.token_begin[b + 1] - a.token_begin[b]) return 0;
  const double z = load(a.gate, a.dtype, a.token_begin[b] + t, static_cast<std::int64_t>(head) * a.value_dim + v);
  const double seen = a.norm_weight[v] * z / (1 + exp(-z));
  return seen * seen;
}

__global__ void measure_heads_kernel(SparseSelectArgs a) {
  __shared__ double partial[kSelectThreads];
  const int head = static_cast<int>(blockIdx.x), b = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int chunks = a.chunk_count(b), heads = a.head_count, last = chunks < 16 ? chunks : 16;
  if (chunks == 0) return;
  const SparseSelection s = selection_of(a, b);
  double square = 0, retained = 0, eta = 0;
  for (int c = thread; c < chunks; c += kSelectThreads) {
    const double score = s.scores[static_cast<std::int64_t>(c) * heads + head];
    square += score * score;
  }
  if (thread < last) retained = exp2(static_cast<double>(s.gamma[static_cast<std::int64_t>(chunks - last + thread) * heads + head]));
  for (int sample = thread; a.gate.data && sample < 4 * chunks; sample += kSelectThreads) eta += gate_sample(a, b, head, sample);
  square = block_sum_in_order(square, partial);
  const double r = block_sum_in_order(retained, partial) / last;
  eta = block_sum_in_order(eta, partial) / (4 * chunks);
  if (thread != 0) return;
  const int powers = chunks - 2;  // L = r + ... + r^powers, in closed form
  s.norm[head] = sqrt(square);
  s.retention[head] = r;
  s.lifetime[head] = powers <= 0 || r == 0 ? 0.0 : r == 1 ? static_cast<double>(powers) : r * -expm1(powers * log(r)) / (1 - r);
  s.eta[head] = eta;
}

/// q_c = mean over the group's heads of s / |s|. What is not finite has no place in an order: 0.
__device__ inline double rank_of(const SparseSelectArgs& a, const SparseSelection& s, int group, int c) {
  const int per = a.per_group();
  double value = 0;
  for (int h = group * per; h < (group + 1) * per; ++h) {
    if (s.norm[h] > 0) value += s.scores[static_cast<std::int64_t>(c) * a.head_count + h] / s.norm[h] / per;
  }
  return value - value == 0 ? value : 0.0;
}

/// Anchors first, then by rank, ties to the lower chunk. Ranks are never negative, so their bits are in their order.
__global__ void order_chunks_kernel(SparseSelectArgs a) {
  __shared__ std::int64_t keys[kSelectThreads];
  const int group = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z), chunks = a.chunk_count(b);
  const int thread = static_cast<int>(threadIdx.x), own = static_cast<int>(blockIdx.x), c = own * kSelectThreads + thread;
  if (own * kSelectThreads >= chunks) return;
  const SparseSelection s = selection_of(a, b);
  const auto key_of = [&](int chunk) -> std::int64_t {  // -1: not among those that are ranked
    if (chunk <= 0 || chunk >= chunks - 1) return -1;
    const double rank = rank_of(a, s, group, chunk);
    std::int64_t bits = 0;
    memcpy(&bits, &rank, sizeof bits);
    return bits;
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

}  // namespace cairn::gpu
