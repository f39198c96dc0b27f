// moe prefill: a piece of up to 64 pairs of one expert times 128 rows of its matrices, 64 inputs at a time, 3 stages,
// or 2 where a chip has 64 KB of shared memory.
//   Computes  hidden = silu(gate x) * (up x): 64 rows of each; or results = down hidden: 128 rows
//   Shapes    x [T, D] bf16, gathered by pair; hidden [T k, F] bf16 by place; results [T k, D] bf16 by pair
//   Launch    a block for ceil(F / 64) or ceil(D / 128) rows of each piece, 4 groups of 32 lanes; a group has 32 rows
//             and all tokens, so that tokens that a piece lacks cost nothing
//   Numerics  bf16 products, f32 sums in the order of the inputs: a pair's bits depend on neither its piece nor its
//             place. i8 is exact and scaled at the end; i4 is scaled and rounded to bf16 on its way to shared memory
//   Limit     2,048 tokens of 512 experts, top 10, D 2,048, F 512: 3.2 GB of weights, 750 us; 256 experts, top 8:
//             375 us
//   Measured  (H200, 256 experts, top 8, D 2,048, F 512, bf16, all kernels of a call) 1,024 tokens 505 us; 2,048
//             tokens 669 us, 154 TFLOP/s; 8,192 tokens 2,048 us, 201 TFLOP/s. Predicted 250: products of 32 lanes take
//             their operands from shared memory at a third of the peak; warpgroup products are what is left
#pragma once

#include "backends/gpu/kernels/moe_plan.cuh"
#include "backends/gpu/kernels/weight_eights.cuh"

namespace cairn::gpu {

inline constexpr int kMoeTokens = 64, kMoeRows = 128, kMoeDepth = 64, kMoeThreads = 128;
inline constexpr int kMoeStages = 3, kMoeLeastStages = 2;
inline constexpr int kMoeStageElements = (kMoeTokens + kMoeRows) * kMoeDepth, kMoeRowStep = kMoeThreads / 8;
constexpr std::size_t moe_shared_bytes(int stages) { return stages * kMoeStageElements * sizeof(std::uint16_t); }

/// Place of element (row, column) in a tile of 64-element rows; 8 rows hit 8 bank groups.
__device__ inline int moe_tile_place(int row, int column) {
  return row * kMoeDepth + ((column / 8 ^ (row & 7)) * 8) + column % 8;
}

/// What a block multiplies, and this thread's part in loading it: every 16th row, 8 inputs at its column.
template <bool kIsHidden, class Weights>
struct MoePrefillTile {
  MoePiece piece;
  ExpertMatrix matrix[2];  ///< gate and up; or down twice
  int first_row, row_count, in_dim, column, row;
  std::int32_t group_size;
  const std::uint16_t* x[kMoeTokens / kMoeRowStep];  ///< null: no token

  __device__ MoePrefillTile(const MoePlan& plan, const MoePiece& its_piece, int first_matrix_row) : piece(its_piece) {
    const MoeArgs& args = plan.call;
    const int thread = static_cast<int>(threadIdx.x);
    row_count = kIsHidden ? args.hidden_dim : args.dim;
    in_dim = kIsHidden ? args.dim : args.hidden_dim;
    first_row = first_matrix_row;
    group_size = plan.group_size;
    column = thread % 8 * 8;
    row = thread / 8;
    for (int i = 0; i < 2; ++i) {
      matrix[i] = plan.scratch.matrices[(kIsHidden ? i : 2) * args.expert_count + piece.expert];
    }
#pragma unroll
    for (int i = 0; i < kMoeTokens / kMoeRowStep; ++i) {
      const int place = row + i * kMoeRowStep;
      x[i] = nullptr;
      if (place >= piece.count) continue;
      if (kIsHidden) {
        const std::int64_t t = pair_at(plan, piece.first + place) / args.top_k;
        x[i] = static_cast<const std::uint16_t*>(args.in.data) + t * args.in.stride;
      } else {
        x[i] = plan.scratch.hidden + static_cast<std::int64_t>(piece.first + place) * args.hidden_dim;
      }
    }
  }

