// feature_map: rows in 16-byte pieces stay in registers; for others a block owns one head of one token.
// decay_gate: a thread owns one gate.
#include "backends/gpu/kernels/gate_values.cuh"
#include "backends/gpu/kernels/row_pieces.cuh"

namespace cairn::gpu {
namespace {

__global__ void feature_map_kernel(FeatureMapArgs args) {
  __shared__ float partial[32];
  const std::int64_t t = blockIdx.x / static_cast<unsigned>(args.head_count);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x % static_cast<unsigned>(args.head_count)) * args.dim;
  const int step = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const auto x = [&](int i) { return load(args.in, args.dtype, t, first + i) * args.scale; };
  float shift = 0, factor = args.out_scale;
  if (args.map == FeatureMap::kSoftmax) {
    float largest = -INFINITY;
    for (int i = thread; i < args.dim; i += step) largest = fmaxf(largest, x(i));
    shift = block_max(largest, partial);
  }
  if (args.map >= FeatureMap::kSoftmax) {
    float sum = 0;
    for (int i = thread; i < args.dim; i += step) {
      const float value = x(i);
      sum += args.map == FeatureMap::kSoftmax ? expf(value - shift) : args.map == FeatureMap::kL2 ? value * value : value;
    }
    sum = block_sum(sum, partial);
    factor *= args.map == FeatureMap::kL2 ? 1 / sqrtf(sum + 1e-6f) : 1 / sum;
  }
  for (int i = thread; i < args.dim; i += step) {
    const float value = args.map == FeatureMap::kSoftmax ? expf(x(i) - shift) : map_element(args.map, x(i));
    store(args.out, args.out_dtype, t, first + i, value * factor);
  }
}

template <int kGroup>
__global__ void feature_map_pieces_kernel(FeatureMapArgs args) {
  __shared__ float partial[32];
  let_next_kernel_start();
  wait_for_previous_kernel();
  const RowPlace<kGroup> place(args.token_count, args.head_count);
  const std::int64_t first = static_cast<std::int64_t>(place.head) * args.dim;
  float x[kRowPieces][8], largest = -INFINITY, sum = 0, factor = args.out_scale;
  place.for_each_piece(args.dim, [&](int p, int column) {
    load_eight(args.in.data, args.dtype, place.t * args.in.stride + first + column, x[p]);
    for (int i = 0; i < 8; ++i) {
      x[p][i] *= args.scale;
      largest = fmaxf(largest, x[p][i]);
    }
  });
  const bool is_softmax = args.map == FeatureMap::kSoftmax;
  if (is_softmax) largest = row_max<kGroup>(largest, partial);
  place.for_each_piece(args.dim, [&](int p, int) {
    for (int i = 0; i < 8; ++i) {
      x[p][i] = is_softmax ? expf(x[p][i] - largest) : map_element(args.map, x[p][i]);
      sum += args.map == FeatureMap::kL2 ? x[p][i] * x[p][i] : x[p][i];
    }
  });
  if (args.map >= FeatureMap::kSoftmax) {
    sum = row_sum<kGroup>(sum, partial);
    factor *= args.map == FeatureMap::kL2 ? 1 / sqrtf(sum + 1e-6f) : 1 / sum;
  }
  place.for_each_piece(args.dim, [&](int p, int column) {
    for (int i = 0; i < 8; ++i) x[p][i] *= factor;
    store_eight(args.out.data, args.out_dtype, place.t * args.out.stride + first + column, x[p]);
  });
}

__global__ void decay_gate_kernel(DecayGateArgs args) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int width = args.head_count * args.rows;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= static_cast<std::int64_t>(args.token_count) * width) return;
  const std::int64_t t = i / width;
  const int column = static_cast<int>(i % width);
  args.out[i] = log_decay_of(args, t, column);
}

const char* feature_map_reason(const FeatureMapArgs& args) {
  return first_reason({require_activations("feature_map", args.dtype), require_activations("feature_map", args.out_dtype)});
}
void run_feature_map(BackendQueue* queue, const FeatureMapArgs& args, void*) {
  const Launcher launcher(queue, "feature_map");
  const std::int64_t rows = std::int64_t{args.token_count} * args.head_count;
  const bool in_pieces = fits_row_pieces(args.dim) && is_in_eights(args.in) && is_in_eights(args.out);
  if (!in_pieces) return launch_rows(launcher, feature_map_kernel, rows, args.dim, args);
  launch_row_pieces(launcher, feature_map_pieces_kernel<kLanesOfRow>, feature_map_pieces_kernel<kRowThreads>, rows, args.dim, args);
}
void run_decay_gate(BackendQueue* queue, const DecayGateArgs& args, void*) {
  launch_elements_early(Launcher(queue, "decay_gate"), decay_gate_kernel, std::int64_t{args.token_count} * args.head_count * args.rows, args);
}

}  // namespace

void add_feature_map(OpTable& ops) {
  ops.feature_map = {feature_map_reason, no_scratch<FeatureMapArgs>, run_feature_map};
  ops.decay_gate = {[](const DecayGateArgs& args) { return require_activations("decay_gate", args.dtype); }, no_scratch<DecayGateArgs>, run_decay_gate};
}

}  // namespace cairn::gpu
