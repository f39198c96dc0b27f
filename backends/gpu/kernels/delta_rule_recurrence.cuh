// delta_rule_recurrence: the four delta rules token by token; every shape, both phases, residuals and checkpoints.
//   Computes  as *_reference.cpp of delta_net, gdn, kda, gdn2 (spec 1)
//   Shapes    q, k [T, HK, K]; v, out, residual [T, HV, V]; states [B] -> [HV, K, V] f32, in place
//   Launch    grid (ceil(V / 32), HV, B), 128 threads: 8 neighbouring threads own 8 columns of S, four such groups share
//             the rows of a column (row = group + 4 i), so a load touches whole 32-byte sectors
//   Traffic   decode: 2 HV K V 4 bytes a sequence; prefill is bound by the chain of T dependent tokens
//   Numerics  f32; a column's sums run in row order inside a group, then over the groups: the same for any batch
#pragma once

#include "backends/gpu/kernels/element.cuh"
#include "backends/interface/op_args.h"

namespace cairn::gpu {

enum class DeltaRule { kDeltaNet, kGdn, kKda, kGdn2 };

inline constexpr int kRecurrenceThreads = 128, kRecurrenceColumns = 32, kRowGroups = 4;

/// Sum over the four row groups of a column.
__device__ inline float sum_row_groups(float x) {
  x += shuffle_xor(x, 8);
  return x + shuffle_xor(x, 16);
}

/// Rows of a key head, erase gate and log-decay as this thread's group sees them.
template <class Element, DeltaRule kRule>
struct DeltaTokenView {
  const Element *q, *k, *erase;
  const float* log_decay;
  float scalar_decay, beta;

  __device__ DeltaTokenView(const DeltaRuleArgs& a, std::int64_t t, int h) {
    const int key_head = h / (a.value_heads / a.key_heads);
    const std::int64_t head_row = t * a.value_heads + h;
    q = row_of<Element>(a.q, t) + key_head * a.key_dim;
    k = row_of<Element>(a.k, t) + key_head * a.key_dim;
    erase = kRule == DeltaRule::kGdn2 ? row_of<Element>(a.erase, t) + h * a.key_dim : nullptr;
    log_decay = kRule == DeltaRule::kKda || kRule == DeltaRule::kGdn2 ? a.log_decay + head_row * a.key_dim : nullptr;
    scalar_decay = kRule == DeltaRule::kGdn ? expf(a.log_decay[head_row]) : 1.0f;
    beta = kRule == DeltaRule::kGdn2 ? 1.0f : a.beta[head_row];
  }
  __device__ float decay(int row) const { return log_decay ? expf(log_decay[row]) : scalar_decay; }
  __device__ float erase_key(int row) const {
    const float key = load_element(k[row]);
    return erase ? load_element(erase[row]) * key : key;
  }
};

template <class Element, DeltaRule kRule, int kRows>
__global__ void delta_rule_recurrence_kernel(DeltaRuleArgs a) {
  const int thread = static_cast<int>(threadIdx.x), h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int group = thread / 8 % kRowGroups;
  const int v = static_cast<int>(blockIdx.x) * kRecurrenceColumns + thread / 32 * 8 + thread % 8;
  const bool is_column = v < a.value_dim;
  const std::int64_t begin = a.batch.offsets[b], end = a.batch.offsets[b + 1];
  if (begin == end) return;
  const std::int64_t head_size = static_cast<std::int64_t>(a.key_dim) * a.value_dim;
  float* state = a.states[b] + h * head_size + v;

  float s[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = group + kRowGroups * i;
    s[i] = is_column && row < a.key_dim ? state[static_cast<std::int64_t>(row) * a.value_dim] : 0.0f;
  }
  for (std::int64_t t = begin; t < end; ++t) {
    const DeltaTokenView<Element, kRule> token(a, t, h);
    float recalled = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = group + kRowGroups * i;
      if (row >= a.key_dim) break;
      s[i] *= token.decay(row);
      recalled += s[i] * token.erase_key(row);
    }
    recalled = sum_row_groups(recalled);
    float value = is_column ? load_element(row_of<Element>(a.v, t)[h * a.value_dim + v]) : 0.0f;
    if (kRule == DeltaRule::kGdn2 && is_column) value *= load_element(row_of<Element>(a.write, t)[h * a.value_dim + v]);
    const float residual = value - recalled, write = token.beta * residual;
    float out = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = group + kRowGroups * i;
      if (row >= a.key_dim) break;
      s[i] += load_element(token.k[row]) * write;
      out += s[i] * load_element(token.q[row]);
    }
    out = sum_row_groups(out);
    if (is_column && group == 0) {
      store_element(row_of<Element>(a.out, t) + h * a.value_dim + v, a.scale * out);
      if (a.residual.data) store_element(row_of<Element>(a.residual, t) + h * a.value_dim + v, residual);
    }
    const std::int64_t done = t + 1 - begin, spacing = static_cast<std::int64_t>(a.checkpoint_chunks) * 64;
    if (spacing && done % spacing == 0 && t + 1 != end && is_column) {
      float* kept = a.checkpoints[b] + ((done / spacing - 1) * a.value_heads + h) * head_size + v;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = group + kRowGroups * i;
        if (row < a.key_dim) kept[static_cast<std::int64_t>(row) * a.value_dim] = s[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = group + kRowGroups * i;
    if (is_column && row < a.key_dim) state[static_cast<std::int64_t>(row) * a.value_dim] = s[i];
  }
}

}  // namespace cairn::gpu
