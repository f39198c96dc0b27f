// linear, few tokens: a block owns 8 kRowTiles outputs and up to 8 kTokenTiles tokens. Its 8 warps share the inputs (32 at a
// time, in turn) and add their sums in the order of the warps.
//   Loads     weights are read once, 16 bytes a thread, straight into fragments (the inputs within 32 are permuted alike for
//             weights and tokens, which changes no product), kAhead steps ahead; the first of them before the kernel that
//             makes the tokens has ended
//   Numerics  a row's bits depend on the row and the weight: tokens are the rows of the products, padding is other rows' zeros
//   Limit     2 N K bytes of weights, 4.3 TB/s
#pragma once

#include "backends/cuda/linear_args_sm80.cuh"

namespace cairn::gpu {

inline constexpr int kDecodeWarps = 8, kDecodeStep = kDecodeWarps * 32;

__device__ inline uint4 load_piece(const std::uint16_t* from, bool is_inside) {
  return is_inside ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
}

template <int kTokenTiles, int kRowTiles, int kAhead>
__global__ void __launch_bounds__(kDecodeWarps * 32) linear_decode_kernel(LinearBf16Args args) {
  constexpr int kTokens = kTokenTiles * 8, kRows = kRowTiles * 8, kPairs = (kTokenTiles + 1) / 2;
  constexpr int kTogether = kRowTiles < 2 ? kRowTiles : 2;  // row tiles whose sums leave together: shared memory
  __shared__ float partial[kDecodeWarps][kTogether * 8][kTokens + 1];
  let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, group = lane / 4;
  const int first_out = static_cast<int>(blockIdx.x) * kRows, first_token = static_cast<int>(blockIdx.y) * kTokens;
  const int first_input = warp * 32 + lane % 4 * 8;
  const std::uint16_t* row[kRowTiles];
  bool has_row[kRowTiles];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const int out = first_out + r * 8 + group;
    has_row[r] = out < args.out_dim;
    row[r] = args.weight + static_cast<std::int64_t>(has_row[r] ? out : 0) * args.in_dim;
  }
  uint4 weight[kAhead][kRowTiles];
  const auto load_weights = [&](uint4 (&to)[kRowTiles], int input) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) to[r] = load_piece(row[r] + input, has_row[r] && input < args.in_dim);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_weights(weight[i], first_input + i * kDecodeStep);
  wait_for_previous_kernel();

  float sums[kPairs][kRowTiles][4] = {};
  for (int base = first_input; base < args.in_dim; base += kAhead * kDecodeStep) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int input = base + i * kDecodeStep;
      uint4 x[kPairs * 2];
#pragma unroll
      for (int tile = 0; tile < kPairs * 2; ++tile) {
        const int token = first_token + tile * 8 + group;
        const bool is_inside = tile < kTokenTiles && token < args.token_count && input < args.in_dim;
        x[tile] = is_inside ? *reinterpret_cast<const uint4*>(args.x + token * args.x_stride + input) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const uint4 upper = x[2 * pair], lower = x[2 * pair + 1];
        const std::uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          multiply_16x8(sums[pair][r], first, weight[i][r].x, weight[i][r].y);
          multiply_16x8(sums[pair][r], second, weight[i][r].z, weight[i][r].w);
        }
      }
      load_weights(weight[i], input + kAhead * kDecodeStep);
    }
  }
#pragma unroll
  for (int first = 0; first < kRowTiles; first += kTogether) {
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
#pragma unroll
      for (int i = 0; i < kPairs * 4; ++i) {
        const int token = i / 2 * 8 + group, out = r * 8 + lane % 4 * 2 + i % 2;
        if (token < kTokens) partial[warp][out][token] = sums[i / 4][first + r][i % 4];
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTogether * 8 * kTokens; i += kDecodeWarps * 32) {
      const int out = i % (kTogether * 8), token = i / (kTogether * 8);
      float sum = 0;
      for (int w = 0; w < kDecodeWarps; ++w) sum += partial[w][out][token];
      finish(args, first_token + token, first_out + first * 8 + out, sum);
    }
    if (first + kTogether < kRowTiles) __syncthreads();
  }
}

}  // namespace cairn::gpu
