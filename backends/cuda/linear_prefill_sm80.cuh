// linear, many tokens: a block owns 128 tokens x 128 outputs and walks over the inputs 64 at a time, three stages of copies
// ahead; 8 warps of 64 x 32. No split over the inputs: an output is one chain of products in the order of the inputs.
//   Limit     2 T N K operations, 790 TFLOP/s
#pragma once

#include "backends/cuda/linear_args_sm80.cuh"

namespace cairn::gpu {

constexpr int kTokens = 128, kOutputs = 128, kDepth = 64, kStages = 3, kThreads = 256;
constexpr int kStageElements = (kTokens + kOutputs) * kDepth;

/// Place of element (row, column) in a tile of 64-element rows; swizzled: 8 rows hit 8 bank groups.
__device__ inline int tile_place(int row, int column) { return row * kDepth + (((column / 8) ^ (row & 7)) * 8) + column % 8; }

/// Queues the copies of inputs [k, k + 64) of this block's tokens and outputs.
__device__ inline void load_stage(const LinearBf16Args& args, std::uint16_t* stage, int first_token, int first_out, int k) {
  for (int i = static_cast<int>(threadIdx.x); i < (kTokens + kOutputs) * 8; i += kThreads) {
    const int row = i / 8, piece = i % 8, column = k + piece * 8;
    const bool is_token = row < kTokens;
    const int index = is_token ? first_token + row : first_out + row - kTokens;
    const bool is_inside = column < args.in_dim && index < (is_token ? args.token_count : args.out_dim);
    const std::uint16_t* from = is_token ? args.x + index * args.x_stride + column
                                         : args.weight + static_cast<std::int64_t>(index) * args.in_dim + column;
    copy_16_async(stage + tile_place(row, piece * 8), is_inside ? from : args.x, is_inside);
  }
}

__global__ void __launch_bounds__(kThreads, 2) linear_prefill_kernel(LinearBf16Args args) {
  auto* shared = reinterpret_cast<std::uint16_t*>(dynamic_shared());
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens, first_out = static_cast<int>(blockIdx.x) * kOutputs;
  const int warp_token = warp / 4 * 64, warp_out = warp % 4 * 32;
  const int step_count = (args.in_dim + kDepth - 1) / kDepth;
  float sums[4][4][4] = {};
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < step_count) load_stage(args, shared + s * kStageElements, first_token, first_out, s * kDepth);
    commit_copies();
  }
  for (int step = 0; step < step_count; ++step) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    const int next = step + kStages - 1;
    if (next < step_count) load_stage(args, shared + next % kStages * kStageElements, first_token, first_out, next * kDepth);
    commit_copies();
    std::uint16_t* tile = shared + step % kStages * kStageElements;
#pragma unroll
    for (int part = 0; part < kDepth / 16; ++part) {
      std::uint32_t x[4][4], w[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load_left(x[i], [&](int row, int column) { return tile + tile_place(warp_token + i * 16 + row, part * 16 + column); });
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        load_right(w[j], [&](int row, int column) {
          return tile + tile_place(kTokens + warp_out + j * 16 + row, part * 16 + column);
        });
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          multiply_16x8(sums[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        finish(args, first_token + warp_token + i * 16 + lane / 4 + e / 2 * 8, first_out + warp_out + j * 8 + lane % 4 * 2 + e % 2, sums[i][j][e]);
      }
    }
  }
}

}  // namespace cairn::gpu
