// rope: a thread owns one pair of one head of one token.  Angles in double: positions reach millions.
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {
namespace {

__global__ void rope_kernel(RopeArgs args) {
  const int half = args.rotary_dim / 2, width = args.head_count * half;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int t = static_cast<int>(index / width), i = static_cast<int>(index % half);
  if (t >= args.batch.token_count) return;
  const std::int64_t head = index % width / half;
  const int b = sequence_of(args.batch.offsets, args.batch.sequence_count, t);
  const double position = static_cast<double>(args.starts[b] + t - args.batch.offsets[b]);
  const double angle = position * pow(static_cast<double>(args.theta), -2.0 * i / args.rotary_dim);
  const float c = static_cast<float>(cos(angle)), s = static_cast<float>(sin(angle));
  const std::int64_t first = head * args.dim + i;
  const float x = load(args.x, args.dtype, t, first), y = load(args.x, args.dtype, t, first + half);
  store(args.x, args.dtype, t, first, x * c - y * s);
  store(args.x, args.dtype, t, first + half, y * c + x * s);
}

void run_rope(BackendQueue* queue, const RopeArgs& args, void*) {
  launch_elements(Launcher(queue, "rope"), rope_kernel, std::int64_t{args.batch.token_count} * args.head_count * (args.rotary_dim / 2), args);
}

}  // namespace

void add_rope(OpTable& ops) { ops.rope = {[](const RopeArgs& args) { return require_activations("rope", args.dtype); }, no_scratch<RopeArgs>, run_rope}; }

}  // namespace cairn::gpu
