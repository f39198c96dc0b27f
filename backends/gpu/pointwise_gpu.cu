// add, gate, swiglu, cross_layer_add: a thread owns one element.
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {
namespace {

/// The element that this thread owns; false: none.
__device__ inline bool own_element(int token_count, int dim, std::int64_t& t, int& i) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  t = index / dim;
  i = static_cast<int>(index % dim);
  return t < token_count;
}

__global__ void add_kernel(AddArgs args) {
  std::int64_t t;
  int i;
  if (!own_element(args.token_count, args.dim, t, i)) return;
  const float a = args.a.data ? load(args.a, args.dtype, t, i) : 0.0f;
  store(args.out, args.dtype, t, i, a + load(args.b, args.dtype, t, i) * (args.scale ? args.scale[t] : 1.0f));
}

__global__ void gate_kernel(GateArgs args) {
  std::int64_t t;
  int i;
  if (!own_element(args.token_count, args.dim, t, i)) return;
  store(args.out, args.dtype, t, i, load(args.x, args.dtype, t, i) * apply_gate(args.kind, load(args.z, args.dtype, t, i)));
}

__global__ void swiglu_kernel(SwigluArgs args) {
  std::int64_t t;
  int i;
  if (!own_element(args.token_count, args.dim, t, i)) return;
  store(args.out, args.dtype, t, i, silu(load(args.gate, args.dtype, t, i)) * load(args.up, args.dtype, t, i));
}

__global__ void cross_layer_add_kernel(CrossLayerAddArgs args) {
  std::int64_t t;
  int i;
  if (!own_element(args.token_count, args.head_count * args.dim, t, i)) return;
  const float gamma = args.gamma[i / args.dim * args.gamma_head_stride + i % args.dim * args.gamma_dim_stride];
  store(args.out, args.dtype, t, i, load(args.v, args.dtype, t, i) + gamma * load(args.side, args.dtype, t, i));
}

void run_add(BackendQueue* queue, const AddArgs& args, void*) {
  launch_elements(Launcher(queue, "add"), add_kernel, std::int64_t{args.token_count} * args.dim, args);
}
void run_gate(BackendQueue* queue, const GateArgs& args, void*) {
  launch_elements(Launcher(queue, "gate"), gate_kernel, std::int64_t{args.token_count} * args.dim, args);
}
void run_swiglu(BackendQueue* queue, const SwigluArgs& args, void*) {
  launch_elements(Launcher(queue, "swiglu"), swiglu_kernel, std::int64_t{args.token_count} * args.dim, args);
}
void run_cross_layer_add(BackendQueue* queue, const CrossLayerAddArgs& args, void*) {
  launch_elements(Launcher(queue, "cross_layer_add"), cross_layer_add_kernel, std::int64_t{args.token_count} * args.head_count * args.dim, args);
}

}  // namespace

void add_pointwise(OpTable& ops) {
  ops.add = {[](const AddArgs& args) { return require_activations("add", args.dtype); }, no_scratch<AddArgs>, run_add};
  ops.gate = {[](const GateArgs& args) { return require_activations("gate", args.dtype); }, no_scratch<GateArgs>, run_gate};
  ops.swiglu = {[](const SwigluArgs& args) { return require_activations("swiglu", args.dtype); }, no_scratch<SwigluArgs>, run_swiglu};
  ops.cross_layer_add = {[](const CrossLayerAddArgs& args) { return require_activations("cross_layer_add", args.dtype); }, no_scratch<CrossLayerAddArgs>, run_cross_layer_add};
}

}  // namespace cairn::gpu
