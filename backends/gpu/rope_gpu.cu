// rope: a block owns one token: its angles once, then every pair of every head. Positions reach millions, so an angle
// is formed in double, and what it leaves over whole turns goes to sine and cosine in f32 (pow and sincos in double: 7
// us a launch). Positions are no kernel's work: the angles are formed before the previous kernel has ended.
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {
namespace {

constexpr int kMaxPairs = 2048, kRopeThreads = 128;

/// Pairs [i, i + 8) of a head: eight neighbours, and those half a rotation on.
__device__ inline void rotate_eight(const RopeArgs& args, std::int64_t first, int half, const float* cosines,
                                    const float* sines) {
  float x[8], y[8], turned[8];
  load_eight(args.x.data, args.dtype, first, x);
  load_eight(args.x.data, args.dtype, first + half, y);
  for (int j = 0; j < 8; ++j) {
    turned[j] = x[j] * cosines[j] - y[j] * sines[j];
    y[j] = y[j] * cosines[j] + x[j] * sines[j];
  }
  store_eight(args.x.data, args.dtype, first, turned);
  store_eight(args.x.data, args.dtype, first + half, y);
}

template <bool kInEights>
__global__ void rope_kernel(RopeArgs args) {
  let_next_kernel_start();
  float* cosines = reinterpret_cast<float*>(dynamic_shared());
  const int half = args.rotary_dim / 2, t = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  float* sines = cosines + half;
  const int b = sequence_of(args.batch.offsets, args.batch.sequence_count, t);
  const double position = static_cast<double>(args.starts[b] + t - args.batch.offsets[b]);
  const double log2_step = -2.0 * log2(static_cast<double>(args.theta)) / args.rotary_dim;
  for (int i = thread; i < half; i += kRopeThreads) {
    const double turns = position * exp2(log2_step * i) * 0.15915494309189535;  // 1 / (2 pi)
    const float angle = static_cast<float>((turns - rint(turns)) * 6.283185307179586);
    cosines[i] = cosf(angle), sines[i] = sinf(angle);
  }
  __syncthreads();
  wait_for_previous_kernel();
  if constexpr (kInEights) {
    const int pieces = half / 8;
    for (int piece = thread; piece < args.head_count * pieces; piece += kRopeThreads) {
      const int i = piece % pieces * 8;
      const std::int64_t first = t * args.x.stride + static_cast<std::int64_t>(piece / pieces) * args.dim + i;
      rotate_eight(args, first, half, cosines + i, sines + i);
    }
  } else {
    for (int pair = thread; pair < args.head_count * half; pair += kRopeThreads) {
      const int i = pair % half;
      const std::int64_t first = static_cast<std::int64_t>(pair / half) * args.dim + i;
      const float x = load(args.x, args.dtype, t, first), y = load(args.x, args.dtype, t, first + half);
      store(args.x, args.dtype, t, first, x * cosines[i] - y * sines[i]);
      store(args.x, args.dtype, t, first + half, y * cosines[i] + x * sines[i]);
    }
  }
}

void run_rope(BackendQueue* queue, const RopeArgs& args, void*) {
  const bool in_eights = args.rotary_dim % 16 == 0 && args.dim % 8 == 0 && is_in_eights(args.x);
  const auto kernel = in_eights ? rope_kernel<true> : rope_kernel<false>;
  Launcher(queue, "rope")
      .early(kernel, dim3(static_cast<unsigned>(args.batch.token_count)), dim3(kRopeThreads),
             static_cast<std::size_t>(args.rotary_dim) * sizeof(float), args);
}

const char* unsupported_reason(const RopeArgs& args) {
  return first_reason({require_activations("rope", args.dtype), require_range("rope", "rotary_dim", args.rotary_dim, 0, 2 * kMaxPairs)});
}

}  // namespace

void add_rope(OpTable& ops) { ops.rope = {unsupported_reason, no_scratch<RopeArgs>, run_rope}; }

}  // namespace cairn::gpu
