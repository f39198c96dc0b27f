// linear prefill on sm_90: chooses the form (linear_prefill_sm90.cuh) for a token count and a weight.
// Takes bf16 activations and weights, inputs that are a multiple of 8, 16-byte aligned rows; the rest goes to the
// operator that was there before.
#include <iterator>

#include "backends/cuda/cuda_overrides.h"
#include "backends/cuda/linear_prefill_sm90.cuh"
#include "backends/cuda/linear_prefill_sm90.h"
#include "backends/cuda/tensor_map.h"
#include "backends/gpu/gpu_device.h"

namespace cairn::gpu {
namespace {

using namespace sm90;

Op<LinearArgs> replaced_linear;

int divide_up(int count, int each) { return (count + each - 1) / each; }

/// Cycles of a multiprocessor for its share of the tiles, for 64 inputs: products, or copies at 48 bytes a cycle.
template <int kTokens, int kGroups>
std::int64_t cost(int tokens, int outputs, int processors) {
  constexpr int kProducts = 2 * kTokens * kGroups, kCopies = LinearForm<kTokens, kGroups>::kStageBytes / 48;
  const std::int64_t tiles = std::int64_t{divide_up(tokens, kTokens)} * divide_up(outputs, 64 * kGroups);
  return (tiles + processors - 1) / processors * (kProducts > kCopies ? kProducts : kCopies);
}

template <int kTokens, int kGroups>
void launch_form(const Launcher& launcher, LinearPrefillArgs args, const ConstRows& in, const std::uint16_t* weight) {
  using Form = LinearForm<kTokens, kGroups>;
  const LinearBf16Args& call = args.call;
  args.token_tiles = divide_up(call.token_count, kTokens);
  args.out_tiles = divide_up(call.out_dim, Form::kOutputs);
  args.tokens_together = kTokens < 2048 ? 2048 / kTokens : 1;
  if (!encode_rows(&args.x, in, call.token_count, call.in_dim, kTokens) ||
      !encode_rows(&args.weight, {weight, call.in_dim}, call.out_dim, call.in_dim, Form::kOutputs)) {
    return note_error(launcher.queue(), cudaErrorInvalidValue, "linear: describing the rows");
  }
  const std::int64_t tiles = std::int64_t{args.token_tiles} * args.out_tiles;
  const std::int64_t most = std::int64_t{launcher.device().properties.multiprocessors} * Form::kBlocks;
  launcher.early(linear_prefill_sm90_kernel<kTokens, kGroups>, dim3(static_cast<unsigned>(tiles < most ? tiles : most)),
                 dim3(Form::kThreads), sizeof(typename Form::Shared), args);
}

bool takes(const LinearArgs& args) {
  const LinearWeight& weight = *args.weight;
  return args.phase == Phase::kPrefill && args.dtype == DType::kBF16 && weight.dtype == DType::kBF16 &&
         weight.in_dim % 8 == 0 && weight.in_dim > 0 && is_in_eights(args.in) &&
         is_in_eights(weight.data, weight.in_dim);
}

void run(BackendQueue* queue, const LinearArgs& args, void* scratch) {
  if (queue_of(queue).device->properties.major != 9 || !takes(args)) return replaced_linear.run(queue, args, scratch);
  run_linear_prefill(Launcher(queue, "linear"), args, static_cast<const std::uint16_t*>(args.weight->data), nullptr);
}

}  // namespace

void run_linear_prefill(const Launcher& launcher, const LinearArgs& args, const std::uint16_t* weight_rows,
                        const float* row_scales) {
  const LinearWeight& weight = *args.weight;
  if (args.token_count == 0 || weight.out_dim == 0) return;
  LinearPrefillArgs a = {};
  a.call = kernel_args_of(args);
  a.call.x = a.call.weight = nullptr;  // they come by tensor maps, the weight as bf16
  a.row_scales = row_scales;
  a.stores_eights = args.out_dtype == DType::kBF16 && weight.out_dim % 8 == 0 && is_in_eights(args.out);
  using Launch = void (*)(const Launcher&, LinearPrefillArgs, const ConstRows&, const std::uint16_t*);
  struct Choice {
    std::int64_t cost;
    Launch launch;
  };
  const int tokens = args.token_count, outputs = weight.out_dim,
            processors = launcher.device().properties.multiprocessors;
  const Choice choices[] = {{cost<256, 2>(tokens, outputs, processors), launch_form<256, 2>},
                            {cost<192, 2>(tokens, outputs, processors), launch_form<192, 2>},
                            {cost<160, 2>(tokens, outputs, processors), launch_form<160, 2>},
                            {cost<128, 2>(tokens, outputs, processors), launch_form<128, 2>},
                            {cost<64, 1>(tokens, outputs, processors), launch_form<64, 1>},
                            {cost<32, 1>(tokens, outputs, processors), launch_form<32, 1>}};
  const Choice* best = choices;
  if (tokens <= 64) best = &choices[4];  // one warpgroup a block
  for (const Choice* choice = best; choice != choices + std::size(choices); ++choice) {
    if (choice->cost < best->cost) best = choice;
  }
  best->launch(launcher, a, args.in, weight_rows);
}

void override_linear_prefill_for_sm90(OpTable& ops) {
  replaced_linear = ops.linear;
  ops.linear.run = run;
}

}  // namespace cairn::gpu
