// moe decode: a piece of up to 8 pairs of one expert times 16 rows of its matrices a group of lanes, from memory.
//   Computes  hidden = silu(gate x) * (up x): 8 rows of each; or results = down hidden: two times 16 rows
//   Shapes    as moe_prefill.cuh, but results f32
//   Launch    a block for ceil(F / 8) or ceil(D / 32) rows of each piece, 8 groups of 32 lanes. The groups share the
//             inputs, 64 neighbouring ones each in turn: 8 slices for hidden, 4 for results; sums are added in order
//   Loads     a chosen expert's weights once for 8 tokens that chose it, 16 bytes a lane (i8: 8, i4: 4) straight into
//             fragments: the inputs within 32 are permuted alike for weights and tokens, which changes no product
//   Numerics  bf16 products of the weights as they are: scales of i8 and i4 are factors of f32 sums
//   Limit     bytes of the chosen experts at 4.3 TB/s: top 10 of D 2,048, F 512: 63 MB, 14.6 us; top 8: 50 MB, 11.7 us
//   Measured  (H200, D 2,048, F 512, 256 experts, top 8, bf16, all kernels of a call, us) 1 token 26.5 (floor 11.7),
//             8 tokens 125 (77 % of the bytes at 4.2 TB/s), 64 tokens 384 (100 %)
//             predicted 21 at 1 token. 34.1 before: loads behind branches, and the table of matrices in its own kernel
#pragma once

#include "backends/gpu/kernels/moe_plan.cuh"
#include "backends/gpu/kernels/weight_eights.cuh"

namespace cairn::gpu {

inline constexpr int kFewTokens = 8, kDecodeGroups = 8, kMoeDecodeThreads = kDecodeGroups * kMatrixLanes;
inline constexpr int kNear = 2,
                     kSteps = 2;  // pieces of 32 inputs side by side, and steps whose loads are under way together

template <bool kIsHidden, class Weights>
__global__ void __launch_bounds__(kMoeDecodeThreads, 4) moe_decode_kernel(MoePlan plan) {
  constexpr int kSlices = kIsHidden ? 8 : 4, kRowTiles = kDecodeGroups / kSlices,
                kRows = kIsHidden ? 8 : 16 * kRowTiles;
  constexpr int kStep = kSlices * kNear * 32;
  __shared__ float partial[kDecodeGroups][16][kFewTokens + 1];
  let_next_kernel_start();
  wait_for_previous_kernel();
  const MoeArgs& args = plan.call;
  const int row_tiles = row_tiles_of(args, kIsHidden, kRows), block = static_cast<int>(blockIdx.x);
  const MoePiece piece = piece_of(plan, block / row_tiles);
  if (piece.count == 0) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kMatrixLanes, group = thread / kMatrixLanes;
  const int row_count = kIsHidden ? args.hidden_dim : args.dim, in_dim = kIsHidden ? args.dim : args.hidden_dim;
  const int first_row = block % row_tiles * kRows;

  const ExpertMatrix* matrices = plan.scratch.matrices + piece.expert;
  ExpertMatrix matrix[2];
  const unsigned char* weights[2];  // rows past the end read the last one, and their sums are dropped
  const float* scales[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    matrix[half] = matrices[(kIsHidden ? half : 2) * args.expert_count];
    const int wanted = first_row + (kIsHidden ? 0 : group / kSlices * 16 + half * 8) + lane / 4;
    const std::int64_t row = wanted < row_count ? wanted : row_count - 1;
    weights[half] = static_cast<const unsigned char*>(matrix[half].data) + row * in_dim / 8 * Weights::kRawBytes;
    if constexpr (Weights::kType == DType::kI4) scales[half] = matrix[half].scales + row * (in_dim / plan.group_size);
  }
  const int place = piece.first + (lane / 4 < piece.count ? lane / 4 : 0);  // so do tokens
  const std::uint16_t* x =
      kIsHidden ? static_cast<const std::uint16_t*>(args.in.data) + pair_at(plan, place) / args.top_k * args.in.stride
                : plan.scratch.hidden + static_cast<std::int64_t>(place) * args.hidden_dim;

  float sums[4] = {};
  for (int base = group % kSlices * kNear * 32 + lane % 4 * 8; base - lane % 4 * 8 < in_dim; base += kSteps * kStep) {
    typename Weights::Raw raw[kSteps * kNear][2];
    Words<4> token[kSteps * kNear];
    float scale[kSteps * kNear][2];
#pragma unroll
    for (int i = 0; i < kSteps * kNear; ++i) {
      const int input = base + i / kNear * kStep + i % kNear * 32;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned char* from = weights[half] + input / 8 * Weights::kRawBytes;
        raw[i][half] = input < in_dim ? *reinterpret_cast<const typename Weights::Raw*>(from) : typename Weights::Raw{};
        if constexpr (Weights::kType == DType::kI4) {
          scale[i][half] = input < in_dim ? scales[half][input / plan.group_size] : 0.0f;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kSteps * kNear; ++i) {
      const int input = base + i / kNear * kStep + i % kNear * 32;
      token[i] = input < in_dim ? *reinterpret_cast<const Words<4>*>(x + input) : Words<4>{};
    }
#pragma unroll
    for (int i = 0; i < kSteps * kNear; ++i) {
      const Words<4> upper = Weights::unpack(raw[i][0]), lower = Weights::unpack(raw[i][1]);
      float products[4] = {};
      float(&to)[4] = Weights::kType == DType::kI4 ? products : sums;
      multiply_16x8(to, {upper.word[0], lower.word[0], upper.word[1], lower.word[1]}, token[i].word[0],
                    token[i].word[1]);
      multiply_16x8(to, {upper.word[2], lower.word[2], upper.word[3], lower.word[3]}, token[i].word[2],
                    token[i].word[3]);
      if constexpr (Weights::kType == DType::kI4) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[e] += scale[i][e / 2] * products[e];
      }
    }
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) partial[group][lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2] = sums[e];
  __syncthreads();

  const auto total = [&](int tile, int tile_row, int token) {
    float sum = 0;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) sum += partial[tile * kSlices + slice][tile_row][token];
    return sum;
  };
  const int token = thread / kRows, out = thread % kRows, out_row = first_row + out;
  if (token >= piece.count || out_row >= row_count) return;
  const auto factor = [&](const ExpertMatrix& of) { return Weights::kType == DType::kI8 ? of.scales[out_row] : 1.0f; };
  if constexpr (kIsHidden) {
    const float gate = total(0, out, token) * factor(matrix[0]), up = total(0, 8 + out, token) * factor(matrix[1]);
    plan.scratch.hidden[static_cast<std::int64_t>(piece.first + token) * row_count + out_row] =
        to_bf16(silu(gate) * up).bits;
  } else {
    const std::int64_t pair = pair_at(plan, piece.first + token);
    static_cast<float*>(plan.scratch.results)[pair * row_count + out_row] =
        total(out / 16, out % 16, token) * factor(matrix[0]);
  }
}

}  // namespace cairn::gpu
