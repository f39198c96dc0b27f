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

__device__ inline void finish(const LinearBf16Args& args, int token, int out, float sum) {
  if (token >= args.token_count || out >= args.out_dim) return;
  const DType type = args.out_is_f32 ? DType::kF32 : DType::kBF16;
  const std::int64_t at = token * args.out_stride + out;
  if (args.bias) sum += args.bias[out];
  if (args.accumulate) sum += load(args.out, type, at);
  store(args.out, type, at, sum);
}

}  // namespace cairn::gpu
