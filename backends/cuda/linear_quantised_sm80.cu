// linear for weights of i8 and i4 with bf16 activations. Decode: linear_quantised_decode_sm80.cuh. Prefill, on sm_90:
// the weights become bf16 in scratch, some rows at a time, and go through the bf16 kernels; i8 stays exact (its scales
// are factors of the sums), i4 is rounded after its scale. The conversion moves 2.5 to 3 bytes a weight: 10 % of the
// products at 2,048 tokens. Not here: inputs that are no multiple of 16 (i8) or 32 (i4), unaligned rows, prefill
// elsewhere.
#include "backends/cuda/cuda_overrides.h"
#include "backends/cuda/linear_prefill_sm90.h"
#include "backends/cuda/linear_quantised_decode_sm80.cuh"
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/weight_eights.cuh"

namespace cairn::gpu {
namespace {

constexpr std::int64_t kPanelBytes = 128 << 20;

Op<LinearArgs> replaced_linear;

struct ExpandArgs {
  const void* data;
  const float* scales;  ///< of i4
  std::int64_t eights;
  int in_dim, group_size;
  Words<4>* to;
};

/// Eight weights a thread, as bf16.
template <class Weights>
__global__ void expand_weights_kernel(ExpandArgs args) {
  let_next_kernel_start();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  Words<4> eight = {};
  if (i < args.eights) {
    const auto raw = static_cast<const typename Weights::Raw*>(args.data)[i];
    if constexpr (Weights::kType == DType::kI4) {
      eight = unpack_scaled(raw, args.scales[i * 8 / args.group_size]);  // groups do not cross rows
    } else {
      eight = Weights::unpack(raw);
    }
  }
  wait_for_previous_kernel();
  if (i < args.eights) args.to[i] = eight;
}

bool takes_shape(const LinearArgs& args) {
  const LinearWeight& weight = *args.weight;
  return args.dtype == DType::kBF16 && weight.in_dim > 0 &&
         ((weight.dtype == DType::kI8 && weight.in_dim % 16 == 0) ||
          (weight.dtype == DType::kI4 && weight.in_dim % 32 == 0));
}

bool takes(const LinearArgs& args, int major) {
  return takes_shape(args) && is_in_eights(args.in) && reinterpret_cast<std::uintptr_t>(args.weight->data) % 16 == 0 &&
         (args.phase == Phase::kDecode || major == 9);
}

int panel_rows(const LinearWeight& weight) {
  const std::int64_t rows = kPanelBytes / (std::int64_t{2} * weight.in_dim) / 128 * 128;
  return rows < 128 ? 128 : rows < weight.out_dim ? static_cast<int>(rows) : weight.out_dim;
}

std::size_t scratch_bytes(const LinearArgs& args) {
  const std::size_t replaced = replaced_linear.scratch_bytes(args);
  if (!takes_shape(args) || args.phase != Phase::kPrefill) return replaced;
  const std::size_t ours =
      static_cast<std::size_t>(panel_rows(*args.weight)) * static_cast<std::size_t>(args.weight->in_dim) * 2;
  return ours > replaced ? ours : replaced;
}

void run_prefill(const Launcher& launcher, const LinearArgs& args, void* scratch) {
  const LinearWeight& weight = *args.weight;
  const bool is_i8 = weight.dtype == DType::kI8;
  const int each = panel_rows(weight);
  for (int first = 0; first < weight.out_dim; first += each) {
    LinearWeight panel = weight;
    panel.out_dim = weight.out_dim - first < each ? weight.out_dim - first : each;
    if (weight.bias) panel.bias += first;
    const std::int64_t begin = std::int64_t{first} * weight.in_dim;
    const ExpandArgs expand{static_cast<const unsigned char*>(weight.data) + (is_i8 ? begin : begin / 2),
                            is_i8 ? nullptr : weight.scales + begin / weight.group_size,
                            std::int64_t{panel.out_dim} * weight.in_dim / 8,
                            weight.in_dim,
                            weight.group_size,
                            static_cast<Words<4>*>(scratch)};
    launch_elements_early(launcher, is_i8 ? expand_weights_kernel<I8Eights> : expand_weights_kernel<I4Eights>,
                          expand.eights, expand);
    LinearArgs part = args;
    part.weight = &panel;
    part.out.data =
        static_cast<unsigned char*>(args.out.data) + std::int64_t{first} * (args.out_dtype == DType::kF32 ? 4 : 2);
    run_linear_prefill(launcher, part, static_cast<const std::uint16_t*>(scratch),
                       is_i8 ? weight.scales + first : nullptr);
  }
}

void run(BackendQueue* queue, const LinearArgs& args, void* scratch) {
  if (!takes(args, queue_of(queue).device->properties.major)) return replaced_linear.run(queue, args, scratch);
  const Launcher launcher(queue, "linear");
  if (args.phase == Phase::kPrefill) {
    if (args.token_count > 0) run_prefill(launcher, args, scratch);
    return;
  }
  const LinearWeight& weight = *args.weight;
  const LinearQuantisedArgs kernel_args{{static_cast<const std::uint16_t*>(args.in.data), nullptr, weight.bias,
                                         args.out.data, args.in.stride, args.out.stride, args.token_count,
                                         weight.out_dim, weight.in_dim, args.accumulate, args.out_dtype == DType::kF32},
                                        static_cast<const unsigned char*>(weight.data),
                                        weight.scales,
                                        weight.group_size};
  const auto launch_decode = [&](auto kernel, int tokens) {
    const auto blocks = [](int count, int size) { return static_cast<unsigned>((count + size - 1) / size); };
    launcher.early(kernel, dim3(blocks(weight.out_dim, kQuantisedRows), blocks(args.token_count, tokens)),
                   dim3(kQuantisedWarps * 32), 0, kernel_args);
  };
  if (weight.dtype == DType::kI8) return choose_linear_quantised_decode<I8Rows>(args.token_count, launch_decode);
  choose_linear_quantised_decode<I4Rows>(args.token_count, launch_decode);
}

}  // namespace

void override_linear_quantised_for_sm80(OpTable& ops) {
  replaced_linear = ops.linear;
  ops.linear.scratch_bytes = scratch_bytes;
  ops.linear.run = run;
}

}  // namespace cairn::gpu
