// short_conv: prefill: a thread owns one channel of one token, then a second kernel moves the tails;
// decode: a thread owns one channel of one sequence, and its tail.
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
  const bool is_decode = args.batch.sequence_count == args.batch.token_count && has_one_token_each(args.batch);
  const std::int64_t elements = std::int64_t{args.batch.token_count} * args.channel_count;
  if (is_decode) return launch_elements(Launcher(queue, "short_conv"), short_conv_decode_kernel, elements, args);
  launch_elements(Launcher(queue, "short_conv"), short_conv_kernel, elements, args);
  launch_elements(Launcher(queue, "short_conv"), move_tails_kernel, std::int64_t{args.batch.sequence_count} * args.channel_count, args);
}

}  // namespace

void add_short_conv(OpTable& ops) { ops.short_conv = {[](const ShortConvArgs& args) { return require_activations("short_conv", args.dtype); }, no_scratch<ShortConvArgs>, run_short_conv}; }

}  // namespace cairn::gpu
