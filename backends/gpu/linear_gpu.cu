// linear, any element types: a block owns a tile of 64 tokens by 64 outputs and walks over the inputs 16 at a time.
// Each output is one thread's f32 sum, of 16 inputs and then of these sums, in their order: a row's bits depend on nothing
// but the row, and long rows lose little (5,696 inputs one by one: 2.7e-6 of the largest output).
// Architectures replace it for bf16.
//   Launch   grid (ceil(out / 64), ceil(T / 64)), 256 threads, 4 x 4 outputs each
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {
namespace {

constexpr int kTile = 64, kDepth = 16, kEach = 4;

struct LinearKernelArgs {
  LinearArgs call;
  LinearWeight weight;  ///< members are device pointers
};

__global__ void linear_kernel(LinearKernelArgs kernel_args) {
  const LinearArgs& args = kernel_args.call;
  const LinearWeight& weight = kernel_args.weight;
  __shared__ float x_tile[kDepth][kTile + 1];
  __shared__ float w_tile[kDepth][kTile + 1];
  const int thread = static_cast<int>(threadIdx.x), column = thread % (kTile / kEach), row = thread / (kTile / kEach);
  const int first_out = static_cast<int>(blockIdx.x) * kTile, first_token = static_cast<int>(blockIdx.y) * kTile;
  float sums[kEach][kEach] = {};
  for (int k = 0; k < weight.in_dim; k += kDepth) {
    for (int i = thread; i < kTile * kDepth; i += static_cast<int>(blockDim.x)) {
      const int depth = i % kDepth, index = i / kDepth;
      const bool is_inside = k + depth < weight.in_dim;
      const int token = first_token + index, out = first_out + index;
      x_tile[depth][index] = is_inside && token < args.token_count ? load(args.in, args.dtype, token, k + depth) : 0.0f;
      w_tile[depth][index] = is_inside && out < weight.out_dim ? weight_value(weight, out, k + depth) : 0.0f;
    }
    __syncthreads();
    float parts[kEach][kEach] = {};
    for (int depth = 0; depth < kDepth; ++depth) {
      for (int i = 0; i < kEach; ++i) {
        for (int j = 0; j < kEach; ++j) parts[i][j] += x_tile[depth][row * kEach + i] * w_tile[depth][column + j * (kTile / kEach)];
      }
    }
    for (int i = 0; i < kEach; ++i) {
      for (int j = 0; j < kEach; ++j) sums[i][j] += parts[i][j];
    }
    __syncthreads();
  }
  for (int i = 0; i < kEach; ++i) {
    for (int j = 0; j < kEach; ++j) {
      const int token = first_token + row * kEach + i, out = first_out + column + j * (kTile / kEach);
      if (token >= args.token_count || out >= weight.out_dim) continue;
      float y = sums[i][j] + (weight.bias ? weight.bias[out] : 0.0f);
      if (args.accumulate) y += load(args.out, args.out_dtype, token, out);
      store(args.out, args.out_dtype, token, out, y);
    }
  }
}

const char* unsupported_reason(const LinearArgs& args) {
  return first_reason({require_activations("linear", args.dtype), require_activations("linear", args.out_dtype),
                       require_range("linear", "token_count", args.token_count, 0, 65535 * kTile)});  // the grid in y
}

void run(BackendQueue* queue, const LinearArgs& args, void*) {
  const dim3 grid(static_cast<unsigned>((args.weight->out_dim + kTile - 1) / kTile), static_cast<unsigned>((args.token_count + kTile - 1) / kTile));
  Launcher(queue, "linear")(linear_kernel, grid, dim3(256), 0, LinearKernelArgs{args, *args.weight});
}

}  // namespace

void add_linear(OpTable& ops) {
  ops.linear = {unsupported_reason, no_scratch<LinearArgs>, run};
  ops.linear_swiglu = no_fused_form<LinearArgs>();
}

}  // namespace cairn::gpu
