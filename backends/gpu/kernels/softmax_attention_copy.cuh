// The keys and values of one step of a decode (softmax_attention_decode.cuh) on their way to shared memory; the new
// ones also to the cache.
#pragma once

#include "backends/gpu/kernels/softmax_attention_chunks.cuh"
#include "backends/gpu/platform/gpu_matrix.h"

namespace cairn::gpu {

/// How 32 lanes share rows of `dim` floats: lane's first row and column, and how many rows they reach at once.
struct RowLanes {
  int row, column, rows_at_once;

  __device__ RowLanes(int lane, int dim) {
    const int pieces = dim / 4 < kMatrixLanes ? dim / 4 : kMatrixLanes;
    row = lane / pieces, column = lane % pieces * 4, rows_at_once = kMatrixLanes / pieces;
  }
};

/// The cached keys or values of one head, and the new one.
struct RowSource {
  float* cached;  ///< of ring row 0
  std::int64_t row_stride;
  ConstRows fresh;
  std::int64_t fresh_column;
  int dim, capacity;
  DType type;
  bool in_eights;  ///< the fresh row
  bool stores;  ///< this block, and no other, puts the new row into the cache
};

/// Keys of one step of a group. Plain: cached one after the other, seen, and not the new one.
struct StepKeys {
  std::int64_t first;  ///< position
  int count, ring_first;
  bool is_plain;
};

/// A step's rows to shared memory: plain ones, and up to 128 * kPieces columns.
template <int kPieces>
__device__ void copy_plain_rows(const RowSource& source, const StepKeys& step, const RowLanes& lanes, int to_stride,
                                float* to) {
  const float* from = source.cached + (step.ring_first + lanes.row) * source.row_stride + lanes.column;
  to += lanes.row * to_stride + lanes.column;
  const std::int64_t from_step = source.row_stride * lanes.rows_at_once;
#pragma unroll 4
  for (int row = lanes.row; row < step.count; row += lanes.rows_at_once) {
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      if (lanes.column + c * kMatrixLanes * 4 < source.dim)
        copy_16_async(to + c * kMatrixLanes * 4, from + c * kMatrixLanes * 4, true);
    }
    from += from_step, to += to_stride * lanes.rows_at_once;
  }
}

/// Columns [i, i + 4) of the new row.
__device__ inline void load_fresh(const RowSource& source, int b, int i, float (&x)[4]) {
  struct alignas(8) Pairs {
    std::uint32_t low, high;
  };
  const std::int64_t at = b * source.fresh.stride + source.fresh_column + i;
  if (!source.in_eights) {
    for (int j = 0; j < 4; ++j) x[j] = load(source.fresh.data, source.type, at + j);
  } else if (source.type == DType::kF32) {
    load_four(static_cast<const float*>(source.fresh.data) + at, x);
  } else {
    const Pairs pairs = *reinterpret_cast<const Pairs*>(static_cast<const std::uint16_t*>(source.fresh.data) + at);
    x[0] = low_bf16(pairs.low), x[1] = high_bf16(pairs.low), x[2] = low_bf16(pairs.high), x[3] = high_bf16(pairs.high);
  }
}

/// Any rows; zeros where the token does not see.
template <int kPieces>
__device__ void copy_any_rows(const RowSource& source, const SeenChunks& seen, int b, const StepKeys& step,
                              const RowLanes& lanes, int to_stride, float* to) {
  for (int row = lanes.row; row < step.count; row += lanes.rows_at_once) {
    const std::int64_t position = step.first + row;
    float* cached = source.cached + (step.ring_first + row) % source.capacity * source.row_stride;
    if (position != seen.position) {
      const bool is_seen = position >= seen.oldest && position <= seen.position;
      for (int i = lanes.column; i < source.dim; i += kMatrixLanes * 4) {
        copy_16_async(to + row * to_stride + i, cached + i, is_seen);
      }
      continue;
    }
    float x[kPieces][4];
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      if (lanes.column + c * kMatrixLanes * 4 < source.dim)
        load_fresh(source, b, lanes.column + c * kMatrixLanes * 4, x[c]);
    }
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      const int i = lanes.column + c * kMatrixLanes * 4;
      if (i >= source.dim) break;
      store_four(to + row * to_stride + i, x[c]);
      if (source.stores) store_four(cached + i, x[c]);
    }
  }
}

template <int kPieces>
__device__ void copy_rows(const RowSource& source, const SeenChunks& seen, int b, const StepKeys& step,
                          const RowLanes& lanes, int to_stride, float* to) {
  if (lanes.row >= lanes.rows_at_once) return;
  if (step.is_plain) return copy_plain_rows<kPieces>(source, step, lanes, to_stride, to);
  copy_any_rows<kPieces>(source, seen, b, step, lanes, to_stride, to);
}

}  // namespace cairn::gpu