  static constexpr int kHalfLoads = kMoeRows / kMoeRowStep / 2;
  /// Of this thread's load i of a stage: the row, the matrix.
  __device__ int matrix_row(int i) const { return first_row + row + (kIsHidden ? i % kHalfLoads : i) * kMoeRowStep; }
  __device__ const ExpertMatrix& matrix_of(int i) const { return matrix[kIsHidden && i >= kHalfLoads]; }

  __device__ void copy_tokens(std::uint16_t* stage, int k) const {
#pragma unroll
    for (int i = 0; i < kMoeTokens / kMoeRowStep; ++i) {
      if (i * kMoeRowStep >= piece.count) break;  // tokens beyond are not multiplied
      const bool is_inside = x[i] != nullptr && k + column < in_dim;
      copy_16_async(stage + moe_tile_place(row + i * kMoeRowStep, column),
                    is_inside ? x[i] + k + column : matrix[0].data, is_inside);
    }
  }
  __device__ bool has_weights(int i, int k) const { return matrix_row(i) < row_count && k + column < in_dim; }
  __device__ const unsigned char* weights_at(int i, int k) const {
    const std::int64_t eights = (static_cast<std::int64_t>(matrix_row(i)) * in_dim + k + column) / 8;
    return static_cast<const unsigned char*>(matrix_of(i).data) + eights * Weights::kRawBytes;
  }
  /// bf16 alone.
  __device__ void copy_weights(std::uint16_t* stage, int k) const {
#pragma unroll
    for (int i = 0; i < kMoeRows / kMoeRowStep; ++i) {
      const bool is_inside = has_weights(i, k);
      copy_16_async(stage + moe_tile_place(kMoeTokens + row + i * kMoeRowStep, column),
                    is_inside ? weights_at(i, k) : matrix[0].data, is_inside);
    }
  }
  struct Raw {
    typename Weights::Raw weights[kMoeRows / kMoeRowStep];
    float scales[kMoeRows / kMoeRowStep];
  };
  /// The other types go by way of registers: load them, then store them later.
  __device__ void load_weights(Raw& raw, int k) const {
#pragma unroll
    for (int i = 0; i < kMoeRows / kMoeRowStep; ++i) {
      raw.weights[i] = {};
      raw.scales[i] = 0;
      if (!has_weights(i, k)) continue;
      raw.weights[i] = *reinterpret_cast<const typename Weights::Raw*>(weights_at(i, k));
      if (Weights::kType == DType::kI4) {
        raw.scales[i] =
            matrix_of(i)
                .scales[static_cast<std::int64_t>(matrix_row(i)) * (in_dim / group_size) + (k + column) / group_size];
      }
    }
  }
  __device__ void store_weights(std::uint16_t* stage, const Raw& raw) const {
#pragma unroll
    for (int i = 0; i < kMoeRows / kMoeRowStep; ++i) {
      Words<4> eight;
      if constexpr (Weights::kType == DType::kI4) {
        eight = unpack_scaled(raw.weights[i], raw.scales[i]);
      } else {
        eight = Weights::unpack(raw.weights[i]);
      }
      *reinterpret_cast<Words<4>*>(stage + moe_tile_place(kMoeTokens + row + i * kMoeRowStep, column)) = eight;
    }
  }
};

/// Rows of this group of lanes in the tile: 16, and 16 more.
template <bool kIsHidden>
__device__ inline int moe_group_row(int group, int half) {
  return kIsHidden ? group * 16 + half * (kMoeRows / 2) : group * 32 + half * 16;
}

/// sums[half][octet of tokens] += 64 inputs of a stage.
template <bool kIsHidden>
__device__ inline void multiply_moe_stage(float (&sums)[2][kMoeTokens / 8][4], const std::uint16_t* stage, int group,
                                          int count) {
#pragma unroll
  for (int part = 0; part < kMoeDepth / 16; ++part) {
    std::uint32_t w[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int first = kMoeTokens + moe_group_row<kIsHidden>(group, half);
      load_left(w[half], [&](int row, int column) { return stage + moe_tile_place(first + row, part * 16 + column); });
    }
#pragma unroll
    for (int two = 0; two < kMoeTokens / 16; ++two) {
      if (two * 16 >= count) break;
      std::uint32_t x[4];
      load_right(x, [&](int row, int column) { return stage + moe_tile_place(two * 16 + row, part * 16 + column); });
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply_16x8(sums[half][2 * two], w[half], x[0], x[1]);
        multiply_16x8(sums[half][2 * two + 1], w[half], x[2], x[3]);
      }
    }
  }
}

