// delta_step: decode only, one token of each sequence.
#include <memory>

#include "tests/backends/op_cases.h"

namespace cairn::test {
namespace {

struct StepSpec {
  const char* name;
  std::int32_t key_heads, value_heads;
  std::int32_t key_dim = 128, value_dim = 128, taps = 4;
  bool has_bias = false;
  GateKind gate = GateKind::kSilu;
  NormKind norm = NormKind::kRms;
  DecayKind decay = DecayKind::kSoftplus;
  Lengths lengths = {1, 1, 1, 1, 1};
};

struct StepInputs {
  StepSpec spec;
  std::int32_t channels;
  TokenField x, a, b, z;
  std::vector<float> conv_weight, conv_bias, a_log, dt_bias, norm_weight, norm_bias;
  std::vector<std::vector<float>> tails, states;
};

std::shared_ptr<StepInputs> make_inputs(const StepSpec& s) {
  Random random(static_cast<std::uint64_t>(71 + s.value_heads));
  auto in = std::make_shared<StepInputs>();
  in->spec = s;
  in->channels = 2 * s.key_heads * s.key_dim + s.value_heads * s.value_dim;
  const auto numbers = [&](std::int32_t count, double scale, double shift = 0) {
    return random.normals(static_cast<std::size_t>(count), scale, shift);
  };
  in->x = normal_field(random, s.lengths, in->channels);
  in->a = normal_field(random, s.lengths, s.value_heads);
  in->b = normal_field(random, s.lengths, s.value_heads);
  in->z = normal_field(random, s.lengths, s.value_heads * s.value_dim, 2);
  in->conv_weight = numbers(in->channels * s.taps, 0.5), in->conv_bias = numbers(in->channels, 0.5);
  in->a_log = numbers(s.value_heads, 0.5), in->dt_bias = numbers(s.value_heads, 0.5);
  in->norm_weight = numbers(s.value_dim, 0.2, 1), in->norm_bias = numbers(s.value_dim, 0.2);
  for (std::size_t i = 0; i < s.lengths.size(); ++i) {
    in->tails.push_back(numbers((s.taps - 1) * in->channels, 1));
    in->states.push_back(numbers(s.value_heads * s.key_dim * s.value_dim, 0.3));
  }
  return in;
}

/// Rows of the call's tokens that the operator may use as it likes.
Rows room(OpRig& rig, std::int32_t tokens, std::int32_t width) {
  const std::int64_t stride = rig.row_stride(width, 5);
  return {rig.poisoned_activations(static_cast<std::size_t>(tokens * stride)), stride};
}
ConstRows columns(const Rows& rows, std::int32_t first, DType dtype) {
  return {static_cast<const std::uint8_t*>(rows.data) + std::int64_t{first} * (dtype_bits(dtype) / 8), rows.stride};
}

DeltaStepArgs bind(OpRig& rig, CallIo& io, const StepInputs& in) {
  const StepSpec& s = in.spec;
  const DType dtype = rig.dtype();
  const std::int32_t tokens = io.token_count(), gates = tokens * s.value_heads, keys = s.key_heads * s.key_dim;
  DeltaStepArgs a{};
  const Rows qkv = room(rig, tokens, in.channels);
  a.inputs.conv = {dtype,
                   GateKind::kSilu,
                   io.batch(),
                   in.channels,
                   s.taps,
                   rig.upload(in.conv_weight),
                   s.has_bias ? rig.upload(in.conv_bias) : nullptr,
                   io.in(in.x),
                   nullptr,
                   qkv};
  a.inputs.key_heads = s.key_heads, a.inputs.key_dim = s.key_dim;
  a.inputs.norm = FeatureMap::kL2;
  a.inputs.decay = {dtype,
                    s.decay,
                    s.decay == DecayKind::kSoftplus ? 0.0F : 16.0F,
                    tokens,
                    s.value_heads,
                    1,
                    rig.upload(in.a_log),
                    rig.upload(in.dt_bias),
                    io.in(in.a),
                    rig.poisoned(static_cast<std::size_t>(gates))};
  a.inputs.beta = {dtype,
                   DType::kF32,
                   FeatureMap::kSigmoid,
                   tokens,
                   1,
                   s.value_heads,
                   1,
                   1,
                   io.in(in.b),
                   {rig.poisoned(static_cast<std::size_t>(gates)), s.value_heads}};
  DeltaRuleArgs& rule = a.rule;
  rule.dtype = dtype, rule.phase = Phase::kDecode, rule.batch = io.batch();
  rule.key_heads = s.key_heads, rule.value_heads = s.value_heads, rule.key_dim = s.key_dim,
  rule.value_dim = s.value_dim;
  rule.scale = 1 / std::sqrt(static_cast<float>(s.key_dim));
  rule.q = qkv, rule.k = columns(qkv, keys, dtype), rule.v = columns(qkv, 2 * keys, dtype);
  rule.log_decay = a.inputs.decay.out, rule.beta = static_cast<const float*>(a.inputs.beta.out.data);
  rule.out = room(rig, tokens, s.value_heads * s.value_dim);
  const bool has_bias = s.norm == NormKind::kLayerNorm;
  a.norm = {dtype,
            s.norm,
            s.gate,
            tokens,
            s.value_heads,
            s.value_dim,
            1e-6F,
            rig.upload(in.norm_weight),
            has_bias ? rig.upload(in.norm_bias) : nullptr,
            rule.out,
            io.in(in.z),
            {}};
  return a;
}

OpCase step_case(const StepSpec& s) {
  const auto in = make_inputs(s);
  OpCase c{s.name, s.lengths, [in](OpRig& rig, const Schedule& schedule, Phase) {
             Outcome outcome;
             TokenOutput out("out", in->spec.lengths, in->spec.value_heads * in->spec.value_dim);
             const DeviceStates tails(rig, in->tails), states(rig, in->states);
             for (const Call& call : schedule) {
               CallIo io(rig, call);
               DeltaStepArgs args = bind(rig, io, *in);
               args.inputs.conv.tails = rig.upload(io.pick(tails.of_sequence));
               args.rule.states = rig.upload(io.pick(states.of_sequence));
               args.norm.out = io.out(out);
               if (!run_call(rig, io, rig.ops().delta_step, args, &outcome)) return outcome;
             }
             add_output(&outcome, out);
             tails.add_to(rig, "tails", &outcome);
             states.add_to(rig, "states", &outcome);
             return outcome;
           }};
  c.split_multiple = 1;
  return c;
}

}  // namespace

std::vector<OpCase> delta_step_cases() {
  return {step_case({"HV = HK", 2, 2}),
          step_case({"HV = 2 HK, bias", 2, 4, 128, 128, 4, true}),
          step_case({"HV = 3 HK, sigmoid gate", 1, 3, 128, 128, 4, false, GateKind::kSigmoid}),
          step_case({"HV = 4 HK, no gate, log sigmoid", 2, 8, 128, 128, 4, false, GateKind::kNone, NormKind::kRms,
                     DecayKind::kLogSigmoid}),
          step_case({"HV = 5 HK", 1, 5}),
          step_case({"layer norm", 1, 2, 128, 128, 4, false, GateKind::kSilu, NormKind::kLayerNorm}),
          step_case({"K 64, V 128", 1, 2, 64, 128}),
          step_case({"3 taps", 1, 1, 16, 16, 3})};
}

}  // namespace cairn::test
