// linear, few tokens: a block owns 8 kRowTiles outputs and up to 8 kTokenTiles tokens. Its warps share the inputs, 32 kPieces
// neighbouring ones each, in turn, and add their sums in the order of the warps.
//   Loads     weights are read once, 16 bytes a thread, straight into fragments (the inputs within 32 are permuted alike for
//             weights and tokens, which changes no product); the first kAhead steps are under way before the kernel that
//             makes the tokens has ended
//   Numerics  a row's bits depend on the row and the weight: tokens are the rows of the products, and the split over warps
//             is chosen by the weight's size
//   Limit     2 N K bytes of weights, 4.3 TB/s
//   Measured  (H200, N x K, us and share of 4.3 TB/s, one more kernel of 1 us behind each)   1 token        8 tokens
//               12,352 x 2,560   16 warps                                                    18.9  78 %     19.9  74 %
//                2,560 x 4,096    8 warps                                                     8.2  59 %      8.6  57 %
//               18,432 x 2,560   16 warps                                                    26.1  84 %     27.7  79 %
//                2,560 x 9,216    8 warps                                                    15.5  71 %     17.7  62 %
//              248,320 x 2,560   16 warps                                                     297 100 %      331  89 %
//             16 outputs a block with 8 warps before: 23 us for 9,728 x 2,560 (50 %)
//   Tried     a persistent grid with its loads in flight across rows: in registers 2.2 TB/s, through shared memory as fast
//             for one token, half as fast for 8; prefetches to L2, of the block's own or of later rows: 3 to 8 % slower;
//             letting the next kernel start only after the last load: 20 % slower; hints to the loads: within 2 %;
//             joining gate and up projection with their swiglu in one launch: slower than the two (registers)
#pragma once

#include "backends/cuda/linear_args_sm80.cuh"

