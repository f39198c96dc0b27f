// linear for bf16 weights and activations, by tensor cores: many tokens (linear_prefill_sm80.cuh) and few
// (linear_decode_sm80.cuh). A row's bits depend on the row, the weight and the phase.
// Not here: other element types, inputs that are no multiple of 8, unaligned rows: the shared operator takes them.
#include "backends/cuda/cuda_overrides.h"
#include "backends/cuda/linear_decode_sm80.cuh"
#include "backends/cuda/linear_prefill_sm80.cuh"
#include "backends/gpu/gpu_launch.h"

namespace cairn::gpu {
namespace {

Op<LinearArgs> shared_linear;

bool is_aligned(const void* pointer, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0 && stride % 8 == 0;
}

bool takes(const LinearArgs& args) {
  const LinearWeight& weight = *args.weight;
  return args.dtype == DType::kBF16 && weight.dtype == DType::kBF16 && weight.in_dim % 8 == 0 &&
         is_aligned(args.in.data, args.in.stride) && is_aligned(weight.data, weight.in_dim);
}

LinearBf16Args kernel_args_of(const LinearArgs& args) {
  const LinearWeight& weight = *args.weight;
  return {static_cast<const std::uint16_t*>(args.in.data), static_cast<const std::uint16_t*>(weight.data), weight.bias,
          args.out.data, args.in.stride, args.out.stride, args.token_count, weight.out_dim, weight.in_dim, args.accumulate,
          args.out_dtype == DType::kF32};
}

unsigned blocks(int count, int each) { return static_cast<unsigned>((count + each - 1) / each); }

/// Launches a form of decode that makes `out_dim` outputs.
auto launch_decode(const Launcher& launcher, const LinearBf16Args& args, int out_dim) {
  return [&launcher, &args, out_dim](auto kernel, int threads, int tokens, int outputs) {
    launcher.early(kernel, dim3(blocks(out_dim, outputs), blocks(args.token_count, tokens)), dim3(static_cast<unsigned>(threads)),
                   0, args);
  };
}

void run(BackendQueue* queue, const LinearArgs& args, void* scratch) {
  if (!takes(args)) return shared_linear.run(queue, args, scratch);
  const Launcher launcher(queue, "linear");
  const LinearBf16Args kernel_args = kernel_args_of(args);
  if (args.phase == Phase::kDecode) return choose_linear_decode(kernel_args, launch_decode(launcher, kernel_args, kernel_args.out_dim));
  launcher(linear_prefill_kernel, dim3(blocks(kernel_args.out_dim, kOutputs), blocks(args.token_count, kTokens)), dim3(kThreads),
           kStages * kStageElements * sizeof(std::uint16_t), kernel_args);
}

// ---------------------------------------------------------------- gate and up in one weight

const char* joined_unsupported_reason(const SwigluLinearArgs& args) {
  const LinearArgs& linear = args.linear;
  const LinearWeight& weight = *linear.weight;
  const bool takes_shape = linear.phase == Phase::kDecode && linear.token_count <= kJoinTokens && linear.dtype == DType::kBF16 &&
                           linear.out_dtype == DType::kBF16 && weight.dtype == DType::kBF16 && weight.in_dim % 8 == 0 &&
                           weight.out_dim % 2 == 0 && linear.in.stride % 8 == 0;
  return takes_shape ? nullptr : kNoFusedForm;
}

void run_joined(BackendQueue* queue, const SwigluLinearArgs& args, void*) {
  const Launcher launcher(queue, "swiglu_linear");
  const LinearBf16Args kernel_args = kernel_args_of(args.linear);
  choose_joined_linear_decode(kernel_args, launch_decode(launcher, kernel_args, kernel_args.out_dim / 2));
}

}  // namespace

void override_linear_for_sm80(OpTable& ops) {
  shared_linear = ops.linear;
  ops.linear.run = run;
  ops.swiglu_linear = {joined_unsupported_reason, no_scratch<SwigluLinearArgs>, run_joined};
}

}  // namespace cairn::gpu
