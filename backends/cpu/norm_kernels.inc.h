// rms_norm, gated_rms_norm, feature_map: sums along a head, then one pass over it.  Numerics: f32, sums lane by lane in
// order.
#pragma once

#include "backends/cpu/lane_loops.inc.h"
#include "backends/cpu/row_kernels.h"

namespace cairn::cpu::CAIRN_ISA {
namespace {

inline float sum_of(const float* x, std::int32_t dim) {
  Lanes total = broadcast(0.0f);
  for_lanes(dim, [&](std::int32_t i, int n) { total = total + read(x + i, n); });
  return sum(total);
}

/// sum (x - mean)^2
inline float sum_of_squares(const float* x, std::int32_t dim, float mean) {
  Lanes total = broadcast(0.0f);
  const Lanes shift = broadcast(mean);
  std::int32_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    const Lanes d = load(x + i) - shift;
    total = fma(d, d, total);
  }
  float last = sum(total);
  for (; i < dim; ++i) last += (x[i] - mean) * (x[i] - mean);
  return last;
}

void rms_norm_rows(const RmsNormArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int32_t h = 0; h < a.head_count; ++h) {
      const float* x = row_of(a.in.data, a.in.stride, t) + h * a.dim;
      float* out = row_of(a.out.data, a.out.stride, t) + h * a.dim;
      const float mean_square = sum_of_squares(x, a.dim, 0) / static_cast<float>(a.dim);
      const Lanes factor = broadcast(1 / __builtin_sqrtf(mean_square + a.eps));
      for_lanes(a.dim, [&](std::int32_t i, int n) {
        const Lanes y = read(x + i, n) * factor;
        write(out + i, n, a.weight ? y * read(a.weight + i, n) : y);
      });
    }
  }
}

template <GateKind kGate>
void gated_norm_head(const GatedRmsNormArgs& a, const float* x, const float* z, float* out) {
  const auto dim = static_cast<float>(a.dim);
  const float mean = a.norm == NormKind::kLayerNorm ? sum_of(x, a.dim) / dim : 0;
  const Lanes factor = broadcast(1 / __builtin_sqrtf(sum_of_squares(x, a.dim, mean) / dim + a.eps)),
              shift = broadcast(mean);
  const float* bias = a.norm == NormKind::kLayerNorm ? a.bias : nullptr;
  for_lanes(a.dim, [&](std::int32_t i, int n) {
    Lanes y = (read(x + i, n) - shift) * factor;
    if (a.weight) y = y * read(a.weight + i, n);
    if (bias) y = y + read(bias + i, n);
    if constexpr (kGate == GateKind::kSilu) y = y * silu(read(z + i, n));
    if constexpr (kGate == GateKind::kSigmoid) y = y * sigmoid(read(z + i, n));
    write(out + i, n, y);
  });
}

void gated_rms_norm_rows(const GatedRmsNormArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int32_t h = 0; h < a.head_count; ++h) {
      const float* x = row_of(a.in.data, a.in.stride, t) + h * a.dim;
      float* out = row_of(a.out.data, a.out.stride, t) + h * a.dim;
      if (a.gate_kind == GateKind::kNone) {
        gated_norm_head<GateKind::kNone>(a, x, nullptr, out);
        continue;
      }
      const float* z = row_of(a.gate.data, a.gate.stride, t) + h * a.dim;
      if (a.gate_kind == GateKind::kSilu) {
        gated_norm_head<GateKind::kSilu>(a, x, z, out);
      } else {
        gated_norm_head<GateKind::kSigmoid>(a, x, z, out);
      }
    }
  }
}

inline float largest_of(const float* x, std::int32_t dim, float scale) {
  float most = x[0] * scale;
  for (std::int32_t i = 1; i < dim; ++i) most = x[i] * scale > most ? x[i] * scale : most;
  return most;
}

void softmax_head(const FeatureMapArgs& a, const float* x, float* out) {
  const Lanes scale = broadcast(a.scale), shift = broadcast(largest_of(x, a.dim, a.scale));
  Lanes total = broadcast(0.0f);
  float last = 0;
  for_lanes(a.dim, [&](std::int32_t i, int n) {
    const Lanes e = exp(read(x + i, n) * scale - shift);
    write(out + i, n, e);
    if (n == kLanes) {
      total = total + e;
    } else {
      for (int j = 0; j < n; ++j) last += out[i + j];
    }
  });
  const Lanes factor = broadcast(a.out_scale / (sum(total) + last));
  for_lanes(a.dim, [&](std::int32_t i, int n) { write(out + i, n, read(out + i, n) * factor); });
}

void feature_map_head(const FeatureMapArgs& a, const float* x, float* out) {
  const Lanes scale = broadcast(a.scale), out_scale = broadcast(a.out_scale), zero = broadcast(0.0f),
              one = broadcast(1.0f);
  const auto map = [&](const auto& f) {
    for_lanes(a.dim, [&](std::int32_t i, int n) { write(out + i, n, f(read(x + i, n) * scale) * out_scale); });
  };
  switch (a.map) {
    case FeatureMap::kSilu: return map([](Lanes v) { return silu(v); });
    case FeatureMap::kRelu: return map([=](Lanes v) { return max(zero, v); });
    case FeatureMap::kEluPlusOne: return map([=](Lanes v) { return select_less(zero, v, v + one, exp(v)); });
    case FeatureMap::kSigmoid: return map([](Lanes v) { return sigmoid(v); });
    case FeatureMap::kSoftmax: return softmax_head(a, x, out);
    case FeatureMap::kL2: {
      const float squares = sum_of_squares(x, a.dim, 0) * a.scale * a.scale;
      const Lanes factor = broadcast(1 / __builtin_sqrtf(squares + 1e-6f));
      return map([=](Lanes v) { return v * factor; });
    }
    case FeatureMap::kSumNorm: {
      const Lanes factor = broadcast(1 / (sum_of(x, a.dim) * a.scale));
      return map([=](Lanes v) { return v * factor; });
    }
  }
}

void feature_map_rows(const FeatureMapArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int32_t h = 0; h < a.head_count; ++h) {
      feature_map_head(a, row_of(a.in.data, a.in.stride, t) + h * a.dim,
                       row_of(a.out.data, a.out.stride, t) + h * a.dim);
    }
  }
}

}  // namespace
}  // namespace cairn::cpu::CAIRN_ISA
