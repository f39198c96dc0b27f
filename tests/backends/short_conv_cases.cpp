// short_conv: kernels of 1 to 5 taps, a tail that is not zero, pieces shorter than the kernel.
#include <memory>

#include "tests/backends/op_cases.h"

namespace cairn::test {
namespace {

struct ConvSpec {
  const char* name;
  std::int32_t channels, kernel;
  GateKind activation;
  bool has_bias;
  Lengths lengths = {1, 2, 63, 0, 65, 130};
};

OpCase conv_case(const ConvSpec& s) {
  Random random(50);
  auto x = std::make_shared<TokenField>(normal_field(random, s.lengths, s.channels));
  auto weight =
      std::make_shared<std::vector<float>>(random.normals(static_cast<std::size_t>(s.channels) * s.kernel, 0.5));
  auto bias = std::make_shared<std::vector<float>>(random.normals(s.channels));
  auto tails = std::make_shared<std::vector<std::vector<float>>>();
  for (std::size_t b = 0; b < s.lengths.size(); ++b)
    tails->push_back(random.normals(static_cast<std::size_t>(s.kernel - 1) * s.channels));
  OpCase c{s.name, s.lengths, [=](OpRig& rig, const Schedule& schedule, Phase phase) {
             Outcome outcome;
             TokenOutput out("out", s.lengths, s.channels);
             const DeviceStates states(rig, *tails);
             for (const Call& call : schedule) {
               CallIo io(rig, call);
               ShortConvArgs args{rig.dtype(),
                                  s.activation,
                                  io.batch(),
                                  s.channels,
                                  s.kernel,
                                  rig.upload(*weight),
                                  s.has_bias ? rig.upload(*bias) : nullptr,
                                  {},
                                  rig.upload(io.pick(states.of_sequence)),
                                  {}};
               // In the decode phase the output may take the place of the input.
               args.out = phase == Phase::kDecode ? io.in_place(*x, out) : io.out(out);
               args.in = phase == Phase::kDecode ? ConstRows(args.out) : io.in(*x);
               if (!run_call(rig, io, rig.ops().short_conv, args, &outcome)) return outcome;
             }
             add_output(&outcome, out);
             states.add_to(rig, "tails", &outcome);
             return outcome;
           }};
  c.split_multiple = 1;
  return c;
}

}  // namespace

std::vector<OpCase> short_conv_cases() {
  return {conv_case({"4 taps, silu", 40, 4, GateKind::kSilu, false}),
          conv_case({"4 taps, bias, none", 33, 4, GateKind::kNone, true}),
          conv_case({"1 tap", 7, 1, GateKind::kSilu, true}),
          conv_case({"2 taps", 16, 2, GateKind::kSilu, false}),
          conv_case({"5 taps, one channel", 1, 5, GateKind::kSilu, true}),
          conv_case({"nothing to read", 8, 4, GateKind::kSilu, false, {0, 0}})};
}

}  // namespace cairn::test
