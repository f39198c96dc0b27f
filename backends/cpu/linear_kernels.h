// The matrix-product kernels: one table per instruction set.
#pragma once

#include "backends/cpu/cpu_features.h"
#include "backends/interface/op_args.h"

namespace cairn::cpu {

/// A piece of y = x W^T: rows [row_begin, row_end) of x times outputs [out_begin, out_end) of W.
struct LinearPiece {
  const LinearWeight* weight;
  const float* x;  ///< row 0, [*, in_dim]
  std::int64_t x_stride;
  float* y;  ///< row 0, output 0
  std::int64_t y_stride;
  bool accumulate;
  std::int64_t row_begin, row_end;
  std::int32_t out_begin, out_end;
  float* packed;  ///< kLinearBlockOutputs * kLinearBlockInputs floats of scratch; unused up to 4 rows
};

/// The sum over inputs runs in blocks of at most this many, each summed lane by lane, then over the lanes; the blocks
/// are added in order. Nothing else enters a sum, so that a row's bits are the same alone, in any batch and on any
/// thread.
constexpr std::int32_t kLinearBlockInputs = 1024;
constexpr std::int32_t kLinearBlockOutputs = 128;  ///< of one piece, at most

struct LinearKernels {
  void (*run)(const LinearPiece&);
  /// Row `out` of the weight as f32, scales applied: to [in_dim].
  void (*widen_row)(const LinearWeight&, std::int32_t out, float* to);
};

const LinearKernels& linear_kernels(Isa isa);

namespace baseline {
extern const LinearKernels kLinearKernels;
}
namespace avx2 {
extern const LinearKernels kLinearKernels;
}
namespace avx512 {
extern const LinearKernels kLinearKernels;
}

}  // namespace cairn::cpu
