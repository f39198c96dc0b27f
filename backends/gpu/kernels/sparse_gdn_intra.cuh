// Stage 1: inside a chunk. The kept blocks of (I + A)^-1, U = inverse diag(beta) V, cumulative decays, tail scores.
//   Launch   grid (C, HV), 256 threads; shared: a slice of the keys, A and the inverse [64, 64] each
#pragma once

#include "backends/gpu/kernels/clamp_decay.cuh"
#include "backends/gpu/kernels/sparse_gdn_plan.cuh"

namespace cairn::gpu {

inline constexpr std::size_t kIntraSharedBytes = (kSliceFloats + 2 * kChunk * kChunk + 2 * kChunk) * sizeof(float);

/// Inverse of the unit lower-triangular matrix I + A within [first, last): a thread owns a column.
__device__ inline void invert_columns(const float* a, float* x, int first, int last, int column) {
  for (int i = first; i < last; ++i) {
    float sum = i == column ? 1.0f : 0.0f;
    for (int s = column; s < i; ++s) sum -= a[i * kChunk + s] * x[s * kChunk + column];
    x[i * kChunk + column] = i < column ? 0.0f : sum;
  }
}

/// C_{i,i-1} = -C_ii A_{i,i-1} C_{i-1,i-1}, both triangles; a thread owns an element.
__device__ inline float adjacent_block(const float* a, const float* x, int i, int j) {
  const int row = i / kBlock * kBlock, column = j / kBlock * kBlock;
  float sum = 0;
  for (int p = 0; p <= i - row; ++p) {
    float inner = 0;
    for (int q = j - column; q < kBlock; ++q)
      inner += a[(row + p) * kChunk + column + q] * x[(column + q) * kChunk + j];
    sum += x[i * kChunk + row + p] * inner;
  }
  return -sum;
}

__global__ void sparse_intra_kernel(SparseGdnStage stage) {
  __shared__ float partial[32];
  const DeltaRuleArgs& d = stage.call.delta;
  const int c = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y),
            thread = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  float* keys = reinterpret_cast<float*>(dynamic_shared());
  float* a = keys + kSliceFloats;
  float* x = a + kChunk * kChunk;
  float* decay = x + kChunk * kChunk;
  float* beta = decay + kChunk;
  const std::int64_t cell = static_cast<std::int64_t>(c) * d.value_heads + head;
  if (thread < kChunk) beta[thread] = beta_at(stage, c * kChunk + thread, head);
  if (thread == 0) {
    float sum = 0, total = 0;
    for (int i = 0; i < kChunk; ++i) {
      const int t = c * kChunk + i;
      const float g = t < stage.token_count
                          ? d.log_decay[static_cast<std::int64_t>(stage.first_token + t) * d.value_heads + head]
                          : 0.0f;
      // The selector's doubles know smaller numbers than f32: it gets the sum without the clamp.
      sum += clamp_decay(g) * 1.44269504088896f;
      total += g * 1.44269504088896f;
      decay[i] = sum;
    }
    stage.scratch.gamma[cell] = total;
  }
  for (int i = thread; i < kChunk * kChunk; i += step) a[i] = x[i] = 0;
  for_each_slice(d.key_dim, [&](int first, int count) {
    __syncthreads();
    load_slice(stage, d.k, c, head / stage.per_group(), first, count, keys);
    __syncthreads();
    for (int i = thread; i < kChunk * kChunk; i += step) {
      const int row = i / kChunk, column = i % kChunk;
      float product = a[i];
      for (int k = 0; k < count && column < row; ++k)
        product += keys[row * kSliceStride + k] * keys[column * kSliceStride + k];
      a[i] = product;
    }
  });
  for (int i = thread; i < kChunk * kChunk; i += step) {
    const int row = i / kChunk, column = i % kChunk;
    a[i] = column < row ? beta[row] * a[i] * exp2f(decay[row] - decay[column]) : 0.0f;
  }
  __syncthreads();
  if (thread < kChunk) {
    const int first = stage.call.full_inverse ? 0 : thread / kBlock * kBlock;
    invert_columns(a, x, first, stage.call.full_inverse ? kChunk : first + kBlock, thread);
  }
  __syncthreads();
  float* inverse = stage.scratch.inverse + cell * stage.inverse_size();
  if (stage.call.full_inverse) {
    for (int i = thread; i < kChunk * kChunk; i += step) inverse[i] = x[i];
  } else {
    for (int i = thread; i < kBlockCount * kBlock * kBlock; i += step) {
      const int block = i / (kBlock * kBlock), row = (block + 1) / 2;
      const bool is_diagonal = block % 2 == 0;
      const int p = row * kBlock + i / kBlock % kBlock, q = (row - (is_diagonal ? 0 : 1)) * kBlock + i % kBlock;
      inverse[i] = is_diagonal ? x[p * kChunk + q] : adjacent_block(a, x, p, q);
    }
  }
  if (thread < kChunk) stage.scratch.cumulative[cell * kChunk + thread] = decay[thread];
  __syncthreads();
  float squares = 0;
  for (int i = thread; i < kChunk * d.value_dim; i += step) {
    const int row = i / d.value_dim, v = i % d.value_dim, t = c * kChunk + row;
    if (t >= stage.token_count) continue;
    float sum = 0;
    for (int s = first_kept(stage, row); s <= row; ++s) {
      sum += inverse_at(stage, inverse, row, s) * beta[s] *
             load(d.v, d.dtype, stage.first_token + c * kChunk + s, static_cast<std::int64_t>(head) * d.value_dim + v);
    }
    stage.scratch.u[(static_cast<std::int64_t>(t) * d.value_heads + head) * d.value_dim + v] = sum;
    if (row >= kChunk - kBlock) squares += sum * sum;
  }
  const float score = sqrtf(block_sum(squares, partial));
  if (thread == 0) stage.scratch.scores[cell] = score;
}

}  // namespace cairn::gpu
