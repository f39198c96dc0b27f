// sse_decode: one token for each sequence, key_dim 64, 128 or 256, value_dim a multiple of 32, up to 64 partitions.
//   Computes  as sse_reference.cpp (spec 4), with o = S~^T q + (q . k) w r in place of a second pass over the state
//   Launch    grid (V / 32, H, B), 128 threads as delta_rule_decode: 8 threads own 32 columns as float4, 16 such groups
//             share the rows. Every block routes its token; the shared partition's state is loading meanwhile
//   Traffic   2 (k + 1) H K V 4 bytes a sequence
//   Numerics  f32; outputs are summed over the choices in order, then the shared partition
//   Measured  (us, B = 1 / 8 / 64, GLA, 4 partitions, top 1, 16 heads of 128 x 128, bf16, H200) 7.3 / 17.7 / 95.0
#pragma once

#include "backends/gpu/kernels/delta_rule_decode.cuh"
#include "backends/gpu/kernels/sse_route.cuh"

namespace cairn::gpu {

template <class Element>
struct SseTokenView {
  const Element *q, *k, *v;
  const float* log_decay;
  float predict, write, read;  ///< weights of the erase key, the written key (times beta), the output
  bool is_delta, has_row_decay;

  __device__ float decay(int row) const { return expf(log_decay[has_row_decay ? row : 0]); }
};

struct SseDecodePartial {
  float sums[kDecodeParts][2 * kRecurrenceColumns + 1];
};

/// A state's columns of this thread: decay, write; adds what it reads to out.
template <class Element, int kRows>
__device__ inline void decode_state(const SseTokenView<Element>& token, float (&s)[kRows][4], SseDecodePartial& partial,
                                    float (&out)[4]) {
  const int thread = static_cast<int>(threadIdx.x), group = thread / 8, part = thread / 32, quad = thread % 8;
  float key[kRows], qk = 0, recalled[4] = {}, read[4] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = group + kDecodeRowGroups * i;
    key[i] = load_element(token.k[row]);
    const float query = load_element(token.q[row]), decay = token.decay(row);
    qk += query * key[i];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      s[i][c] *= decay;
      recalled[c] += s[i][c] * key[i];
      read[c] += s[i][c] * query;
    }
  }
  qk = sum_lane_groups(qk);
  __syncthreads();
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    recalled[c] = sum_lane_groups(recalled[c]);
    read[c] = sum_lane_groups(read[c]);
    if (thread % 32 < 8) {
      partial.sums[part][4 * quad + c] = recalled[c];
      partial.sums[part][kRecurrenceColumns + 4 * quad + c] = read[c];
    }
  }
  if (thread % 32 == 0) partial.sums[part][2 * kRecurrenceColumns] = qk;
  __syncthreads();
  qk = 0;
#pragma unroll
  for (int w = 0; w < kDecodeParts; ++w) qk += partial.sums[w][2 * kRecurrenceColumns];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float sum = 0, sum_read = 0;
#pragma unroll
    for (int w = 0; w < kDecodeParts; ++w) {
      sum += partial.sums[w][4 * quad + c];
      sum_read += partial.sums[w][kRecurrenceColumns + 4 * quad + c];
    }
    const float value = load_element(token.v[c]), residual = token.is_delta ? value - token.predict * sum : value;
    const float write = token.write * residual;
#pragma unroll
    for (int i = 0; i < kRows; ++i) s[i][c] += key[i] * write;
    out[c] += token.read * (sum_read + qk * write);
  }
}

template <class Element, int kRows>
__global__ void __launch_bounds__(kDecodeThreads) sse_decode_kernel(SseArgs a) {
  __shared__ SseDecodePartial partial;
  const int thread = static_cast<int>(threadIdx.x), h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int group = thread / 8, v = static_cast<int>(blockIdx.x) * kRecurrenceColumns + 4 * (thread % 8);
  const std::int64_t t = b, head = t * a.head_count + h, matrix = static_cast<std::int64_t>(a.key_dim) * a.value_dim;
  const std::int64_t at = static_cast<std::int64_t>(group) * a.value_dim + v,
                     step = static_cast<std::int64_t>(kDecodeRowGroups) * a.value_dim;
  const bool has_row_decay = a.transition != SseTransition::kGdn, is_delta = a.transition != SseTransition::kGla;
  const bool has_shared = a.shared_q.data != nullptr;
  const auto view = [&](const ConstRows& q, const ConstRows& k, const float* log_decay, const float* beta) {
    SseTokenView<Element> token{};
    token.q = row_of<Element>(q, t) + h * a.key_dim;
    token.k = row_of<Element>(k, t) + h * a.key_dim;
    token.v = row_of<Element>(a.v, t) + h * a.value_dim + v;
    token.log_decay = log_decay + (has_row_decay ? head * a.key_dim : head);
    token.predict = token.read = 1.0f;
    token.write = is_delta ? beta[head] : 1.0f;
    token.is_delta = is_delta, token.has_row_decay = has_row_decay;
    return token;
  };
  float shared[kRows][4], s[kRows][4], out[4] = {};
  float* const shared_state = has_shared ? a.shared_states[b] + h * matrix + at : nullptr;
  if (has_shared) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) load_four(shared_state + i * step, shared[i]);
  }
  const float* logits = a.route_logits + t * a.partition_count;
  const RouteSums sums = route_sums(logits, a.partition_count);
  Routed routed{INFINITY, -1};
  for (int k = 0; k < a.top_k; ++k) {
    routed = next_partition(logits, a.partition_count, routed, k);
    float* const state = a.states[b] + (static_cast<std::int64_t>(routed.partition) * a.head_count + h) * matrix + at;
#pragma unroll
    for (int i = 0; i < kRows; ++i) load_four(state + i * step, s[i]);
    const float e = route_weight(sums, routed);
    SseTokenView<Element> token = view(a.q, a.k, a.log_decay, a.beta);
    if (a.gate_write) token.write *= e;
    if (a.gate_write && a.transition == SseTransition::kGdn) token.predict = e;
    if (a.gate_read) token.read = e;
    decode_state<Element, kRows>(token, s, partial, out);
#pragma unroll
    for (int i = 0; i < kRows; ++i) store_four(state + i * step, s[i]);
  }
  if (has_shared) {
    decode_state<Element, kRows>(view(a.shared_q, a.shared_k, a.shared_log_decay ? a.shared_log_decay : a.log_decay,
                                      a.shared_beta ? a.shared_beta : a.beta),
                                 shared, partial, out);
#pragma unroll
    for (int i = 0; i < kRows; ++i) store_four(shared_state + i * step, shared[i]);
  }
  if (group == 0) {
#pragma unroll
    for (int c = 0; c < 4; ++c) store_element(row_of<Element>(a.out, t) + h * a.value_dim + v + c, out[c]);
  }
}

}  // namespace cairn::gpu
