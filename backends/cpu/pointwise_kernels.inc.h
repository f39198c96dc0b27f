// embed, add, gate, swiglu, cross_layer_add, decay_gate, rope: element by element, at memory speed.
#pragma once

#include "backends/cpu/lane_loops.inc.h"
#include "backends/cpu/row_kernels.h"

namespace cairn::cpu::CAIRN_ISA {
namespace {

/// f32 of 16-bit elements, `widen` of kLanes at a time.
template <class Widen>
inline void widen_row(const std::uint16_t* from, float* to, std::int32_t dim, const Widen& widen) {
  std::int32_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) store(to + i, widen(from + i));
  if (i == dim) return;
  std::uint16_t last[kLanes] = {};
  for (std::int32_t j = i; j < dim; ++j) last[j - i] = from[j];
  store_first(to + i, dim - i, widen(last));
}

void embed_rows(const EmbedArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t first = static_cast<std::int64_t>(a.tokens[t]) * a.dim;
    const auto* halves = static_cast<const std::uint16_t*>(a.table) + first;
    float* out = row_of(a.out.data, a.out.stride, t);
    switch (a.table_dtype) {
      case DType::kBF16: widen_row(halves, out, a.dim, [](const std::uint16_t* p) { return load_bf16(p); }); break;
      case DType::kF16: widen_row(halves, out, a.dim, [](const std::uint16_t* p) { return load_f16(p); }); break;
      default:
        std::memcpy(out, static_cast<const float*>(a.table) + first, static_cast<std::size_t>(a.dim) * sizeof(float));
    }
  }
}

void add_rows(const AddArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const float* x = a.a.data ? row_of(a.a.data, a.a.stride, t) : nullptr;
    const float* y = row_of(a.b.data, a.b.stride, t);
    float* out = row_of(a.out.data, a.out.stride, t);
    const Lanes scale = broadcast(a.scale ? a.scale[t] : 1.0f);
    for_lanes(a.dim, [&](std::int32_t i, int n) {
      const Lanes first = x ? read(x + i, n) : broadcast(0.0f);
      write(out + i, n, fma(read(y + i, n), scale, first));
    });
  }
}

void gate_rows(const GateArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const float *x = row_of(a.x.data, a.x.stride, t), *z = row_of(a.z.data, a.z.stride, t);
    float* out = row_of(a.out.data, a.out.stride, t);
    const auto apply = [&](const auto& open) {
      for_lanes(a.dim, [&](std::int32_t i, int n) { write(out + i, n, read(x + i, n) * open(read(z + i, n))); });
    };
    switch (a.kind) {
      case GateKind::kNone: apply([](Lanes) { return broadcast(1.0f); }); break;
      case GateKind::kSilu: apply([](Lanes v) { return silu(v); }); break;
      case GateKind::kSigmoid: apply([](Lanes v) { return sigmoid(v); }); break;
    }
  }
}

void swiglu_rows(const SwigluArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const float *gate = row_of(a.gate.data, a.gate.stride, t), *up = row_of(a.up.data, a.up.stride, t);
    float* out = row_of(a.out.data, a.out.stride, t);
    for_lanes(a.dim, [&](std::int32_t i, int n) { write(out + i, n, silu(read(gate + i, n)) * read(up + i, n)); });
  }
}

void cross_layer_add_rows(const CrossLayerAddArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const float *v = row_of(a.v.data, a.v.stride, t), *side = row_of(a.side.data, a.side.stride, t);
    float* out = row_of(a.out.data, a.out.stride, t);
    for (std::int32_t h = 0; h < a.head_count; ++h) {
      const float* gamma = a.gamma + static_cast<std::int64_t>(h) * a.gamma_head_stride;
      const std::int32_t first = h * a.dim;
      for_lanes(a.dim, [&](std::int32_t i, int n) {
        const Lanes factor = a.gamma_dim_stride ? read(gamma + i, n) : broadcast(*gamma);
        write(out + first + i, n, fma(factor, read(side + first + i, n), read(v + first + i, n)));
      });
    }
  }
}

