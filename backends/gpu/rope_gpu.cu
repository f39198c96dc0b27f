// rope: a block owns one token: its angles once, then every pair of every head. Positions reach millions, so an angle is formed
// in double, and what it leaves over whole turns goes to sine and cosine in f32 (pow and sincos in double: 7 us a launch).
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {
namespace {

constexpr int kMaxPairs = 2048, kRopeThreads = 128;

__global__ void rope_kernel(RopeArgs args) {
  let_next_kernel_start();
  float* cosines = reinterpret_cast<float*>(dynamic_shared());
  const int half = args.rotary_dim / 2, t = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  float* sines = cosines + half;
  wait_for_previous_kernel();
  const int b = sequence_of(args.batch.offsets, args.batch.sequence_count, t);
  const double position = static_cast<double>(args.starts[b] + t - args.batch.offsets[b]);
  const double log2_step = -2.0 * log2(static_cast<double>(args.theta)) / args.rotary_dim;
  for (int i = thread; i < half; i += kRopeThreads) {
    const double turns = position * exp2(log2_step * i) * 0.15915494309189535;  // 1 / (2 pi)
    const float angle = static_cast<float>((turns - rint(turns)) * 6.283185307179586);
    cosines[i] = cosf(angle), sines[i] = sinf(angle);
  }
  __syncthreads();
  for (int pair = thread; pair < args.head_count * half; pair += kRopeThreads) {
    const int i = pair % half;
    const std::int64_t first = static_cast<std::int64_t>(pair / half) * args.dim + i;
    const float x = load(args.x, args.dtype, t, first), y = load(args.x, args.dtype, t, first + half);
    store(args.x, args.dtype, t, first, x * cosines[i] - y * sines[i]);
    store(args.x, args.dtype, t, first + half, y * cosines[i] + x * sines[i]);
  }
}

void run_rope(BackendQueue* queue, const RopeArgs& args, void*) {
  Launcher(queue, "rope").early(rope_kernel, dim3(static_cast<unsigned>(args.batch.token_count)), dim3(kRopeThreads),
                                static_cast<std::size_t>(args.rotary_dim) * sizeof(float), args);
}

const char* unsupported_reason(const RopeArgs& args) {
  return first_reason({require_activations("rope", args.dtype), require_range("rope", "rotary_dim", args.rotary_dim, 0, 2 * kMaxPairs)});
}

}  // namespace

void add_rope(OpTable& ops) { ops.rope = {unsupported_reason, no_scratch<RopeArgs>, run_rope}; }

}  // namespace cairn::gpu
