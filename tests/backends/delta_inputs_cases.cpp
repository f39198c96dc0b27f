// delta_inputs: decode only, one token of each sequence.
#include <memory>

#include "tests/backends/op_cases.h"

namespace cairn::test {
namespace {

struct InputsSpec {
  const char* name;
  std::int32_t key_heads, value_heads, key_dim, channels;
  std::int32_t taps = 4;
  bool has_bias = false;
  FeatureMap norm = FeatureMap::kL2;
  DecayKind decay = DecayKind::kSoftplus;
  Lengths lengths = {1, 1, 1, 1, 1};
};

OpCase inputs_case(const InputsSpec& s) {
  Random random(51);
  const auto field = [&](std::int32_t width) { return std::make_shared<TokenField>(normal_field(random, s.lengths, width)); };
  const auto numbers = [&](std::int32_t count) {
    return std::make_shared<std::vector<float>>(random.normals(static_cast<std::size_t>(count), 0.5));
  };
  const auto x = field(s.channels), a = field(s.value_heads), b = field(s.value_heads);
  const auto weight = numbers(s.channels * s.taps), bias = numbers(s.channels), a_log = numbers(s.value_heads),
             dt_bias = numbers(s.value_heads);
  auto tails = std::make_shared<std::vector<std::vector<float>>>();
  for (std::size_t i = 0; i < s.lengths.size(); ++i) tails->push_back(*numbers((s.taps - 1) * s.channels));
  OpCase c{s.name, s.lengths, [=](OpRig& rig, const Schedule& schedule, Phase) {
             Outcome outcome;
             TokenOutput out("out", s.lengths, s.channels), decay("decay", s.lengths, s.value_heads),
                 beta("beta", s.lengths, s.value_heads);
             const DeviceStates states(rig, *tails);
             for (const Call& call : schedule) {
               CallIo io(rig, call);
               DeltaInputsArgs args{};
               args.conv = {rig.dtype(), GateKind::kSilu, io.batch(), s.channels, s.taps, rig.upload(*weight),
                            s.has_bias ? rig.upload(*bias) : nullptr, io.in(*x), rig.upload(io.pick(states.of_sequence)),
                            io.out(out)};
               args.key_heads = s.key_heads;
               args.key_dim = s.key_dim;
               args.norm = s.norm;
               args.decay = {rig.dtype(), s.decay, s.decay == DecayKind::kSoftplus ? 0.0F : 16.0F, io.token_count(), s.value_heads,
                             1, rig.upload(*a_log), rig.upload(*dt_bias), io.in(*a), io.packed_out(decay)};
               args.beta = {rig.dtype(), DType::kF32, FeatureMap::kSigmoid, io.token_count(), 1, s.value_heads, 1, 2, io.in(*b),
                            {io.packed_out(beta), s.value_heads}};
               if (!run_call(rig, io, rig.ops().delta_inputs, args, &outcome)) return outcome;
             }
             for (const TokenOutput* output : {&out, &decay, &beta}) add_output(&outcome, *output);
             states.add_to(rig, "tails", &outcome);
             return outcome;
           }};
  c.split_multiple = 1;
  return c;
}

}  // namespace

std::vector<OpCase> delta_inputs_cases() {
  return {inputs_case({"two key heads, four value heads", 2, 4, 32, 256}),
          inputs_case({"heads of 128, bias", 1, 3, 128, 640, 4, true}),
          inputs_case({"heads of 24, 40 gates, log sigmoid", 2, 40, 24, 168, 4, false, FeatureMap::kL2, DecayKind::kLogSigmoid}),
          inputs_case({"heads of 256", 1, 1, 256, 768}),
          inputs_case({"3 taps", 1, 2, 16, 64, 3}),
          inputs_case({"1 tap", 1, 2, 16, 64, 1}),
          inputs_case({"sum norm, odd heads", 1, 2, 5, 20, 4, true, FeatureMap::kSumNorm})};
}

}  // namespace cairn::test