/// Log-decays of pre-activations x (bias added), rate = exp(A_log).
inline Lanes log_decay(const DecayGateArgs& a, Lanes x, Lanes rate) {
  const Lanes zero = broadcast(0.0f);
  switch (a.kind) {
    case DecayKind::kSoftplus: return zero - rate * softplus(x);
    case DecayKind::kLogSigmoid: return zero - softplus(zero - x) / broadcast(a.parameter);
    case DecayKind::kLowerBound: return broadcast(a.parameter) * sigmoid(rate * x);
  }
  return zero;
}

/// As log_decay() where e^A_log may leave f32: it enters as half * half, so that no factor is infinite and none times
/// zero.
inline Lanes steep_log_decay(const DecayGateArgs& a, Lanes x, Lanes a_log) {
  const Lanes zero = broadcast(0.0f), half = exp(min(broadcast(88.0f), a_log * broadcast(0.5f)));
  if (a.kind == DecayKind::kLowerBound) return broadcast(a.parameter) * sigmoid(x * half * half);
  // Below -80 softplus(x) is e^x, which need not be a number of f32 by itself.
  return zero - select_less(x, broadcast(-80.0f), exp(x + a_log), softplus(x) * half * half);
}

/// A head from whose A_log on e^A_log, or its products, could overflow: no trained model has one.
inline bool is_steep(const DecayGateArgs& a) {
  bool any = false;
  for (std::int32_t h = 0; h < a.head_count && a.a_log; ++h) any = any || a.a_log[h] > 80.0f;
  return any && a.kind != DecayKind::kLogSigmoid;
}

void steep_decay_gate_rows(const DecayGateArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const float* x = row_of(a.in.data, a.in.stride, t);
    float* out = a.out + t * a.head_count * a.rows;
    for (std::int32_t h = 0; h < a.head_count; ++h) {
      const std::int32_t first = h * a.rows;
      for_lanes(a.rows, [&](std::int32_t i, int n) {
        Lanes v = read(x + first + i, n);
        if (a.bias) v = v + read(a.bias + first + i, n);
        write(out + first + i, n, steep_log_decay(a, v, broadcast(a.a_log[h])));
      });
    }
  }
}

void decay_gate_rows(const DecayGateArgs& a, std::int64_t begin, std::int64_t end) {
  if (is_steep(a)) return steep_decay_gate_rows(a, begin, end);
  const std::int32_t width = a.head_count * a.rows;
  const Lanes one = broadcast(1.0f);
  for (std::int64_t t = begin; t < end; ++t) {
    const float* x = row_of(a.in.data, a.in.stride, t);
    float* out = a.out + t * width;
    const auto apply = [&](std::int32_t first, std::int32_t count, const auto& rate_at) {
      for_lanes(count, [&](std::int32_t i, int n) {
        Lanes v = read(x + first + i, n);
        if (a.bias) v = v + read(a.bias + first + i, n);
        write(out + first + i, n, log_decay(a, v, rate_at(i, n)));
      });
    };
    if (a.rows == 1) {
      apply(0, width, [&](std::int32_t i, int n) { return a.a_log ? exp(read(a.a_log + i, n)) : one; });
      continue;
    }
    for (std::int32_t h = 0; h < a.head_count; ++h) {
      const Lanes rate = a.a_log ? exp(broadcast(a.a_log[h])) : one;
      apply(h * a.rows, a.rows, [&](std::int32_t, int) { return rate; });
    }
  }
}

void rotate_row(const RopeArgs& a, float* x, const float* cosines, const float* sines) {
  const std::int32_t half = a.rotary_dim / 2;
  for (std::int32_t h = 0; h < a.head_count; ++h, x += a.dim) {
    for_lanes(half, [&](std::int32_t i, int n) {
      const Lanes left = read(x + i, n), right = read(x + half + i, n), c = read(cosines + i, n),
                  s = read(sines + i, n);
      write(x + i, n, fma(left, c, broadcast(0.0f) - right * s));
      write(x + half + i, n, fma(right, c, left * s));
    });
  }
}

}  // namespace
}  // namespace cairn::cpu::CAIRN_ISA