namespace cairn::gpu {

inline constexpr int kLinearPiece = 32;  ///< inputs of four lanes' 16 bytes

__device__ inline uint4 load_piece(const std::uint16_t* from, bool is_inside) {
  return is_inside ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
}

template <int kWarps, int kPieces, int kAhead, int kTokenTiles, int kRowTiles>
__global__ void __launch_bounds__(kWarps * 32, kWarps == 16 && kTokenTiles == 2 ? 2 : 0) linear_decode_kernel(LinearBf16Args args) {
  constexpr int kTokens = kTokenTiles * 8, kRows = kRowTiles * 8, kPairs = (kTokenTiles + 1) / 2;
  constexpr int kStep = kWarps * kPieces * kLinearPiece;
  constexpr int kTogether = kWarps * kTokenTiles > 64 || kRowTiles == 1 ? 1 : 2;  // row tiles whose sums leave together
  __shared__ float partial[kWarps][kTogether * 8][kTokens + 1];
  let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, group = lane / 4;
  const int first_out = static_cast<int>(blockIdx.x) * kRows, first_token = static_cast<int>(blockIdx.y) * kTokens;
  const int first_input = warp * kPieces * kLinearPiece + lane % 4 * 8;
  const std::uint16_t* row[kRowTiles];
  bool has_row[kRowTiles];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const int out = first_out + r * 8 + group;
    has_row[r] = out < args.out_dim;
    row[r] = args.weight + static_cast<std::int64_t>(has_row[r] ? out : 0) * args.in_dim;
  }
  uint4 weight[kAhead][kPieces][kRowTiles];
  const auto load_weights = [&](uint4 (&to)[kRowTiles], int input) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) to[r] = load_piece(row[r] + input, has_row[r] && input < args.in_dim);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) load_weights(weight[i][p], first_input + i * kStep + p * kLinearPiece);
  }
  wait_for_previous_kernel();

  const auto load_tokens = [&](uint4 (&to)[kPairs * 2], int input) {
#pragma unroll
    for (int tile = 0; tile < kPairs * 2; ++tile) {
      const int token = first_token + tile * 8 + group;
      const bool is_inside = tile < kTokenTiles && token < args.token_count && input < args.in_dim;
      to[tile] = is_inside ? *reinterpret_cast<const uint4*>(args.x + token * args.x_stride + input) : make_uint4(0, 0, 0, 0);
    }
  };
  constexpr bool kHasOneEach = kRows * kTokens <= kWarps * 32;  // a thread finishes at most one output: read ahead what it adds to
  const int mine = static_cast<int>(threadIdx.x);
  float before = 0;
  if (kHasOneEach && mine < kRows * kTokens) before = read_output(args, first_token + mine / kRows, first_out + mine % kRows);

  float sums[kPairs][kRowTiles][4] = {};
  const auto multiply = [&](const uint4 (&x)[kPairs * 2], const uint4 (&w)[kRowTiles]) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const uint4 upper = x[2 * pair], lower = x[2 * pair + 1];
      const std::uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        multiply_16x8(sums[pair][r], first, w[r].x, w[r].y);
        multiply_16x8(sums[pair][r], second, w[r].z, w[r].w);
      }
    }
  };
  constexpr int kTokensAhead = kTokenTiles <= 2 ? kAhead : 1;  // one wait for the tokens of several steps; registers allow it for few
  for (int base = first_input; base - lane % 4 * 8 < args.in_dim; base += kAhead * kStep) {  // the same turns for a whole warp
#pragma unroll
    for (int i = 0; i < kAhead; i += kTokensAhead) {
      uint4 x[kTokensAhead][kPieces][kPairs * 2];
#pragma unroll
      for (int j = 0; j < kTokensAhead; ++j) {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) load_tokens(x[j][p], base + (i + j) * kStep + p * kLinearPiece);
      }
#pragma unroll
      for (int j = 0; j < kTokensAhead; ++j) {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          multiply(x[j][p], weight[i + j][p]);
          load_weights(weight[i + j][p], base + (i + j + kAhead) * kStep + p * kLinearPiece);
        }
      }
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
    for (int i = static_cast<int>(threadIdx.x); i < kTogether * 8 * kTokens; i += kWarps * 32) {
      const int out = i % (kTogether * 8), token = i / (kTogether * 8);
      float sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += partial[w][out][token];
      if constexpr (kHasOneEach) {
        finish(args, first_token + token, first_out + out, sum, before);
      } else {
        finish(args, first_token + token, first_out + first * 8 + out, sum);
      }
    }
    if (first + kTogether < kRowTiles) __syncthreads();
  }
}

/// Weights of so many outputs have blocks enough for every multiprocessor with 16 warps and 8 outputs each.
inline bool has_many_outputs(const LinearBf16Args& args) { return args.out_dim >= 6144; }

/// Calls launch(kernel, threads, tokens of a block, outputs of a block) with the form for this weight and token count.
template <class Launch>
void choose_linear_decode(const LinearBf16Args& args, const Launch& launch) {
  const int tokens = args.token_count;
  if (has_many_outputs(args)) {
    if (tokens <= 8) return launch(linear_decode_kernel<16, 2, 3, 1, 1>, 512, 8, 8);
    if (tokens <= 16) return launch(linear_decode_kernel<16, 2, 3, 2, 1>, 512, 16, 8);
    if (tokens <= 32) return launch(linear_decode_kernel<16, 2, 1, 4, 2>, 512, 32, 16);
    return launch(linear_decode_kernel<16, 2, 1, 8, 2>, 512, 64, 16);
  }
  if (tokens <= 8) return launch(linear_decode_kernel<8, 4, 2, 1, 1>, 256, 8, 8);
  if (tokens <= 16) return launch(linear_decode_kernel<8, 4, 2, 2, 1>, 256, 16, 8);
  if (tokens <= 32) return launch(linear_decode_kernel<8, 4, 1, 4, 2>, 256, 32, 16);
  launch(linear_decode_kernel<8, 4, 1, 8, 2>, 256, 64, 16);
}

}  // namespace cairn::gpu