template <bool kIsHidden, class Weights, int kStages>
__global__ void __launch_bounds__(kMoeThreads, 3) moe_prefill_kernel(MoePlan plan) {
  using Tile = MoePrefillTile<kIsHidden, Weights>;
  constexpr bool kIsCopied = Weights::kType == DType::kBF16;
  constexpr int kOutRows = kIsHidden ? kMoeRows / 2 : kMoeRows, kOutStride = kOutRows + 8;
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row_tiles = row_tiles_of(plan.call, kIsHidden, kOutRows), block = static_cast<int>(blockIdx.x);
  const MoePiece piece = piece_of(plan, block / row_tiles);
  if (piece.count == 0) return;
  auto* shared = reinterpret_cast<std::uint16_t*>(dynamic_shared());
  const Tile tile(plan, piece, block % row_tiles * kOutRows);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kMatrixLanes, group = thread / kMatrixLanes;
  const int step_count = (tile.in_dim + kMoeDepth - 1) / kMoeDepth;
  typename Tile::Raw raw;
  const auto begin_stage = [&](int step) {
    std::uint16_t* stage = shared + step % kStages * kMoeStageElements;
    if (step < step_count) {
      tile.copy_tokens(stage, step * kMoeDepth);
      if constexpr (kIsCopied) {
        tile.copy_weights(stage, step * kMoeDepth);
      } else {
        tile.load_weights(raw, step * kMoeDepth);
      }
    }
    commit_copies();
  };
  const auto end_stage = [&](int step) {
    if constexpr (!kIsCopied) {
      if (step < step_count) tile.store_weights(shared + step % kStages * kMoeStageElements, raw);
    }
  };
  float sums[2][kMoeTokens / 8][4] = {};
  for (int step = 0; step < kStages - 1; ++step) {
    begin_stage(step);
    end_stage(step);
  }
  for (int step = 0; step < step_count; ++step) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    begin_stage(step + kStages - 1);
    multiply_moe_stage<kIsHidden>(sums, shared + step % kStages * kMoeStageElements, group, piece.count);
    end_stage(step + kStages - 1);
  }
  wait_for_copies<0>();
  __syncthreads();

  float factors[2][2];  // of the rows of sums[half]
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = i / 2,
              row = tile.first_row + moe_group_row<kIsHidden>(group, kIsHidden ? 0 : half) + lane / 4 + i % 2 * 8;
    factors[half][i % 2] = Weights::kType == DType::kI8 && row < tile.row_count ? tile.matrix[half].scales[row] : 1.0f;
  }
#pragma unroll
  for (int octet = 0; octet < kMoeTokens / 8; ++octet) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int token = octet * 8 + lane % 4 * 2 + e % 2, row = lane / 4 + e / 2 * 8;
      const float first = sums[0][octet][e] * factors[0][e / 2], second = sums[1][octet][e] * factors[1][e / 2];
      std::uint16_t* to = shared + token * kOutStride + moe_group_row<kIsHidden>(group, 0) + row;
      if constexpr (kIsHidden) {
        *to = to_bf16(silu(first) * second).bits;
      } else {
        to[0] = to_bf16(first).bits;
        to[16] = to_bf16(second).bits;
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < piece.count * (kOutRows / 8); i += kMoeThreads) {
    const int token = i / (kOutRows / 8), column = i % (kOutRows / 8) * 8;
    if (tile.first_row + column >= tile.row_count) continue;
    const std::int64_t place = piece.first + token;
    std::uint16_t* to = kIsHidden
                            ? plan.scratch.hidden + place * tile.row_count
                            : static_cast<std::uint16_t*>(plan.scratch.results) +
                                  static_cast<std::int64_t>(pair_at(plan, static_cast<int>(place))) * tile.row_count;
    *reinterpret_cast<Words<4>*>(to + tile.first_row + column) =
        *reinterpret_cast<const Words<4>*>(shared + token * kOutStride + column);
  }
}

}  // namespace cairn::gpu
