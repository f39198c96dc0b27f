// linear decode for bf16 weights and activations on sm_90: chooses the form (linear_decode_sm90.cuh) for a token count.
// Not here: prefill, other element types, inputs that are no multiple of 64, unaligned rows: the operator that was
// there before takes them. linear_swiglu of such weights is the same kernel with another end.
#include <algorithm>

#include "backends/cuda/cuda_overrides.h"
#include "backends/cuda/linear_decode_sm90.cuh"
#include "backends/cuda/tensor_map.h"
#include "backends/gpu/gpu_launch.h"
#include "backends/interface/scratch_layout.h"

namespace cairn::gpu {
namespace {

using namespace sm90;

Op<LinearArgs> replaced_linear;
Op<SwigluArgs> swiglu;

/// 32 for each of 132 multiprocessors. A constant: a weight's bits shall not depend on the chip.
constexpr int kFewOutputs = 4224;
/// More than half of a multiprocessor's 228 KB: two blocks do not meet there, however few stages a block has.
constexpr int kAloneBytes = 116 * 1024;

bool takes(const LinearWeight& weight) {
  return weight.dtype == DType::kBF16 && weight.in_dim % 64 == 0 && weight.in_dim > 0 && weight.out_dim > 0 &&
         is_in_eights(weight.data, weight.in_dim);
}

int divide_up(int count, int each) { return (count + each - 1) / each; }

int input_groups(const LinearWeight& weight) { return weight.out_dim <= kFewOutputs ? 8 : 1; }

bool describe(LinearBoxes* boxes, const LinearWeight& weight, int parts, int blocks) {
  const int part_rows = weight.out_dim / parts, rows = divide_up(part_rows, blocks), groups = input_groups(weight);
  const int most_rows = groups == 8 ? LinearDecodeForm<8, 1>::kMostRows : LinearDecodeForm<1, 1>::kMostRows;
  boxes->block_rows = part_rows / blocks;
  boxes->blocks_with_one_more = part_rows % blocks;
  boxes->passes = divide_up(rows, most_rows / parts);
  boxes->pass_rows = divide_up(rows, boxes->passes);
  boxes->slabs = divide_up(weight.in_dim, 64 * groups);
  const ConstRows lines = {weight.data, weight.in_dim};
  const auto box_rows = static_cast<unsigned>(boxes->pass_rows), box_groups = static_cast<unsigned>(groups);
  if (parts == 1) return encode_row_slabs(&boxes->rows, lines, part_rows, weight.in_dim, box_rows, box_groups);
  return encode_row_slabs_of_parts(&boxes->rows, lines, part_rows, static_cast<unsigned>(parts), weight.in_dim, box_rows, box_groups);
}

template <int kInputGroups, int kTokenTiles, int kParts>
void launch_form(const Launcher& launcher, const LinearArgs& call) {
  using Form = LinearDecodeForm<kInputGroups, kTokenTiles>;
  LinearDecodeArgs args = {};
  args.call = kernel_args_of(call);
  const int blocks = std::min(launcher.device().properties.multiprocessors, call.weight->out_dim / kParts);
  args.box_tokens = std::min(call.token_count, Form::kTokens);
  const bool is_good = describe(&args.weight, *call.weight, kParts, blocks) &&
                       encode_row_slabs(&args.tokens, call.in, call.token_count, call.weight->in_dim,
                                        static_cast<unsigned>(args.box_tokens), kInputGroups);
  if (!is_good) return note_error(launcher.queue(), cudaErrorInvalidValue, "linear: describing the rows");
  args.token_bytes = divide_up(args.weight.pass_rows * kParts * kInputGroups * 128, 1024) * 1024;
  args.stage_bytes = args.token_bytes + divide_up(args.box_tokens * kInputGroups * 128, 1024) * 1024;
  args.stages = std::min(Form::kRingBytes / args.stage_bytes, kLinearMostStages);
  const int shared_bytes = 1024 + args.stages * args.stage_bytes + static_cast<int>(sizeof(typename Form::Shared));
  launcher.early(linear_decode_sm90_kernel<kInputGroups, kTokenTiles, kParts>,
                 dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(divide_up(call.token_count, Form::kTokens))),
                 dim3(kLinearThreads), static_cast<std::size_t>(std::max(shared_bytes, kAloneBytes)), args);
}

template <int kInputGroups, int kParts>
void launch(const Launcher& launcher, const LinearArgs& call) {
  if (call.token_count <= 8) return launch_form<kInputGroups, 1, kParts>(launcher, call);
  if (call.token_count <= 16) return launch_form<kInputGroups, 2, kParts>(launcher, call);
  if (call.token_count <= 32) return launch_form<kInputGroups, 4, kParts>(launcher, call);
  launch_form<kInputGroups, 8, kParts>(launcher, call);
}

bool takes_call(BackendQueue* queue, const LinearArgs& args) {
  return queue_of(queue).device->properties.major == 9 && args.phase == Phase::kDecode && args.dtype == DType::kBF16 &&
         is_in_eights(args.in) && takes(*args.weight);
}

void run(BackendQueue* queue, const LinearArgs& args, void* scratch) {
  if (!takes_call(queue, args)) return replaced_linear.run(queue, args, scratch);
  if (args.token_count == 0) return;
  const Launcher launcher(queue, "linear");
  if (input_groups(*args.weight) == 8) return launch<8, 1>(launcher, args);
  launch<1, 1>(launcher, args);
}

// ---------------------------------------------------------------- linear_swiglu

/// Of shapes alone: a device or rows that the kernel does not take get the parts.
const char* swiglu_unsupported_reason(const LinearArgs& args) {
  const LinearWeight& weight = *args.weight;
  const bool is_taken = args.phase == Phase::kDecode && args.dtype == DType::kBF16 && args.out_dtype == args.dtype &&
                        !args.accumulate && weight.dtype == DType::kBF16 && weight.in_dim % 64 == 0 && weight.out_dim % 2 == 0;
  return is_taken ? replaced_linear.unsupported_reason(args) : kNoFusedForm;
}

std::uint16_t* both_halves(const LinearArgs& args, ScratchLayout& layout) {
  return layout.take<std::uint16_t>(static_cast<std::size_t>(args.token_count) * static_cast<std::size_t>(args.weight->out_dim));
}

std::size_t swiglu_scratch_bytes(const LinearArgs& args) {
  ScratchLayout layout(nullptr);
  both_halves(args, layout);
  return layout.size_bytes();
}

void run_swiglu(BackendQueue* queue, const LinearArgs& args, void* scratch) {
  if (args.token_count == 0) return;
  if (takes_call(queue, args)) {
    const Launcher launcher(queue, "linear_swiglu");
    if (input_groups(*args.weight) == 8) return launch<8, 2>(launcher, args);
    return launch<1, 2>(launcher, args);
  }
  ScratchLayout layout(scratch);
  const std::int32_t width = args.weight->out_dim;
  std::uint16_t* both = both_halves(args, layout);
  LinearArgs linear = args;
  linear.out = {both, width};
  run(queue, linear, nullptr);
  swiglu.run(queue, {args.dtype, args.token_count, width / 2, {both, width}, {both + width / 2, width}, args.out}, nullptr);
}

}  // namespace

void override_linear_decode_for_sm90(OpTable& ops) {
  replaced_linear = ops.linear;
  swiglu = ops.swiglu;
  ops.linear.run = run;
  ops.linear_swiglu = {swiglu_unsupported_reason, swiglu_scratch_bytes, run_swiglu};
}

}  // namespace cairn::gpu
