// linear decode for bf16 weights and activations on sm_90: chooses the form (linear_decode_sm90.cuh) for a token count.
// Not here: prefill, other element types, inputs that are no multiple of 64, unaligned rows: the operator that was
// there before takes them.
#include <algorithm>

#include "backends/cuda/cuda_overrides.h"
#include "backends/cuda/linear_decode_sm90.cuh"
#include "backends/cuda/tensor_map.h"
#include "backends/gpu/gpu_device.h"

namespace cairn::gpu {
namespace {

using namespace sm90;

Op<LinearArgs> replaced_linear;

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

bool describe(LinearBoxes* boxes, const LinearWeight& weight, int blocks) {
  const int rows = divide_up(weight.out_dim, blocks);
  const int most_rows = input_groups(weight) == 8 ? LinearDecodeForm<8, 1>::kMostRows : LinearDecodeForm<1, 1>::kMostRows;
  boxes->out_dim = weight.out_dim;
  boxes->pass_rows = divide_up(rows, divide_up(rows, most_rows));
  boxes->slabs = divide_up(weight.in_dim, 64 * input_groups(weight));
  return encode_row_slabs(&boxes->rows, {weight.data, weight.in_dim}, weight.out_dim, weight.in_dim,
                          static_cast<unsigned>(boxes->pass_rows), static_cast<unsigned>(input_groups(weight)));
}

template <int kInputGroups, int kTokenTiles>
void launch_form(const Launcher& launcher, const LinearArgs& call, LinearDecodeArgs args) {
  using Form = LinearDecodeForm<kInputGroups, kTokenTiles>;
  const int blocks = std::min(launcher.device().properties.multiprocessors, call.weight->out_dim);
  args.box_tokens = std::min(call.token_count, Form::kTokens);
  const bool is_good = describe(&args.weight, *call.weight, blocks) &&
                       encode_row_slabs(&args.tokens, call.in, call.token_count, call.weight->in_dim,
                                        static_cast<unsigned>(args.box_tokens), kInputGroups);
  if (!is_good) return note_error(launcher.queue(), cudaErrorInvalidValue, "linear: describing the rows");
  args.token_bytes = divide_up(args.weight.pass_rows * kInputGroups * 128, 1024) * 1024;
  args.stage_bytes = args.token_bytes + divide_up(args.box_tokens * kInputGroups * 128, 1024) * 1024;
  args.stages = std::min(Form::kRingBytes / args.stage_bytes, kLinearMostStages);
  const int shared_bytes = 1024 + args.stages * args.stage_bytes + static_cast<int>(sizeof(typename Form::Shared));
  launcher.early(linear_decode_sm90_kernel<kInputGroups, kTokenTiles>,
                 dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(divide_up(call.token_count, Form::kTokens))),
                 dim3(kLinearThreads), static_cast<std::size_t>(std::max(shared_bytes, kAloneBytes)), args);
}

template <int kInputGroups>
void launch(const Launcher& launcher, const LinearArgs& call, const LinearDecodeArgs& args) {
  if (call.token_count <= 8) return launch_form<kInputGroups, 1>(launcher, call, args);
  if (call.token_count <= 16) return launch_form<kInputGroups, 2>(launcher, call, args);
  if (call.token_count <= 32) return launch_form<kInputGroups, 4>(launcher, call, args);
  launch_form<kInputGroups, 8>(launcher, call, args);
}

void run(BackendQueue* queue, const LinearArgs& args, void* scratch) {
  const LinearWeight& weight = *args.weight;
  const bool is_decode = args.phase == Phase::kDecode && args.dtype == DType::kBF16 && is_in_eights(args.in);
  if (queue_of(queue).device->properties.major != 9 || !is_decode || !takes(weight)) {
    return replaced_linear.run(queue, args, scratch);
  }
  if (args.token_count == 0) return;
  const Launcher launcher(queue, "linear");
  LinearDecodeArgs decode = {};
  decode.call = kernel_args_of(args);
  if (input_groups(weight) == 8) return launch<8>(launcher, args, decode);
  launch<1>(launcher, args, decode);
}

}  // namespace

void override_linear_decode_for_sm90(OpTable& ops) {
  replaced_linear = ops.linear;
  ops.linear.run = run;
}

}  // namespace cairn::gpu
