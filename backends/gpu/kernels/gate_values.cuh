// Feature maps of one element and log-decays, the same wherever they are computed.
#pragma once

#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {

__device__ inline float map_element(FeatureMap map, float x) {
  switch (map) {
    case FeatureMap::kSilu: return silu(x);
    case FeatureMap::kRelu: return fmaxf(x, 0.0f);
    case FeatureMap::kEluPlusOne: return x > 0 ? x + 1 : expf(x);
    case FeatureMap::kSigmoid: return sigmoid(x);
    default: return x;
  }
}

/// From x with its bias, where e^a_log may be beyond f32: it enters as half * half, so that no factor is infinite and
/// none times zero.
__device__ inline float steep_log_decay(DecayKind kind, float parameter, float x, float a_log) {
  const float half = expf(fminf(0.5f * a_log, 88.0f));
  if (kind == DecayKind::kLowerBound) return parameter * sigmoid(x * half * half);
  // Below -80 softplus(x) is e^x, which need not be a number of f32 by itself.
  return x < -80.0f ? -expf(x + a_log) : -softplus(x) * half * half;
}

/// From x with its bias. Up to e^60 a rate times what softplus loses below 2^-149 decays nothing.
__device__ inline float log_decay(DecayKind kind, float parameter, float x, float a_log) {
  if (kind == DecayKind::kLogSigmoid) return -softplus(-x) / parameter;
  if (a_log > 60.0f) return steep_log_decay(kind, parameter, x, a_log);
  const float rate = expf(a_log);
  return kind == DecayKind::kSoftplus ? -rate * softplus(x) : parameter * sigmoid(rate * x);
}
/// Gate `column` of token t.
__device__ inline float log_decay_of(const DecayGateArgs& args, std::int64_t t, int column) {
  const float x = load(args.in, args.dtype, t, column) + (args.bias ? args.bias[column] : 0.0f);
  const float a_log = args.kind == DecayKind::kLogSigmoid ? 0.0f : args.a_log[column / args.rows];
  return log_decay(args.kind, args.parameter, x, a_log);
}

}  // namespace cairn::gpu
