// Kinds conv, pointwise and mlp: the small dense operators.
#include "tests/golden/vector_kinds.h"

namespace cairn::test {
namespace {

/// [in, out] -> [out, in].
std::vector<float> transposed(const std::vector<float>& matrix, std::int32_t in, std::int32_t out) {
  std::vector<float> result(matrix.size());
  for (std::int32_t i = 0; i < in; ++i) {
    for (std::int32_t o = 0; o < out; ++o)
      result[static_cast<std::size_t>(o) * in + i] = matrix[static_cast<std::size_t>(i) * out + o];
  }
  return result;
}

/// The convolution as calls of the given lengths that follow each other.
void run_conv(const VectorCase& vectors, OpRig& rig, Comparison& result, GateKind activation,
              const std::vector<std::int32_t>& calls, const char* label) {
  const std::int32_t T = vectors.dim("x", 0), C = vectors.dim("x", 1), n = vectors.dim("w", 1);
  std::vector<float> carry(static_cast<std::size_t>(n - 1) * C, 0.0F);
  if (vectors.has("carry")) carry = vectors.floats("carry");
  float* tail = rig.upload(carry);
  float* x = rig.upload(vectors.floats("x"));
  float* y = rig.poisoned(static_cast<std::size_t>(T) * C);
  ShortConvArgs args{DType::kF32, activation, {},
                     C,           n,          rig.upload(vectors.floats("w")),
                     nullptr,     {},         rig.upload(std::vector<float*>{tail}),
                     {}};
  std::int64_t done = 0;
  for (const std::int32_t length : calls) {
    args.batch = rig.batch({length});
    args.in = rows(x + done * C, C);
    args.out = rows(y + done * C, C);
    if (!result.ran(rig.run(rig.ops().short_conv, args), "short_conv")) return;
    done += length;
  }
  result.floats(activation == GateKind::kSilu ? "y_silu" : "y", rig.download(y, static_cast<std::size_t>(T) * C),
                Path::kChunked, label);
  result.floats("carry_out", rig.download(tail, carry.size()), Path::kChunked, label);
  rig.clear();
}

std::vector<float> run_map(const VectorCase& vectors, OpRig& rig, Comparison& result, FeatureMap map) {
  const std::int32_t T = vectors.dim("x", 0), H = vectors.dim("x", 1), W = vectors.dim("x", 2), width = H * W;
  float* out = rig.poisoned(static_cast<std::size_t>(T) * width);
  const FeatureMapArgs args{
      DType::kF32, DType::kF32, map, T, H, W, 1, 1, rows(rig.upload(vectors.floats("x")), width), rows(out, width)};
  result.ran(rig.run(rig.ops().feature_map, args), "feature_map");
  return rig.download(out, static_cast<std::size_t>(T) * width);
}

std::vector<float> run_decay(const VectorCase& vectors, OpRig& rig, Comparison& result, DecayKind kind,
                             bool with_parameters) {
  const std::int32_t T = vectors.dim("x", 0), H = vectors.dim("x", 1), W = vectors.dim("x", 2), width = H * W;
  std::vector<float> a_log(H, 0.0F), bias(width, 0.0F);
  if (with_parameters) {
    a_log = vectors.floats("A_log");
    const std::vector<float> per_head = vectors.floats("dt_bias");
    for (std::int32_t i = 0; i < width; ++i) bias[i] = per_head[i / W];
  }
  float* out = rig.poisoned(static_cast<std::size_t>(T) * width);
  const DecayGateArgs args{
      DType::kF32, kind, 16, T, H, W, rig.upload(a_log), rig.upload(bias), rows(rig.upload(vectors.floats("x")), width),
      out};
  result.ran(rig.run(rig.ops().decay_gate, args), "decay_gate");
  return rig.download(out, static_cast<std::size_t>(T) * width);
}

std::vector<float> run_linear(OpRig& rig, Comparison& result, LinearWeight* weight, std::int32_t T, ConstRows in,
                              float** out) {
  rig.pack(weight);
  *out = rig.poisoned(static_cast<std::size_t>(T) * weight->out_dim);
  const LinearArgs args{DType::kF32, DType::kF32, Phase::kPrefill, false, T, weight, in, rows(*out, weight->out_dim)};
  result.ran(rig.run(rig.ops().linear, args), "linear");
  return rig.download(*out, static_cast<std::size_t>(T) * weight->out_dim);
}

}  // namespace

void check_conv(const VectorCase& vectors, OpRig& rig, Comparison& result) {
  const std::int32_t T = vectors.dim("x", 0);
  const std::vector<std::int32_t> tokens(T, 1);
  for (const GateKind activation : {GateKind::kNone, GateKind::kSilu}) {
    run_conv(vectors, rig, result, activation, {T}, "prefill");
    run_conv(vectors, rig, result, activation, tokens, "decode");
    run_conv(vectors, rig, result, activation, {T / 2, 0, T - T / 2}, "split");
  }
}

void check_pointwise(const VectorCase& vectors, OpRig& rig, Comparison& result) {
  const std::int32_t T = vectors.dim("x", 0), H = vectors.dim("x", 1), W = vectors.dim("x", 2), width = H * W;
  result.floats("silu", run_map(vectors, rig, result, FeatureMap::kSilu));
  result.floats("sigmoid", run_map(vectors, rig, result, FeatureMap::kSigmoid));
  result.floats("softmax", run_map(vectors, rig, result, FeatureMap::kSoftmax));
  result.floats("l2", run_map(vectors, rig, result, FeatureMap::kL2));

  float* out = rig.poisoned(static_cast<std::size_t>(T) * width);
  const RmsNormArgs norm{DType::kF32,     T, H, W, 1e-6F, nullptr, rows(rig.upload(vectors.floats("x")), width),
                         rows(out, width)};
  result.ran(rig.run(rig.ops().rms_norm, norm), "rms_norm");
  result.floats("rms", rig.download(out, static_cast<std::size_t>(T) * width));

  std::vector<float> softplus = run_decay(vectors, rig, result, DecayKind::kSoftplus, false);  // -exp(0) softplus(x)
  for (float& value : softplus) value = -value;
  result.floats("softplus", softplus);
  result.floats("log_decay", run_decay(vectors, rig, result, DecayKind::kSoftplus, true));
  result.floats("gla_log_decay", run_decay(vectors, rig, result, DecayKind::kLogSigmoid, false));
}

void check_mlp(const VectorCase& vectors, OpRig& rig, Comparison& result) {
  const std::int32_t T = vectors.dim("x", 0), d = vectors.dim("x", 1), f = vectors.dim("w.W_g", 1);
  const auto weight = [&](const char* name, std::int32_t in, std::int32_t out) {
    LinearWeight w;
    w.data = rig.upload(transposed(vectors.floats(name), in, out));
    w.in_dim = in;
    w.out_dim = out;
    return w;
  };
  LinearWeight gate = weight("w.W_g", d, f), up = weight("w.W_u", d, f), down = weight("w.W_d", f, d);
  const ConstRows x = rows(rig.upload(vectors.floats("x")), d);
  float *gated, *raised, *out;
  run_linear(rig, result, &gate, T, x, &gated);
  run_linear(rig, result, &up, T, x, &raised);
  result.ran(rig.run(rig.ops().swiglu, SwigluArgs{DType::kF32, T, f, rows(gated, f), rows(raised, f), rows(gated, f)}),
             "swiglu");
  result.floats("y", run_linear(rig, result, &down, T, rows(gated, f), &out));
  rig.clear();
}

}  // namespace cairn::test
