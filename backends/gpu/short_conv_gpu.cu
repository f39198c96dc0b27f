// short_conv.
//   Prefill  kernels of 4 taps over channels in 16-byte pieces: a thread owns 8 channels of 8 tokens and keeps the last three
//            inputs in registers; else a thread owns one channel of one token. Then a second kernel moves the tails.
//   Decode   a thread owns one channel of one sequence, and its tail
//   Traffic  prefill: (8 + 3) / 8 of the inputs, the outputs once
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {
namespace {

/// Input `back` tokens before token t of sequence b, from the rows or from the tail.
__device__ inline float conv_input(const ShortConvArgs& args, int b, int t, int back, int c) {
  const int first = args.batch.offsets[b], at = t - back;
  if (at >= first) return load(args.in, args.dtype, at, c);
  return args.tails[b][static_cast<std::int64_t>(args.kernel_size - 1 + at - first) * args.channel_count + c];
}

__global__ void short_conv_kernel(ShortConvArgs args) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int t = static_cast<int>(index / args.channel_count), c = static_cast<int>(index % args.channel_count);
  if (t >= args.batch.token_count) return;
  const int b = sequence_of(args.batch.offsets, args.batch.sequence_count, t), n = args.kernel_size;
  float y = args.bias ? args.bias[c] : 0.0f;
  for (int j = 0; j < n; ++j) y += args.weight[static_cast<std::int64_t>(c) * n + j] * conv_input(args, b, t, n - 1 - j, c);
  store(args.out, args.dtype, t, c, args.activation == GateKind::kSilu ? silu(y) : y);
}

constexpr int kTaps = 4, kConvTokens = 8;

/// Eight neighbouring channels.
struct ConvInputs {
  float x[8];
};

/// Inputs of token `at` of the sequence that begins at `first`; at >= first - 3.
__device__ inline ConvInputs conv_inputs(const ShortConvArgs& args, int b, int first, int at, int c) {
  ConvInputs inputs;
  if (at >= first) {
    load_eight(args.in.data, args.dtype, at * args.in.stride + c, inputs.x);
  } else {
    load_eight(args.tails[b], DType::kF32, static_cast<std::int64_t>(kTaps - 1 + at - first) * args.channel_count + c, inputs.x);
  }
  return inputs;
}

__global__ void short_conv_pieces_kernel(ShortConvArgs args) {
  const int pieces = args.channel_count / 8;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int c = static_cast<int>(index % pieces) * 8, begin = static_cast<int>(index / pieces) * kConvTokens;
  if (begin >= args.batch.token_count) return;
  float weight[8][kTaps], bias[8] = {};
  for (int i = 0; i < 8; ++i) load_four(args.weight + static_cast<std::int64_t>(c + i) * kTaps, weight[i]);
  if (args.bias) load_eight(args.bias, DType::kF32, c, bias);
  int b = sequence_of(args.batch.offsets, args.batch.sequence_count, begin), first = args.batch.offsets[b];
  ConvInputs held[kTaps - 1];
  for (int j = 0; j < kTaps - 1; ++j) held[j] = conv_inputs(args, b, first, begin - kTaps + 1 + j, c);
  for (int t = begin; t < begin + kConvTokens && t < args.batch.token_count; ++t) {
    if (t == args.batch.offsets[b + 1]) {
      b = sequence_of(args.batch.offsets, args.batch.sequence_count, t);
      first = t;
      for (int j = 0; j < kTaps - 1; ++j) held[j] = conv_inputs(args, b, first, t - kTaps + 1 + j, c);
    }
    const ConvInputs now = conv_inputs(args, b, first, t, c);
    float y[8];
    for (int i = 0; i < 8; ++i) {
      const float* w = weight[i];
      y[i] = bias[i] + w[0] * held[0].x[i] + w[1] * held[1].x[i] + w[2] * held[2].x[i] + w[3] * now.x[i];
      if (args.activation == GateKind::kSilu) y[i] = silu(y[i]);
    }
    store_eight(args.out.data, args.dtype, t * args.out.stride + c, y);
    held[0] = held[1], held[1] = held[2], held[2] = now;
  }
}

/// The tail becomes the last n - 1 inputs, oldest first: each is read before its place is written.
__global__ void move_tails_kernel(ShortConvArgs args) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int b = static_cast<int>(index / args.channel_count), c = static_cast<int>(index % args.channel_count);
  if (b >= args.batch.sequence_count) return;
  const int end = args.batch.offsets[b + 1], n = args.kernel_size;
  if (end == args.batch.offsets[b]) return;
  for (int j = 0; j < n - 1; ++j) {
    args.tails[b][static_cast<std::int64_t>(j) * args.channel_count + c] = conv_input(args, b, end - 1, n - 2 - j, c);
  }
}

__global__ void short_conv_decode_kernel(ShortConvArgs args) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int t = static_cast<int>(index / args.channel_count), c = static_cast<int>(index % args.channel_count);
  if (t >= args.batch.token_count) return;
  const int n = args.kernel_size;
  const float* weight = args.weight + static_cast<std::int64_t>(c) * n;
  float* tail = args.tails[t] + c;
  const float x = load(args.in, args.dtype, t, c);
  float y = args.bias ? args.bias[c] : 0.0f;
  for (int j = 0; j < n - 1; ++j) {
    const float held = tail[static_cast<std::int64_t>(j) * args.channel_count];
    y += weight[j] * held;
    if (j > 0) tail[static_cast<std::int64_t>(j - 1) * args.channel_count] = held;
  }
  y += weight[n - 1] * x;
  if (n > 1) tail[static_cast<std::int64_t>(n - 2) * args.channel_count] = x;
  store(args.out, args.dtype, t, c, args.activation == GateKind::kSilu ? silu(y) : y);
}

void run_short_conv(BackendQueue* queue, const ShortConvArgs& args, void*) {
  const Launcher launcher(queue, "short_conv");
  const std::int64_t elements = std::int64_t{args.batch.token_count} * args.channel_count;
  if (has_one_token_each(args.batch)) return launch_elements_early(launcher, short_conv_decode_kernel, elements, args);
  const bool in_pieces = args.kernel_size == kTaps && args.channel_count % 8 == 0 && is_in_eights(args.in) &&
                         is_in_eights(args.out) && is_in_eights(args.weight, 0) && is_in_eights(args.bias, 0);
  if (in_pieces) {
    const std::int64_t groups = (args.batch.token_count + kConvTokens - 1) / kConvTokens;
    launch_elements(launcher, short_conv_pieces_kernel, groups * (args.channel_count / 8), args);
  } else {
    launch_elements(launcher, short_conv_kernel, elements, args);
  }
  launch_elements(launcher, move_tails_kernel, std::int64_t{args.batch.sequence_count} * args.channel_count, args);
}

}  // namespace

void add_short_conv(OpTable& ops) { ops.short_conv = {[](const ShortConvArgs& args) { return require_activations("short_conv", args.dtype); }, no_scratch<ShortConvArgs>, run_short_conv}; }

}  // namespace cairn::gpu
