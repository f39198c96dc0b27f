// delta_inputs: 32 lanes own one head of one token, 8 channels each: convolution of 4 taps, silu, and for q and k the l2 norm;
// one more group of lanes has a token's gates. Every sum and rounding is that of short_conv_decode_kernel, of
// feature_map_pieces_kernel and of decay_gate_kernel.
//   Traffic  the tails twice, weights once a token; one launch in the place of four
#include "backends/gpu/kernels/gate_values.cuh"
#include "backends/gpu/kernels/row_pieces.cuh"

namespace cairn::gpu {
namespace {

constexpr int kTaps = 4, kThreads = 128, kGroups = kThreads / kLanesOfRow;

/// 8 channels of one token; y is rounded to the element type, as it is stored.
__device__ inline void convolve_piece(const ShortConvArgs& args, float* tail, int t, int c,
                                      const float (&weight)[8][kTaps], float (&y)[8]) {
  float x[8], held[kTaps - 1][8];
  load_eight(args.in.data, args.dtype, t * args.in.stride + c, x);
#pragma unroll
  for (int j = 0; j < kTaps - 1; ++j) load_eight(tail, DType::kF32, static_cast<std::int64_t>(j) * args.channel_count, held[j]);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    y[i] = args.bias ? args.bias[c + i] : 0.0f;
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) y[i] += weight[i][j] * held[j][i];
    y[i] += weight[i][kTaps - 1] * x[i];
    y[i] = silu(y[i]);
    if (args.dtype == DType::kBF16) y[i] = load_element(to_bf16(y[i]));
  }
#pragma unroll
  for (int j = 0; j + 1 < kTaps - 1; ++j) {
    store_eight(tail, DType::kF32, static_cast<std::int64_t>(j) * args.channel_count, held[j + 1]);
  }
  store_eight(tail, DType::kF32, static_cast<std::int64_t>(kTaps - 2) * args.channel_count, x);
}

__global__ void __launch_bounds__(kThreads) delta_inputs_kernel(DeltaInputsArgs args) {
  let_next_kernel_start();
  const ShortConvArgs& conv = args.conv;
  const int lane = static_cast<int>(threadIdx.x) % kLanesOfRow, heads = conv.channel_count / args.key_dim;
  const int group = static_cast<int>(blockIdx.x) * kGroups + static_cast<int>(threadIdx.x) / kLanesOfRow;
  const int t = group / (heads + 1), head = group % (heads + 1), c = head * args.key_dim + 8 * lane;
  const bool is_gates = head == heads, has_piece = t < conv.batch.token_count && !is_gates && 8 * lane < args.key_dim;
  float weight[8][kTaps] = {}, y[8] = {};
  float* tail = nullptr;
  if (has_piece) {
    tail = conv.tails[t] + c;
    for (int i = 0; i < 8; ++i) load_four(conv.weight + static_cast<std::int64_t>(c + i) * kTaps, weight[i]);
  }
  wait_for_previous_kernel();  // weights and places of tails are no kernel's work
  if (has_piece) convolve_piece(conv, tail, t, c, weight, y);
  float squares = 0;
  for (int i = 0; i < 8; ++i) squares += y[i] * y[i];
  squares = row_sum<kLanesOfRow>(squares, nullptr);
  if (head < 2 * args.key_heads) {
    const float factor = 1 / sqrtf(squares + 1e-6f);
    for (int i = 0; i < 8; ++i) y[i] *= factor;
  }
  if (has_piece) store_eight(conv.out.data, conv.dtype, t * conv.out.stride + c, y);
  if (!is_gates || t >= conv.batch.token_count) return;
  const FeatureMapArgs& beta = args.beta;
  const int heads_of_decay = args.decay.head_count;
  for (int i = lane; i < heads_of_decay || i < beta.dim; i += kLanesOfRow) {
    const float raw = i < beta.dim ? load(beta.in, beta.dtype, t, i) : 0.0f;
    const float log_decay = i < heads_of_decay ? log_decay_of(args.decay, t, i) : 0.0f;
    if (i < heads_of_decay) args.decay.out[static_cast<std::int64_t>(t) * heads_of_decay + i] = log_decay;
    if (i < beta.dim) store(beta.out, beta.out_dtype, t, i, map_element(beta.map, raw * beta.scale) * beta.out_scale);
  }
}

const char* unsupported_reason(const DeltaInputsArgs& args) {
  const ShortConvArgs& conv = args.conv;
  const bool takes_conv = (conv.dtype == DType::kBF16 || conv.dtype == DType::kF32) && conv.kernel_size == kTaps &&
                          conv.activation == GateKind::kSilu && conv.in.stride % 8 == 0 && conv.out.stride % 8 == 0;
  const bool takes_heads = args.key_dim > 0 && args.key_dim % 8 == 0 && args.key_dim <= 8 * kLanesOfRow &&
                           conv.channel_count % args.key_dim == 0 && args.norm == FeatureMap::kL2;
  const bool takes_gates = args.decay.rows == 1 && args.beta.head_count == 1 && args.beta.map < FeatureMap::kSoftmax;
  return takes_conv && takes_heads && takes_gates ? nullptr : kNoFusedForm;
}

void run(BackendQueue* queue, const DeltaInputsArgs& args, void*) {
  const int groups = args.conv.batch.token_count * (args.conv.channel_count / args.key_dim + 1);
  Launcher(queue, "delta_inputs")
      .early(delta_inputs_kernel, dim3(static_cast<unsigned>((groups + kGroups - 1) / kGroups)), dim3(kThreads), 0,
             args);
}

}  // namespace

void add_delta_inputs(OpTable& ops) {
  ops.delta_inputs = {unsupported_reason, no_scratch<DeltaInputsArgs>, run};
  ops.delta_step = no_fused_form<DeltaStepArgs>();
}

}  // namespace cairn::gpu
