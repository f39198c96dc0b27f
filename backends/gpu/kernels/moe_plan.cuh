// moe: what its kernels share: the table of expert matrices, the scratch, and the plan of one call.
//   Pair      (token t, its i-th choice) is number t k + i. Pairs are listed by expert, in their order within one.
//   Piece     up to `piece_tokens` neighbours of that list with the same expert: what a block multiplies by the
//             expert's matrix
#pragma once

#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {

inline constexpr int kMaxExperts = 1024, kCountedPairs = 1024, kMatricesAtOnce = 1536, kMatrixThreads = 512;

/// One expert matrix on the device.
struct ExpertMatrix {
  const void* data;
  const float* scales;
};
struct MoePiece {
  std::int32_t expert, first, count;  ///< pairs order[first .. first + count)
};

struct MoeScratch {
  ExpertMatrix* matrices;     ///< [3, E]: gate, up, down
  std::int32_t* chosen;       ///< [T, k]
  float* factors;             ///< [T, k]
  std::int32_t* order;        ///< [T k]: pairs by expert
  std::int32_t* found;        ///< [chunks of 1024 pairs, E]: pairs of an expert in a chunk; then its first place there
  std::int32_t* piece_count;  ///< [1]
  MoePiece* pieces;
  std::uint16_t* hidden;  ///< [T k, F] bf16, in the order of `order`
  void* results;          ///< [T k, D] by pair: bf16 in prefill, f32 in decode
  std::size_t size_bytes;
};

struct MoePlan {
  MoeArgs call;
  MoeScratch scratch;
  int pair_count, piece_tokens;
  DType weight_type;  ///< of every matrix
  std::int32_t group_size;
  bool out_in_eights;
};

/// Pieces of a plan, at most.
inline std::int64_t most_pieces(std::int64_t pairs, int experts, int piece_tokens) {
  const std::int64_t cut = pairs / piece_tokens + experts;
  return pairs < cut ? pairs : cut;
}

/// One token alone needs no list: every choice is a piece.
__device__ inline bool is_listed(const MoePlan& plan) { return plan.call.token_count > 1; }

__device__ inline MoePiece piece_of(const MoePlan& plan, int index) {
  if (!is_listed(plan)) return {plan.scratch.chosen[index], index, 1};
  if (index >= *plan.scratch.piece_count) return {0, 0, 0};
  return plan.scratch.pieces[index];
}
__device__ inline int pair_at(const MoePlan& plan, int place) {
  return is_listed(plan) ? plan.scratch.order[place] : place;
}

/// Blocks that a piece needs, each with `rows` rows of the result. Blocks of a piece are neighbours.
__host__ __device__ inline int row_tiles_of(const MoeArgs& args, bool is_hidden, int rows) {
  return ((is_hidden ? args.hidden_dim : args.dim) + rows - 1) / rows;
}

struct MatrixListArgs {
  ExpertMatrix* to;
  int count;
  ExpertMatrix matrices[kMatricesAtOnce];  ///< by value: a recorded step keeps them
};

__device__ inline void list_matrices(const MatrixListArgs& args) {
  for (int i = static_cast<int>(threadIdx.x); i < args.count; i += static_cast<int>(blockDim.x))
    args.to[i] = args.matrices[i];
}
__global__ void list_matrices_kernel(MatrixListArgs args) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  list_matrices(args);
}

// ---------------------------------------------------------------- pairs by expert

/// Calls visit(pair) for the pairs of [first, end) that chose `expert`, in order. `chosen`: shared memory of 1024; all
/// threads call, with their own expert.
template <class Visit>
__device__ inline void for_each_choice(const MoePlan& plan, int first, int expert, std::int32_t* chosen,
                                       const Visit& visit) {
  const int count = plan.pair_count - first < kCountedPairs ? plan.pair_count - first : kCountedPairs;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kCountedPairs; i += static_cast<int>(blockDim.x)) {
    chosen[i] = i < count ? plan.scratch.chosen[first + i] : -1;
  }
  __syncthreads();
#pragma unroll 8
  for (int i = 0; i < kCountedPairs; ++i) {
    if (chosen[i] == expert) visit(first + i);
  }
}

