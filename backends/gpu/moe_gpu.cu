// moe: route; list the pairs by expert; hidden values and results of every pair; then each token's sum in the order of
// its choices. bf16 activations with weights of bf16, i8 or i4, all of one kind, go through matrix products
// (moe_prefill.cuh, many tokens; moe_decode.cuh, few); the rest through moe_general.cuh. Nothing is read back: grids
// are for the most pieces that there can be, and blocks without one end at once.
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/moe_decode.cuh"
#include "backends/gpu/kernels/moe_general.cuh"
#include "backends/gpu/kernels/moe_prefill.cuh"
#include "backends/gpu/kernels/moe_route.cuh"
#include "backends/interface/scratch_layout.h"

namespace cairn::gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31) - 1, kMaxWarps = 4 * kMaxBlocks;  // 4 a block

std::int64_t pairs_of(const MoeArgs& args) { return std::int64_t{args.token_count} * args.top_k; }
std::int64_t chunks_of(const MoeArgs& args) { return (pairs_of(args) + kCountedPairs - 1) / kCountedPairs; }
int piece_tokens_of(const MoeArgs& args) { return args.phase == Phase::kPrefill ? kMoeTokens : kFewTokens; }

const LinearWeight& matrix_of(const MoeArgs& args, int i) {
  const LinearWeight* const kinds[] = {args.gate, args.up, args.down};
  return kinds[i / args.expert_count][i % args.expert_count];
}

/// Element types and sizes that the matrix products take; pointers are another question.
bool takes_shape(const MoeArgs& args) {
  if (args.dtype != DType::kBF16 || args.dim % 8 != 0 || args.hidden_dim % 8 != 0) return false;
  const LinearWeight& first = args.gate[0];
  if (first.dtype != DType::kBF16 && first.dtype != DType::kI8 && first.dtype != DType::kI4) return false;
  for (int i = 0; i < 3 * args.expert_count; ++i) {
    const LinearWeight& weight = matrix_of(args, i);
    if (weight.dtype != first.dtype || weight.group_size != first.group_size) return false;
  }
  return true;
}
bool takes_pointers(const MoeArgs& args) {
  if (!is_in_eights(args.in)) return false;
  for (int i = 0; i < 3 * args.expert_count; ++i) {
    if (reinterpret_cast<std::uintptr_t>(matrix_of(args, i).data) % 16 != 0) return false;
  }
  return true;
}

struct GeneralScratch {
  std::int32_t* chosen;
  float* factors;
  float* hidden;
  LinearWeight* weights;
};

GeneralScratch carve_general(const MoeArgs& args, ScratchLayout& layout) {
  const auto pairs = static_cast<std::size_t>(pairs_of(args));
  GeneralScratch pieces{};
  pieces.chosen = layout.take<std::int32_t>(pairs);
  pieces.factors = layout.take<float>(pairs);
  pieces.hidden = layout.take<float>(pairs * static_cast<std::size_t>(args.hidden_dim));
  pieces.weights = layout.take<LinearWeight>(3 * static_cast<std::size_t>(args.expert_count));
  return pieces;
}

MoeScratch carve(const MoeArgs& args, ScratchLayout& layout) {
  const auto pairs = static_cast<std::size_t>(pairs_of(args)), experts = static_cast<std::size_t>(args.expert_count);
  MoeScratch scratch{};
  scratch.matrices = layout.take<ExpertMatrix>(3 * experts);
  scratch.chosen = layout.take<std::int32_t>(pairs);
  scratch.factors = layout.take<float>(pairs);
  scratch.order = layout.take<std::int32_t>(pairs);
  scratch.found = layout.take<std::int32_t>(static_cast<std::size_t>(chunks_of(args)) * experts);
  scratch.piece_count = layout.take<std::int32_t>(1);
  scratch.pieces = layout.take<MoePiece>(
      static_cast<std::size_t>(most_pieces(pairs_of(args), args.expert_count, piece_tokens_of(args))));
  scratch.hidden = layout.take<std::uint16_t>(pairs * static_cast<std::size_t>(args.hidden_dim));
  const std::size_t result_bytes = args.phase == Phase::kPrefill ? 2 : 4;
  scratch.results = layout.take<unsigned char>(pairs * static_cast<std::size_t>(args.dim) * result_bytes);
  return scratch;
}

const char* unsupported_reason(const MoeArgs& args) {
  const std::int64_t pairs = pairs_of(args);
  return first_reason(
      {require_activations("moe", args.dtype), require_range("moe", "expert_count", args.expert_count, 1, kMaxExperts),
       require_range("moe", "top_k", args.top_k, 1, args.expert_count),
       require_range("moe", "choices of all tokens", pairs, 0, kMaxBlocks),
       require_range("moe", "hidden values of all tokens", pairs * args.hidden_dim, 0, kMaxWarps),
       require_range("moe", "output values of all tokens", std::int64_t{args.token_count} * args.dim, 0, kMaxWarps)});
}

std::size_t scratch_bytes(const MoeArgs& args) {
  ScratchLayout general(nullptr), ours(nullptr);
  carve_general(args, general);
  if (takes_shape(args)) carve(args, ours);
  return general.size_bytes() > ours.size_bytes() ? general.size_bytes() : ours.size_bytes();
}

MatrixListArgs list_of(const MoeArgs& args, ExpertMatrix* table, int first) {
  MatrixListArgs list;
  const int left = 3 * args.expert_count - first;
  list.to = table + first;
  list.count = left < kMatricesAtOnce ? left : kMatricesAtOnce;
  for (int i = 0; i < list.count; ++i) {
    const LinearWeight& weight = matrix_of(args, first + i);
    list.matrices[i] = {weight.data, weight.scales};
  }
  return list;
}

