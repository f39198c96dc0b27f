// Rows of up to 8192 elements held in registers, for norms and maps over a row: read once, 16 bytes at a time.
// kGroup threads own a row: 32 neighbouring lanes, or a block of 256. Thread i has the pieces i, i + kGroup, ... of 8 elements.
#pragma once

#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {

inline constexpr int kRowThreads = 256, kRowPieces = 4, kLanesOfRow = 32;

/// Sum over the threads of a row, the same order for every row; `partial`: shared memory of 32 floats.
template <int kGroup>
__device__ inline float row_sum(float value, float* partial) {
  if constexpr (kGroup != kLanesOfRow) {
    return block_sum(value, partial);
  } else {
#pragma unroll
    for (int distance = kLanesOfRow / 2; distance > 0; distance /= 2) value += shuffle_xor(value, distance);
    return value;
  }
}
template <int kGroup>
__device__ inline float row_max(float value, float* partial) {
  if constexpr (kGroup != kLanesOfRow) {
    return block_max(value, partial);
  } else {
#pragma unroll
    for (int distance = kLanesOfRow / 2; distance > 0; distance /= 2) value = fmaxf(value, shuffle_xor(value, distance));
    return value;
  }
}

/// The head of a token that this thread's group owns.  Rows past the end are nobody's, but their threads take part in sums.
template <int kGroup, int kPieces = kRowPieces>
struct RowPlace {
  std::int64_t t;
  int head, thread;
  bool is_row;

  __device__ RowPlace(std::int64_t token_count, int head_count) {
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kRowThreads / kGroup) + threadIdx.x / kGroup;
    t = row / head_count;
    head = static_cast<int>(row % head_count);
    thread = static_cast<int>(threadIdx.x) % kGroup;
    is_row = t < token_count;
  }
  /// Calls visit(piece, column) for this thread's pieces of a row of `dim`.
  template <class Visit>
  __device__ void for_each_piece(int dim, const Visit& visit) const {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int column = 8 * (thread + p * kGroup);
      if (is_row && column < dim) visit(p, column);
    }
  }
  /// This thread's pieces of a vector [dim] of f32 that all rows share.
  __device__ void load_vector(const float* from, int dim, float (&x)[kPieces][8]) const {
    for_each_piece(dim, [&](int p, int column) { load_eight(from, DType::kF32, column, x[p]); });
  }
};

constexpr bool fits_row_pieces(int dim) { return dim % 8 == 0 && dim <= kRowThreads * kRowPieces * 8; }
/// Short rows go to 32 lanes each.
constexpr bool is_short_row(int dim) { return dim <= kLanesOfRow * kRowPieces * 8; }

/// Launches `of_lanes` or `of_block` over rows of `dim`.
template <class Args>
void launch_row_pieces(const Launcher& launcher, void (*of_lanes)(Args), void (*of_block)(Args), std::int64_t rows, int dim,
                       const Args& args) {
  const std::int64_t in_a_block = is_short_row(dim) ? kRowThreads / kLanesOfRow : 1;
  launcher.early(is_short_row(dim) ? of_lanes : of_block, dim3(static_cast<unsigned>((rows + in_a_block - 1) / in_a_block)),
                 dim3(kRowThreads), 0, args);
}

}  // namespace cairn::gpu
