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

bool takes(const LinearArgs& args) {
  const LinearWeight& weight = *args.weight;
  return args.dtype == DType::kBF16 && weight.dtype == DType::kBF16 && weight.in_dim % 8 == 0 &&
         is_in_eights(args.in) && is_in_eights(weight.data, weight.in_dim);
}

unsigned blocks(int count, int each) { return static_cast<unsigned>((count + each - 1) / each); }

void run(BackendQueue* queue, const LinearArgs& args, void* scratch) {
  if (!takes(args)) return shared_linear.run(queue, args, scratch);
  const Launcher launcher(queue, "linear");
  const LinearBf16Args kernel_args = kernel_args_of(args);
  if (args.phase == Phase::kDecode) {
    return choose_linear_decode(kernel_args, [&](auto kernel, int threads, int tokens, int outputs) {
      launcher.early(kernel, dim3(blocks(kernel_args.out_dim, outputs), blocks(args.token_count, tokens)),
                     dim3(static_cast<unsigned>(threads)), 0, kernel_args);
    });
  }
  launcher(linear_prefill_kernel, dim3(blocks(kernel_args.out_dim, kOutputs), blocks(args.token_count, kTokens)), dim3(kThreads),
           kStages * kStageElements * sizeof(std::uint16_t), kernel_args);
}

}  // namespace

void override_linear_for_sm80(OpTable& ops) {
  shared_linear = ops.linear;
  ops.linear.run = run;
}

}  // namespace cairn::gpu
