// rms_norm, gated_rms_norm: a block owns one head of one token.  Traffic: each row once in, once out.
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {
namespace {

__global__ void rms_norm_kernel(RmsNormArgs args) {
  __shared__ float partial[32];
  const std::int64_t t = blockIdx.x / static_cast<unsigned>(args.head_count);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x % static_cast<unsigned>(args.head_count)) * args.dim;
  const int step = static_cast<int>(blockDim.x);
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < args.dim; i += step) {
    const float x = load(args.in, args.dtype, t, first + i);
    squares += x * x;
  }
  const float scale = 1 / sqrtf(block_sum(squares, partial) / static_cast<float>(args.dim) + args.eps);
  for (int i = static_cast<int>(threadIdx.x); i < args.dim; i += step) {
    const float x = load(args.in, args.dtype, t, first + i);
    store(args.out, args.dtype, t, first + i, x * scale * (args.weight ? args.weight[i] : 1.0f));
  }
}

__global__ void gated_rms_norm_kernel(GatedRmsNormArgs args) {
  __shared__ float partial[32];
  const std::int64_t t = blockIdx.x / static_cast<unsigned>(args.head_count);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x % static_cast<unsigned>(args.head_count)) * args.dim;
  const int step = static_cast<int>(blockDim.x);
  const float count = static_cast<float>(args.dim);
  float mean = 0;
  if (args.norm == NormKind::kLayerNorm) {
    float sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < args.dim; i += step) sum += load(args.in, args.dtype, t, first + i);
    mean = block_sum(sum, partial) / count;
  }
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < args.dim; i += step) {
    const float x = load(args.in, args.dtype, t, first + i) - mean;
    squares += x * x;
  }
  const float scale = 1 / sqrtf(block_sum(squares, partial) / count + args.eps);
  for (int i = static_cast<int>(threadIdx.x); i < args.dim; i += step) {
    float y = (load(args.in, args.dtype, t, first + i) - mean) * scale * args.weight[i] + (args.bias ? args.bias[i] : 0.0f);
    if (args.gate_kind != GateKind::kNone) y *= apply_gate(args.gate_kind, load(args.gate, args.dtype, t, first + i));
    store(args.out, args.dtype, t, first + i, y);
  }
}

void run_rms_norm(BackendQueue* queue, const RmsNormArgs& args, void*) {
  launch_rows(Launcher(queue, "rms_norm"), rms_norm_kernel, std::int64_t{args.token_count} * args.head_count, args.dim, args);
}
void run_gated_rms_norm(BackendQueue* queue, const GatedRmsNormArgs& args, void*) {
  launch_rows(Launcher(queue, "gated_rms_norm"), gated_rms_norm_kernel, std::int64_t{args.token_count} * args.head_count, args.dim, args);
}

}  // namespace

void add_rms_norm(OpTable& ops) {
  ops.rms_norm = {[](const RmsNormArgs& args) { return require_activations("rms_norm", args.dtype); }, no_scratch<RmsNormArgs>, run_rms_norm};
  ops.gated_rms_norm = {[](const GatedRmsNormArgs& args) { return require_activations("gated_rms_norm", args.dtype); }, no_scratch<GatedRmsNormArgs>, run_gated_rms_norm};
}

}  // namespace cairn::gpu