/// Chooses experts, and writes the table of matrices where the plan has one.
void route(const Launcher& launcher, const MoePlan& plan) {
  MoeRouteArgs route{plan, {}};
  unsigned blocks = static_cast<unsigned>((plan.call.token_count + kRoutedTokens - 1) / kRoutedTokens);
  if (plan.scratch.matrices != nullptr) {
    route.list = list_of(plan.call, plan.scratch.matrices, 0);
    ++blocks;
  }
  launcher.early(route_experts_kernel, dim3(blocks), dim3(kRoutedTokens * kRouteLanes), 0, route);
  if (plan.scratch.matrices == nullptr) return;
  for (int first = kMatricesAtOnce; first < 3 * plan.call.expert_count; first += kMatricesAtOnce) {
    launcher.early(list_matrices_kernel, dim3(1), dim3(kMatrixThreads), 0,
                   list_of(plan.call, plan.scratch.matrices, first));
  }
}

void run_general(const Launcher& launcher, const MoeArgs& args, void* memory) {
  ScratchLayout layout(memory);
  const GeneralScratch scratch = carve_general(args, layout);
  MoePlan plan{};
  plan.call = args;
  plan.scratch.chosen = scratch.chosen;
  plan.scratch.factors = scratch.factors;
  const MoeGeneralArgs general{args, scratch.chosen, scratch.factors, scratch.hidden, scratch.weights};
  const auto experts = static_cast<std::size_t>(args.expert_count);
  launcher.copy(scratch.weights, args.gate, experts * sizeof(LinearWeight));
  launcher.copy(scratch.weights + experts, args.up, experts * sizeof(LinearWeight));
  launcher.copy(scratch.weights + 2 * experts, args.down, experts * sizeof(LinearWeight));
  route(launcher, plan);
  // Warps of 32 at least: a grid for 32 covers 64 too, with blocks that have nothing to do.
  const std::int64_t per_block = kThreads / 64;
  const auto blocks = [&](std::int64_t warps) {
    return dim3(static_cast<unsigned>((warps + per_block - 1) / per_block));
  };
  launcher(expert_hidden_kernel, blocks(pairs_of(args) * args.hidden_dim), dim3(kThreads), 0, general);
  launcher(expert_output_kernel, blocks(std::int64_t{args.token_count} * args.dim), dim3(kThreads), 0, general);
}

void list_pairs(const Launcher& launcher, const MoePlan& plan) {
  const auto chunks = static_cast<unsigned>(chunks_of(plan.call)),
             threads = static_cast<unsigned>((plan.call.expert_count + 63) / 64 * 64);
  launcher.early(count_choices_kernel, dim3(chunks), dim3(threads), 0, plan);
  launcher.early(list_pieces_kernel, dim3(1), dim3(threads), 0, plan);
  launcher.early(place_choices_kernel, dim3(chunks), dim3(threads), 0, plan);
}

void run_products(const Launcher& launcher, const MoeArgs& args, void* memory) {
  ScratchLayout layout(memory);
  MoePlan plan{args,
               carve(args, layout),
               static_cast<int>(pairs_of(args)),
               piece_tokens_of(args),
               args.gate[0].dtype,
               args.gate[0].group_size,
               is_in_eights(args.out)};
  route(launcher, plan);
  if (args.token_count > 1) list_pairs(launcher, plan);
  const std::int64_t pieces = most_pieces(pairs_of(args), args.expert_count, plan.piece_tokens);
  const auto grid = [&](bool is_hidden, int rows) {
    return dim3(static_cast<unsigned>(pieces * row_tiles_of(args, is_hidden, rows)));
  };
  with_weight_eights(plan.weight_type, [&](auto eights) {
    using Weights = decltype(eights);
    if (args.phase == Phase::kPrefill) {
      const auto prefill = [&](auto hidden, auto results, std::size_t shared_bytes) {
        launcher.early(hidden, grid(true, kMoeRows / 2), dim3(kMoeThreads), shared_bytes, plan);
        launcher.early(results, grid(false, kMoeRows), dim3(kMoeThreads), shared_bytes, plan);
      };
      const auto room = static_cast<std::size_t>(launcher.device().properties.shared_bytes_per_block);
      if (moe_shared_bytes(kMoeStages) <= room) {
        prefill(moe_prefill_kernel<true, Weights, kMoeStages>, moe_prefill_kernel<false, Weights, kMoeStages>,
                moe_shared_bytes(kMoeStages));
      } else {
        prefill(moe_prefill_kernel<true, Weights, kMoeLeastStages>, moe_prefill_kernel<false, Weights, kMoeLeastStages>,
                moe_shared_bytes(kMoeLeastStages));
      }
    } else {
      launcher.early(moe_decode_kernel<true, Weights>, grid(true, kFewTokens), dim3(kMoeDecodeThreads), 0, plan);
      launcher.early(moe_decode_kernel<false, Weights>, grid(false, 32), dim3(kMoeDecodeThreads), 0, plan);
    }
  });
  const std::int64_t elements = std::int64_t{args.token_count} * args.dim / (plan.out_in_eights ? 8 : 1);
  launch_elements_early(
      launcher, args.phase == Phase::kPrefill ? combine_choices_kernel<std::uint16_t> : combine_choices_kernel<float>,
      elements, plan);
}

void run(BackendQueue* queue, const MoeArgs& args, void* scratch) {
  if (args.token_count == 0) return;
  const Launcher launcher(queue, "moe");
  if (takes_shape(args) && takes_pointers(args)) return run_products(launcher, args, scratch);
  run_general(launcher, args, scratch);
}

}  // namespace

void add_moe(OpTable& ops) { ops.moe = {unsupported_reason, scratch_bytes, run}; }

}  // namespace cairn::gpu
