// What the bf16 linear kernels share: their arguments, and how an output leaves.
#pragma once

#include "backends/gpu/kernels/any_element.cuh"
#include "backends/gpu/platform/gpu_matrix.h"

namespace cairn::gpu {

struct LinearBf16Args {
  const std::uint16_t* x;
  const std::uint16_t* weight;
  const float* bias;
  void* out;
  std::int64_t x_stride, out_stride;
  int token_count, out_dim, in_dim;
  bool accumulate, out_is_f32;
};

/// Of a call whose rows and weight are bf16.
inline LinearBf16Args kernel_args_of(const LinearArgs& args) {
  const LinearWeight& weight = *args.weight;
  return {static_cast<const std::uint16_t*>(args.in.data),
          static_cast<const std::uint16_t*>(weight.data),
          weight.bias,
          args.out.data,
          args.in.stride,
          args.out.stride,
          args.token_count,
          weight.out_dim,
          weight.in_dim,
          args.accumulate,
          args.out_dtype == DType::kF32};
}

__device__ inline DType out_type(const LinearBf16Args& args) { return args.out_is_f32 ? DType::kF32 : DType::kBF16; }

/// What an output is added to.
__device__ inline float read_output(const LinearBf16Args& args, int token, int out) {
  if (!args.accumulate || token >= args.token_count || out >= args.out_dim) return 0;
  return load(args.out, out_type(args), token * args.out_stride + out);
}
__device__ inline void finish(const LinearBf16Args& args, int token, int out, float sum, float before) {
  if (token >= args.token_count || out >= args.out_dim) return;
  if (args.bias) sum += args.bias[out];
  if (args.accumulate) sum += before;
  store(args.out, out_type(args), token * args.out_stride + out, sum);
}
__device__ inline void finish(const LinearBf16Args& args, int token, int out, float sum) {
  finish(args, token, out, sum, read_output(args, token, out));
}

}  // namespace cairn::gpu
