// gdn_decode: exactly one token for each sequence, K = V = 128, bf16; gdn and delta_net.
//   Computes  as gdn_reference.cpp (spec 1), with o = S~^T q + (q . k) beta r in place of a second pass
//   Shapes    q, k [B, HK, 128]; v, out [B, HV, 128]; states [B] -> [HV, 128, 128] f32, in place
//   Launch    grid (4, HV, B), 128 threads, early: 8 threads own 32 columns as float4, 16 such groups have 8 rows each,
//             neighbours, so that q and k are one load of 16 bytes. Fixed sizes make it 64 registers: 8 blocks a
//             multiprocessor, and 8 sequences of 32 heads are one wave (95 registers with sizes at run time: 5 blocks)
//   Traffic   2 HV 64 KB a sequence. kOnce: loaded and stored as read once, which keeps lines that the next kernel
//             wants; kAhead: asked for into the L2 before the previous kernel has ended. Neither changes a bit
//   Numerics  f32; a column's sums run over a thread's rows, then lanes, then warps: the same for any batch
//   Measured  (us, B = 1 / 8 / 64 / 256, HV 32, H200) 3.15 to 3.37 / 10.2 / 75.0 / 294; delta_rule_decode 3.92 / 12.1 /
//             76.0 / 294
//   Tried     states of zeros, B = 1 / 2 / 4 / 8 / 64 / 256: kAhead 3.13 / 4.49 / 6.25 / 11.6 / 70.7 / 272; kOnce
//             3.50 / 5.05 / 5.94 / 9.87 / 73.4 / 291; neither 3.54 / 5.13 / 6.37 / 10.4 / 70.9 / 277; both 3.14 /
//             4.59 / 6.68 / 12.5 / 73.7 / 281; not early 3.49 / 4.57 / 6.64 / 10.6 / 71.2 / 277. B = 8 / 64 / 256 with
//             64 columns a block, neither: 10.5 / 69.9 / 271; 128 columns: 12.2 / 71.5 / 266
//             States of random numbers, B = 64 / 256 beside 75.0 / 294, same bits: 64 columns a block 77.1 / 301, 128:
//             76.5 / 301; a warp with whole rows 79.2 / 308; whole states through a ring by the copy engine 79.7 / 305.
//             A kernel that only scales its states in place takes 71 / 272: the limit
#pragma once

#include "backends/cuda/gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90 {

inline constexpr int kDecodeColumns = 32, kDecodeThreads = 128, kDecodeGroups = 16, kDecodeRows = kDim / kDecodeGroups;
inline constexpr int kDecodeWarps = kDecodeThreads / 32;

struct GdnDecodeArgs {
  const unsigned short *q, *k, *v;  ///< bf16
  unsigned short* out;
  std::int64_t q_stride, k_stride, v_stride, out_stride;
  const float *log_decay, *beta;  ///< [B, HV]; log_decay null: no decay
  float* const* states;
  float scale;
  int value_heads, heads_per_key;
};

/// Eight neighbouring elements of q or k, unpacked where they are used: that keeps registers free.
struct RowEights {
  std::uint32_t pairs[kDecodeRows / 2];

  __device__ __forceinline__ explicit RowEights(const unsigned short* from) {
    const uint4 piece = *reinterpret_cast<const uint4*>(from);
    pairs[0] = piece.x, pairs[1] = piece.y, pairs[2] = piece.z, pairs[3] = piece.w;
  }
  __device__ __forceinline__ float operator[](int i) const {
    return i % 2 ? high_bf16(pairs[i / 2]) : low_bf16(pairs[i / 2]);
  }
};
/// Sum over the lanes with the same columns: every 8th.
__device__ __forceinline__ float sum_row_groups(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 8);
  return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

template <bool kOnce, bool kAhead>
__global__ void __launch_bounds__(kDecodeThreads, 8) gdn_decode_kernel(const __grid_constant__ GdnDecodeArgs a) {
  __shared__ float partial[kDecodeWarps][2 * kDecodeColumns + 1];
  let_next_kernel_start();
  const int thread = threadIdx.x, h = blockIdx.y, b = blockIdx.z;
  const int group = thread / 8, warp = thread / 32, quad = thread % 8, first_row = group * kDecodeRows;
  const int column = blockIdx.x * kDecodeColumns + 4 * quad;
  if constexpr (kAhead) {  // a row of the block's columns is one line of 128 bytes
    const float* line = a.states[b] + (h * kDim + thread) * kDim + blockIdx.x * kDecodeColumns;
    prefetch_line(line);
  }
  wait_for_previous_kernel();
  float* state = a.states[b] + (h * kDim + first_row) * kDim + column;
  float4 s[kDecodeRows];
#pragma unroll
  for (int i = 0; i < kDecodeRows; ++i) {
    const float4* at = reinterpret_cast<const float4*>(state + i * kDim);
    s[i] = kOnce ? __ldcs(at) : *at;
  }
  const int key_head = h / a.heads_per_key, head_row = b * a.value_heads + h;
  const RowEights key(a.k + b * a.k_stride + key_head * kDim + first_row);
  const RowEights query(a.q + b * a.q_stride + key_head * kDim + first_row);
  const float decay = a.log_decay ? expf(a.log_decay[head_row]) : 1.0f, beta = a.beta[head_row];
  const uint2 values = *reinterpret_cast<const uint2*>(a.v + b * a.v_stride + h * kDim + column);
  float qk = 0, recalled[4] = {}, out[4] = {};
#pragma unroll
  for (int i = 0; i < kDecodeRows; ++i) {
    qk += query[i] * key[i];
    float* row = &s[i].x;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      row[c] *= decay;
      recalled[c] += row[c] * key[i];
      out[c] += row[c] * query[i];
    }
  }
  qk = sum_row_groups(qk);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    recalled[c] = sum_row_groups(recalled[c]), out[c] = sum_row_groups(out[c]);
    if (thread % 32 < 8)
      partial[warp][4 * quad + c] = recalled[c], partial[warp][kDecodeColumns + 4 * quad + c] = out[c];
  }
  if (thread % 32 == 0) partial[warp][2 * kDecodeColumns] = qk;
  __syncthreads();
  qk = 0;
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) qk += partial[w][2 * kDecodeColumns];
  const float value[4] = {low_bf16(values.x), high_bf16(values.x), low_bf16(values.y), high_bf16(values.y)};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float sum = 0, read = 0;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      sum += partial[w][4 * quad + c];
      read += partial[w][kDecodeColumns + 4 * quad + c];
    }
    const float write = beta * (value[c] - sum);
#pragma unroll
    for (int i = 0; i < kDecodeRows; ++i) (&s[i].x)[c] += key[i] * write;
    out[c] = a.scale * (read + qk * write);
  }
#pragma unroll
  for (int i = 0; i < kDecodeRows; ++i) {
    float4* at = reinterpret_cast<float4*>(state + i * kDim);
    if (kOnce)
      __stcs(at, s[i]);
    else
      *at = s[i];
  }
  if (group == 0) {
    *reinterpret_cast<uint2*>(a.out + b * a.out_stride + h * kDim + column) =
        make_uint2(pack_bf16(out[0], out[1]), pack_bf16(out[2], out[3]));
  }
}

}  // namespace cairn::gpu::sm90
