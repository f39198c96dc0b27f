// rms_norm, gated_rms_norm.  Traffic: each row once in, once out. Rows that come in 16-byte pieces stay in registers
// between the sum and the result; for others a block owns one head of one token and reads it twice. Weights are under
// way before the previous kernel has ended: no kernel writes them.
#include "backends/gpu/kernels/row_pieces.cuh"

namespace cairn::gpu {
namespace {

constexpr int kAheadPieces = 2;  // of a thread, whose weights are under way early: registers

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

// Registers for 4 blocks a multiprocessor: the norms of a decode step run beside the blocks of the next product.
template <int kGroup, int kPieces>
__global__ void __launch_bounds__(kRowThreads, 4) rms_norm_pieces_kernel(RmsNormArgs args) {
  __shared__ float partial[32];
  let_next_kernel_start();
  const RowPlace<kGroup, kPieces> place(args.token_count, args.head_count);
  const std::int64_t first = static_cast<std::int64_t>(place.head) * args.dim;
  float x[kPieces][8], weight[kPieces][8], squares = 0;
  if (kPieces <= kAheadPieces && args.weight) place.load_vector(args.weight, args.dim, weight);
  wait_for_previous_kernel();
  place.for_each_piece(args.dim, [&](int p, int column) {
    load_eight(args.in.data, args.dtype, place.t * args.in.stride + first + column, x[p]);
    for (int i = 0; i < 8; ++i) squares += x[p][i] * x[p][i];
  });
  const float scale = 1 / sqrtf(row_sum<kGroup>(squares, partial) / static_cast<float>(args.dim) + args.eps);
  place.for_each_piece(args.dim, [&](int p, int column) {
    if (kPieces > kAheadPieces && args.weight) load_eight(args.weight, DType::kF32, column, weight[p]);
    for (int i = 0; i < 8; ++i) x[p][i] *= args.weight ? scale * weight[p][i] : scale;
    store_eight(args.out.data, args.dtype, place.t * args.out.stride + first + column, x[p]);
  });
}

template <int kGroup, int kPieces>
__global__ void __launch_bounds__(kRowThreads, kPieces <= 2 ? 4 : 2)
    gated_rms_norm_pieces_kernel(GatedRmsNormArgs args) {
  __shared__ float partial[32];
  let_next_kernel_start();
  const RowPlace<kGroup, kPieces> place(args.token_count, args.head_count);
  const std::int64_t first = static_cast<std::int64_t>(place.head) * args.dim;
  const float count = static_cast<float>(args.dim);
  const bool is_gated = args.gate_kind != GateKind::kNone;
  constexpr bool kAhead = kPieces == 1;
  float x[kPieces][8], weight[kPieces][8], gate[kPieces][8], sum = 0, squares = 0;
  const auto load_gate = [&](int p, int column) {
    if (is_gated) load_eight(args.gate.data, args.dtype, place.t * args.gate.stride + first + column, gate[p]);
  };
  if (kAhead) place.load_vector(args.weight, args.dim, weight);
  wait_for_previous_kernel();
  if (kAhead) place.for_each_piece(args.dim, load_gate);
  place.for_each_piece(args.dim, [&](int p, int column) {
    load_eight(args.in.data, args.dtype, place.t * args.in.stride + first + column, x[p]);
    for (int i = 0; i < 8; ++i) sum += x[p][i];
  });
  const float mean = args.norm == NormKind::kLayerNorm ? row_sum<kGroup>(sum, partial) / count : 0.0f;
  place.for_each_piece(args.dim, [&](int p, int) {
    for (int i = 0; i < 8; ++i) x[p][i] -= mean, squares += x[p][i] * x[p][i];
  });
  const float scale = 1 / sqrtf(row_sum<kGroup>(squares, partial) / count + args.eps);
  place.for_each_piece(args.dim, [&](int p, int column) {
    float bias[8] = {};
    if (!kAhead) load_eight(args.weight, DType::kF32, column, weight[p]), load_gate(p, column);
    if (args.bias) load_eight(args.bias, DType::kF32, column, bias);
    for (int i = 0; i < 8; ++i) {
      x[p][i] = x[p][i] * scale * weight[p][i] + bias[i];
      if (is_gated) x[p][i] *= apply_gate(args.gate_kind, gate[p][i]);
    }
    store_eight(args.out.data, args.dtype, place.t * args.out.stride + first + column, x[p]);
  });
}

/// The kernel with as few pieces a thread as rows of `dim` need.
template <template <int, int> class Form>
auto form_of(int dim) {
  if (dim <= 8 * kLanesOfRow) return Form<kLanesOfRow, 1>::kernel;
  if (is_short_row(dim)) return Form<kLanesOfRow, kRowPieces>::kernel;
  if (dim <= 8 * kRowThreads) return Form<kRowThreads, 1>::kernel;
  return dim <= 16 * kRowThreads ? Form<kRowThreads, 2>::kernel : Form<kRowThreads, kRowPieces>::kernel;
}
template <int kGroup, int kPieces>
struct RmsNormForm {
  static constexpr auto kernel = rms_norm_pieces_kernel<kGroup, kPieces>;
};
template <int kGroup, int kPieces>
struct GatedRmsNormForm {
  static constexpr auto kernel = gated_rms_norm_pieces_kernel<kGroup, kPieces>;
};

void run_rms_norm(BackendQueue* queue, const RmsNormArgs& args, void*) {
  const Launcher launcher(queue, "rms_norm");
  const std::int64_t rows = std::int64_t{args.token_count} * args.head_count;
  const bool in_pieces = fits_row_pieces(args.dim) && is_in_eights(args.in) && is_in_eights(args.out) && is_in_eights(args.weight, 0);
  if (!in_pieces) return launch_rows(launcher, rms_norm_kernel, rows, args.dim, args);
  const auto kernel = form_of<RmsNormForm>(args.dim);
  launch_row_pieces(launcher, kernel, kernel, rows, args.dim, args);
}
void run_gated_rms_norm(BackendQueue* queue, const GatedRmsNormArgs& args, void*) {
  const Launcher launcher(queue, "gated_rms_norm");
  const std::int64_t rows = std::int64_t{args.token_count} * args.head_count;
  const bool in_pieces = fits_row_pieces(args.dim) && is_in_eights(args.in) && is_in_eights(args.out) && is_in_eights(args.gate) &&
                         is_in_eights(args.weight, 0) && is_in_eights(args.bias, 0);
  if (!in_pieces) return launch_rows(launcher, gated_rms_norm_kernel, rows, args.dim, args);
  const auto kernel = form_of<GatedRmsNormForm>(args.dim);
  launch_row_pieces(launcher, kernel, kernel, rows, args.dim, args);
}

}  // namespace

void add_rms_norm(OpTable& ops) {
  ops.rms_norm = {[](const RmsNormArgs& args) { return require_activations("rms_norm", args.dtype); }, no_scratch<RmsNormArgs>, run_rms_norm};
  ops.gated_rms_norm = {[](const GatedRmsNormArgs& args) { return require_activations("gated_rms_norm", args.dtype); }, no_scratch<GatedRmsNormArgs>, run_gated_rms_norm};
}

}  // namespace cairn::gpu
