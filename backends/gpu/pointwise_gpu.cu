// add, gate, swiglu, cross_layer_add: a thread owns eight neighbouring elements where rows come in 16-byte pieces, else one.
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {
namespace {

/// What a thread owns: kWidth elements from column i of token t.
template <int kWidth>
struct Elements {
  std::int64_t t;
  int i;
  bool is_inside;

  __device__ Elements(int token_count, int dim) {
    const std::int64_t index = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
    t = index / dim;
    i = static_cast<int>(index % dim);
    is_inside = t < token_count;
  }
  template <class AnyRows>
  __device__ void read(const AnyRows& rows, DType type, float (&x)[kWidth]) const {
    if constexpr (kWidth == 8) {
      load_eight(rows.data, type, t * rows.stride + i, x);
    } else {
      x[0] = load(rows, type, t, i);
    }
  }
  __device__ void write(const Rows& rows, DType type, const float (&x)[kWidth]) const {
    if constexpr (kWidth == 8) {
      store_eight(rows.data, type, t * rows.stride + i, x);
    } else {
      store(rows, type, t, i, x[0]);
    }
  }
};

template <int kWidth>
__global__ void add_kernel(AddArgs args) {
  let_next_kernel_start();
  const Elements<kWidth> own(args.token_count, args.dim);
  wait_for_previous_kernel();
  if (!own.is_inside) return;
  float a[kWidth] = {}, b[kWidth];
  if (args.a.data) own.read(args.a, args.dtype, a);
  own.read(args.b, args.dtype, b);
  const float scale = args.scale ? args.scale[own.t] : 1.0f;
  for (int j = 0; j < kWidth; ++j) a[j] += b[j] * scale;
  own.write(args.out, args.dtype, a);
}

template <int kWidth>
__global__ void gate_kernel(GateArgs args) {
  let_next_kernel_start();
  const Elements<kWidth> own(args.token_count, args.dim);
  wait_for_previous_kernel();
  if (!own.is_inside) return;
  float x[kWidth], z[kWidth];
  own.read(args.x, args.dtype, x);
  own.read(args.z, args.dtype, z);
  for (int j = 0; j < kWidth; ++j) x[j] *= apply_gate(args.kind, z[j]);
  own.write(args.out, args.dtype, x);
}

template <int kWidth>
__global__ void swiglu_kernel(SwigluArgs args) {
  let_next_kernel_start();
  const Elements<kWidth> own(args.token_count, args.dim);
  wait_for_previous_kernel();
  if (!own.is_inside) return;
  float gate[kWidth], up[kWidth];
  own.read(args.gate, args.dtype, gate);
  own.read(args.up, args.dtype, up);
  for (int j = 0; j < kWidth; ++j) gate[j] = silu(gate[j]) * up[j];
  own.write(args.out, args.dtype, gate);
}

template <int kWidth>
__global__ void cross_layer_add_kernel(CrossLayerAddArgs args) {
  let_next_kernel_start();
  const Elements<kWidth> own(args.token_count, args.head_count * args.dim);
  wait_for_previous_kernel();
  if (!own.is_inside) return;
  float v[kWidth], side[kWidth];
  own.read(args.v, args.dtype, v);
  own.read(args.side, args.dtype, side);
  for (int j = 0; j < kWidth; ++j) {
    const int i = own.i + j;
    v[j] += args.gamma[i / args.dim * args.gamma_head_stride + i % args.dim * args.gamma_dim_stride] * side[j];
  }
  own.write(args.out, args.dtype, v);
}

template <class Args>
void launch_wide(const Launcher& launcher, void (*narrow)(Args), void (*wide)(Args), bool is_wide, std::int64_t dim, const Args& args) {
  const std::int64_t elements = args.token_count * dim;
  if (is_wide && dim % 8 == 0) return launch_elements_early(launcher, wide, elements / 8, args);
  launch_elements_early(launcher, narrow, elements, args);
}

void run_add(BackendQueue* queue, const AddArgs& args, void*) {
  const bool is_wide = is_in_eights(args.b) && is_in_eights(args.out) && (!args.a.data || is_in_eights(args.a));
  launch_wide(Launcher(queue, "add"), add_kernel<1>, add_kernel<8>, is_wide, args.dim, args);
}
void run_gate(BackendQueue* queue, const GateArgs& args, void*) {
  const bool is_wide = is_in_eights(args.x) && is_in_eights(args.z) && is_in_eights(args.out);
  launch_wide(Launcher(queue, "gate"), gate_kernel<1>, gate_kernel<8>, is_wide, args.dim, args);
}
void run_swiglu(BackendQueue* queue, const SwigluArgs& args, void*) {
  const bool is_wide = is_in_eights(args.gate) && is_in_eights(args.up) && is_in_eights(args.out);
  launch_wide(Launcher(queue, "swiglu"), swiglu_kernel<1>, swiglu_kernel<8>, is_wide, args.dim, args);
}
void run_cross_layer_add(BackendQueue* queue, const CrossLayerAddArgs& args, void*) {
  const bool is_wide = is_in_eights(args.v) && is_in_eights(args.side) && is_in_eights(args.out);
  launch_wide(Launcher(queue, "cross_layer_add"), cross_layer_add_kernel<1>, cross_layer_add_kernel<8>, is_wide,
              std::int64_t{args.head_count} * args.dim, args);
}

}  // namespace

void add_pointwise(OpTable& ops) {
  ops.add = {[](const AddArgs& args) { return require_activations("add", args.dtype); }, no_scratch<AddArgs>, run_add};
  ops.gate = {[](const GateArgs& args) { return require_activations("gate", args.dtype); }, no_scratch<GateArgs>, run_gate};
  ops.swiglu = {[](const SwigluArgs& args) { return require_activations("swiglu", args.dtype); }, no_scratch<SwigluArgs>, run_swiglu};
  ops.cross_layer_add = {[](const CrossLayerAddArgs& args) { return require_activations("cross_layer_add", args.dtype); },
                         no_scratch<CrossLayerAddArgs>, run_cross_layer_add};
}

}  // namespace cairn::gpu
