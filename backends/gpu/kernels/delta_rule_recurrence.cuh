// delta_rule_recurrence: the four delta rules token by token; every shape, both phases, residuals and checkpoints.
//   Computes  as *_reference.cpp of delta_net, gdn, kda, gdn2 (spec 1)
//   Shapes    q, k [T, HK, K]; v, out, residual [T, HV, V]; states [B] -> [HV, K, V] f32, in place
//   Launch    grid (ceil(V / 32), HV, B), 128 threads: 8 neighbouring threads own 8 columns of S, four such groups share
//             the rows of a column (row = group + 4 i), so a load touches whole 32-byte sectors
//   Traffic   decode: 2 HV K V 4 bytes a sequence; prefill is bound by the chain of T dependent tokens,
//             which are staged 8 at a time (read token by token from global memory: 9 us a token)
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

inline constexpr int kStagedTokens = 8;

/// The next tokens of a head in shared memory, so that the chain over tokens waits for no global load. Rows past key_dim
/// hold zeros (decay 1), so that loops over rows need no bound.
template <int kRowCount>
struct StagedTokens {
  float q[kStagedTokens][kRowCount], k[kStagedTokens][kRowCount], erase[kStagedTokens][kRowCount];
  float decay[kStagedTokens][kRowCount];
  float value[kStagedTokens][kRecurrenceColumns], beta[kStagedTokens];
};

/// Tokens [first, first + count); all threads of the block.
template <class Element, DeltaRule kRule, int kRowCount>
__device__ void stage_tokens(const DeltaRuleArgs& a, std::int64_t first, int count, int h, StagedTokens<kRowCount>& to) {
  for (int i = static_cast<int>(threadIdx.x); i < count * kRowCount; i += kRecurrenceThreads) {
    const int token = i / kRowCount, row = i % kRowCount;
    const bool is_row = row < a.key_dim;
    const DeltaTokenView<Element, kRule> view(a, first + token, h);
    to.q[token][row] = is_row ? load_element(view.q[row]) : 0.0f;
    to.k[token][row] = is_row ? load_element(view.k[row]) : 0.0f;
    to.erase[token][row] = is_row ? view.erase_key(row) : 0.0f;
    to.decay[token][row] = is_row ? view.decay(row) : 1.0f;
    if (row == 0) to.beta[token] = view.beta;
  }
  for (int i = static_cast<int>(threadIdx.x); i < count * kRecurrenceColumns; i += kRecurrenceThreads) {
    const int token = i / kRecurrenceColumns, column = i % kRecurrenceColumns;
    const int v = static_cast<int>(blockIdx.x) * kRecurrenceColumns + column;
    float value = 0;
    if (v < a.value_dim) {
      value = load_element(row_of<Element>(a.v, first + token)[h * a.value_dim + v]);
      if (kRule == DeltaRule::kGdn2) value *= load_element(row_of<Element>(a.write, first + token)[h * a.value_dim + v]);
    }
    to.value[token][column] = value;
  }
}

template <class Element, DeltaRule kRule, int kRows>
__global__ void delta_rule_recurrence_kernel(DeltaRuleArgs a) {
  __shared__ StagedTokens<kRows * kRowGroups> staged;
  const int thread = static_cast<int>(threadIdx.x), h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int group = thread / 8 % kRowGroups, column = thread / 32 * 8 + thread % 8;
  const int v = static_cast<int>(blockIdx.x) * kRecurrenceColumns + column;
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
    const int token = static_cast<int>((t - begin) % kStagedTokens);
    if (token == 0) {
      __syncthreads();
      stage_tokens<Element, kRule>(a, t, static_cast<int>(end - t < kStagedTokens ? end - t : kStagedTokens), h, staged);
      __syncthreads();
    }
    float recalled = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = group + kRowGroups * i;
      s[i] *= staged.decay[token][row];
      recalled += s[i] * staged.erase[token][row];
    }
    const float residual = staged.value[token][column] - sum_row_groups(recalled), write = staged.beta[token] * residual;
    float out = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = group + kRowGroups * i;
      s[i] += staged.k[token][row] * write;
      out += s[i] * staged.q[token][row];
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
