// delta_rule_decode: exactly one token for each sequence, key_dim 64, 128 or 256, value_dim a multiple of 32.
//   Computes  as *_reference.cpp of delta_net, gdn, kda, gdn2 (spec 1), with o = S~^T q + (q . k) beta r in place of a second pass
//   Shapes    q, k [B, HK, K]; v, out [B, HV, V]; states [B] -> [HV, K, V] f32, in place
//   Launch    grid (V / 32, HV, B), 128 threads: 8 threads own 32 columns as float4, 16 such groups share the rows
//             (row = group + 16 i); all loads of a thread are in flight before the first sum
//   Traffic   2 HV K V 4 bytes a sequence; nothing else matters
//   Numerics  f32; a column's sums run over a thread's rows, then lanes, then warps: the same for any batch
//   Measured  (us, B = 1 / 8 / 64 / 256, HV 32, K = V = 128, bf16, H200) 3.90 / 12.1 / 76.1 / 294; the recurrence kernel in its
//             place 10.0 / 23.3 / 161 / 626; 256 threads of 4 rows 4.19 / 13.6 / 87.2 / 338; q and k through shared memory
//             4.01 / 13.1 / 77.0 / 295; registers capped for 6 or 8 blocks 4.76 / 13.6 / 79 / 300, 4.86 / 14.9 / 102 / 401;
//             a copy of the states 2.94 / 10.0 / 64.8 / -. GDN2 5.3 / 15.3 / 96.1 / -
#pragma once

#include "backends/gpu/kernels/delta_rule_recurrence.cuh"

namespace cairn::gpu {

inline constexpr int kDecodeThreads = 128, kDecodeRowGroups = 16, kDecodeParts = 4;

/// Sum over the lanes with the same columns: every 8th lane of 32.
__device__ inline float sum_lane_groups(float x) {
  x += shuffle_xor(x, 8);
  return x + shuffle_xor(x, 16);
}

template <class Element, DeltaRule kRule, int kRows>
__global__ void __launch_bounds__(kDecodeThreads) delta_rule_decode_kernel(DeltaRuleArgs a) {
  __shared__ float partial[kDecodeParts][2 * kRecurrenceColumns + 1];
  const int thread = static_cast<int>(threadIdx.x), h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int group = thread / 8, part = thread / 32, quad = thread % 8;
  const int v = static_cast<int>(blockIdx.x) * kRecurrenceColumns + 4 * quad;
  const std::int64_t t = b;
  float* state = a.states[b] + (static_cast<std::int64_t>(h) * a.key_dim + group) * a.value_dim + v;
  float s[kRows][4], key[kRows], qk = 0;
  float recalled[4] = {}, out[4] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) load_four(state + static_cast<std::int64_t>(kDecodeRowGroups) * i * a.value_dim, s[i]);
  const DeltaTokenView<Element, kRule> token(a, t, h);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = group + kDecodeRowGroups * i;
    key[i] = load_element(token.k[row]);
    const float query = load_element(token.q[row]), decay = token.decay(row), erase = token.erase_key(row);
    qk += query * key[i];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      s[i][c] *= decay;
      recalled[c] += s[i][c] * erase;
      out[c] += s[i][c] * query;
    }
  }
  qk = sum_lane_groups(qk);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    recalled[c] = sum_lane_groups(recalled[c]);
    out[c] = sum_lane_groups(out[c]);
    if (thread % 32 < 8) {
      partial[part][4 * quad + c] = recalled[c];
      partial[part][kRecurrenceColumns + 4 * quad + c] = out[c];
    }
  }
  if (thread % 32 == 0) partial[part][2 * kRecurrenceColumns] = qk;
  __syncthreads();
  qk = 0;
#pragma unroll
  for (int w = 0; w < kDecodeParts; ++w) qk += partial[w][2 * kRecurrenceColumns];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float sum = 0, read = 0;
#pragma unroll
    for (int w = 0; w < kDecodeParts; ++w) {
      sum += partial[w][4 * quad + c];
      read += partial[w][kRecurrenceColumns + 4 * quad + c];
    }
    float value = load_element(row_of<Element>(a.v, t)[h * a.value_dim + v + c]);
    if constexpr (kRule == DeltaRule::kGdn2) value *= load_element(row_of<Element>(a.write, t)[h * a.value_dim + v + c]);
    const float residual = value - sum;
    const float write = token.beta * residual;
#pragma unroll
    for (int i = 0; i < kRows; ++i) s[i][c] += key[i] * write;
    if (group == 0) {
      store_element(row_of<Element>(a.out, t) + h * a.value_dim + v + c, a.scale * (read + qk * write));
      if (a.residual.data) store_element(row_of<Element>(a.residual, t) + h * a.value_dim + v + c, residual);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) store_four(state + static_cast<std::int64_t>(kDecodeRowGroups) * i * a.value_dim, s[i]);
}

}  // namespace cairn::gpu