/// Grid: chunks of 1024 pairs; a thread for each expert.
__global__ void count_choices_kernel(MoePlan plan) {
  __shared__ std::int32_t chosen[kCountedPairs];
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int expert = static_cast<int>(threadIdx.x), chunk = static_cast<int>(blockIdx.x);
  int found = 0;
  for_each_choice(plan, chunk * kCountedPairs, expert, chosen, [&](int) { ++found; });
  if (expert < plan.call.expert_count)
    plan.scratch.found[static_cast<std::int64_t>(chunk) * plan.call.expert_count + expert] = found;
}

/// Sum of `value` over the threads before this one; `sums`: shared memory of two integers a thread.
__device__ inline int sum_before(int value, std::int32_t* sums) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  std::int32_t *from = sums, *to = sums + threads;
  __syncthreads();
  from[thread] = value;
  for (int distance = 1; distance < threads; distance *= 2) {
    __syncthreads();
    to[thread] = from[thread] + (thread >= distance ? from[thread - distance] : 0);
    std::int32_t* const swap = from;
    from = to, to = swap;
  }
  return from[thread] - value;
}

/// One block, a thread for each expert: first places, and the list of pieces.
__global__ void list_pieces_kernel(MoePlan plan) {
  __shared__ std::int32_t sums[2 * kMaxExperts];
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int expert = static_cast<int>(threadIdx.x), experts = plan.call.expert_count;
  const int chunks = (plan.pair_count + kCountedPairs - 1) / kCountedPairs;
  const bool is_expert = expert < experts;
  std::int32_t* found = plan.scratch.found + expert;
  int total = 0;
#pragma unroll 8
  for (int c = 0; c < chunks; ++c) {
    if (is_expert) total += found[static_cast<std::int64_t>(c) * experts];
  }
  const int first = sum_before(total, sums);
  const int pieces = (total + plan.piece_tokens - 1) / plan.piece_tokens;
  const int first_piece = sum_before(pieces, sums);
  if (!is_expert) return;
  int place = first;
  for (int c = 0; c < chunks; ++c) {
    const int here = found[static_cast<std::int64_t>(c) * experts];
    found[static_cast<std::int64_t>(c) * experts] = place;
    place += here;
  }
  for (int p = 0; p < pieces; ++p) {
    const int begin = p * plan.piece_tokens, left = total - begin;
    plan.scratch.pieces[first_piece + p] = {expert, first + begin, left < plan.piece_tokens ? left : plan.piece_tokens};
  }
  if (expert == experts - 1) *plan.scratch.piece_count = first_piece + pieces;
}

/// Grid as count_choices_kernel.
__global__ void place_choices_kernel(MoePlan plan) {
  __shared__ std::int32_t chosen[kCountedPairs];
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int expert = static_cast<int>(threadIdx.x), chunk = static_cast<int>(blockIdx.x);
  const bool is_expert = expert < plan.call.expert_count;
  int place = is_expert ? plan.scratch.found[static_cast<std::int64_t>(chunk) * plan.call.expert_count + expert] : 0;
  for_each_choice(plan, chunk * kCountedPairs, is_expert ? expert : kMaxExperts, chosen,
                  [&](int pair) { plan.scratch.order[place++] = pair; });
}

/// out[t] = sum over the choices, in their order.  A thread has eight neighbours, or one where rows are not in eights.
template <class Result>
__global__ void combine_choices_kernel(MoePlan plan) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const MoeArgs& args = plan.call;
  constexpr DType kType = sizeof(Result) == 4 ? DType::kF32 : DType::kBF16;
  const int each = plan.out_in_eights ? 8 : 1, in_row = args.dim / each;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, t = index / in_row;
  const int column = static_cast<int>(index % in_row) * each;
  if (t >= args.token_count) return;
  float sums[8] = {};
  for (int i = 0; i < args.top_k; ++i) {
    const std::int64_t pair = t * args.top_k + i;
    const float factor = plan.scratch.factors[pair];
    if (each == 1) {
      sums[0] += factor * load(plan.scratch.results, kType, pair * args.dim + column);
      continue;
    }
    float x[8];
    load_eight(plan.scratch.results, kType, pair * args.dim + column, x);
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[j] += factor * x[j];
  }
  if (each == 1) {
    store(args.out, args.dtype, t, column, sums[0]);
  } else {
    store_eight(args.out.data, args.dtype, t * args.out.stride + column, sums);
  }
}

}  // namespace cairn::gpu
