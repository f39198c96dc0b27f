// linear decode for bf16 weights and activations on sm_90: chooses the form (linear_decode_sm90.cuh) for a token count.
// Not here: prefill, other element types, inputs that are no multiple of 64, unaligned rows: the operator that was there
// before takes them.
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

bool takes(const LinearArgs& args) {
  const LinearWeight& weight = *args.weight;
  return args.phase == Phase::kDecode && args.dtype == DType::kBF16 && weight.dtype == DType::kBF16 && weight.in_dim % 64 == 0 &&
         weight.in_dim > 0 && is_in_eights(args.in) && is_in_eights(weight.data, weight.in_dim);
}

int divide_up(int count, int each) { return (count + each - 1) / each; }

template <int kInputGroups, int kTokenTiles>
void launch_form(const Launcher& launcher, LinearDecodeArgs args, const ConstRows& in) {
  using Form = LinearDecodeForm<kInputGroups, kTokenTiles>;
  const LinearBf16Args& call = args.call;
  const int blocks = std::min(launcher.device().properties.multiprocessors, call.out_dim), rows = divide_up(call.out_dim, blocks);
  args.pass_rows = divide_up(rows, divide_up(rows, Form::kMostRows));
  args.box_tokens = std::min(call.token_count, Form::kTokens);
  args.token_bytes = divide_up(args.pass_rows * kInputGroups * 128, 1024) * 1024;
  args.stage_bytes = args.token_bytes + divide_up(args.box_tokens * kInputGroups * 128, 1024) * 1024;
  args.stages = std::min(Form::kRingBytes / args.stage_bytes, kLinearMostStages);
  const ConstRows weight = {call.weight, call.in_dim};
  if (!encode_row_slabs(&args.weight, weight, call.out_dim, call.in_dim, args.pass_rows, kInputGroups) ||
      !encode_row_slabs(&args.tokens, in, call.token_count, call.in_dim, args.box_tokens, kInputGroups)) {
    return note_error(launcher.queue(), cudaErrorInvalidValue, "linear: describing the rows");
  }
  launcher.early(linear_decode_sm90_kernel<kInputGroups, kTokenTiles>,
                 dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(divide_up(call.token_count, Form::kTokens))),
                 dim3(kLinearThreads), sizeof(typename Form::Shared) + 1024, args);
}

template <int kInputGroups>
void launch(const Launcher& launcher, const LinearDecodeArgs& args, const ConstRows& in) {
  const int tokens = args.call.token_count;
  if (tokens <= 8) return launch_form<kInputGroups, 1>(launcher, args, in);
  if (tokens <= 16) return launch_form<kInputGroups, 2>(launcher, args, in);
  if (tokens <= 32) return launch_form<kInputGroups, 4>(launcher, args, in);
  launch_form<kInputGroups, 8>(launcher, args, in);
}

void run(BackendQueue* queue, const LinearArgs& args, void* scratch) {
  if (queue_of(queue).device->properties.major != 9 || !takes(args)) return replaced_linear.run(queue, args, scratch);
  const LinearWeight& weight = *args.weight;
  if (args.token_count == 0 || weight.out_dim == 0) return;
  const Launcher launcher(queue, "linear");
  LinearDecodeArgs decode = {};
  decode.call = {static_cast<const std::uint16_t*>(args.in.data),
                 static_cast<const std::uint16_t*>(weight.data),
                 weight.bias,
                 args.out.data,
                 args.in.stride,
                 args.out.stride,
                 args.token_count,
                 weight.out_dim,
                 weight.in_dim,
                 args.accumulate,
                 args.out_dtype == DType::kF32};
  if (weight.out_dim <= kFewOutputs) return launch<8>(launcher, decode, args.in);
  launch<1>(launcher, decode, args.in);
}

}  // namespace

void override_linear_decode_for_sm90(OpTable& ops) {
  replaced_linear = ops.linear;
  ops.linear.run = run;
}

}  // namespace cairn::gpu
