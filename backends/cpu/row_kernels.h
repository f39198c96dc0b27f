// Kernels that work on rows of activations, token by token: one table per instruction set.
#pragma once

#include "backends/cpu/cpu_features.h"
#include "backends/interface/op_args.h"

namespace cairn::cpu {

/// A piece of a short convolution: tokens [begin, end) of sequence b (as rows of the batch), channels [channel_begin,
/// channel_end).
struct ConvPiece {
  std::int32_t sequence, begin, end, channel_begin, channel_end;
};
constexpr std::int32_t kConvLargestKernel = 16;

/// Each takes the rows [begin, end) of its operator.
struct RowKernels {
  void (*embed)(const EmbedArgs&, std::int64_t begin, std::int64_t end);
  void (*rms_norm)(const RmsNormArgs&, std::int64_t begin, std::int64_t end);
  void (*gated_rms_norm)(const GatedRmsNormArgs&, std::int64_t begin, std::int64_t end);
  void (*feature_map)(const FeatureMapArgs&, std::int64_t begin, std::int64_t end);
  void (*decay_gate)(const DecayGateArgs&, std::int64_t begin, std::int64_t end);
  void (*add)(const AddArgs&, std::int64_t begin, std::int64_t end);
  void (*gate)(const GateArgs&, std::int64_t begin, std::int64_t end);
  void (*swiglu)(const SwigluArgs&, std::int64_t begin, std::int64_t end);
  void (*cross_layer_add)(const CrossLayerAddArgs&, std::int64_t begin, std::int64_t end);
  /// Leaves the tails as they are, unless the piece is the whole sequence: then it updates them too.
  void (*short_conv)(const ShortConvArgs&, const ConvPiece&);
  /// Turns one row; cosines and sines [rotary_dim / 2].
  void (*rotate)(const RopeArgs&, float* x, const float* cosines, const float* sines);
};

const RowKernels& row_kernels(Isa isa);

namespace baseline {
extern const RowKernels kRowKernels;
}
namespace avx2 {
extern const RowKernels kRowKernels;
}
namespace avx512 {
extern const RowKernels kRowKernels;
}

}  // namespace cairn::cpu
