// rms_norm, gated_rms_norm.
#include <memory>

#include "tests/backends/op_cases.h"

namespace cairn::test {
namespace {

const Lengths kLengths = {1, 63, 0, 65};

OpCase rows_alone(const char* name, std::function<Outcome(OpRig&, const Schedule&, Phase)> read) {
  OpCase c{name, kLengths, std::move(read)};
  c.split_multiple = 1;
  c.has_decode = false;
  return c;
}

OpCase norm_case(const char* name, std::int32_t heads, std::int32_t dim, bool has_weight, bool in_place) {
  Random random(20);
  auto x = std::make_shared<TokenField>(normal_field(random, kLengths, heads * dim, 2));
  auto weight = std::make_shared<std::vector<float>>(random.normals(dim, 0.2, 1));
  return rows_alone(name, [=](OpRig& rig, const Schedule& schedule, Phase) {
    Outcome outcome;
    TokenOutput out("out", kLengths, heads * dim);
    for (const Call& call : schedule) {
      CallIo io(rig, call);
      RmsNormArgs args{rig.dtype(), io.token_count(), heads, dim, 1e-6F, has_weight ? rig.upload(*weight) : nullptr, {},
                       {}};
      args.out = in_place ? io.in_place(*x, out) : io.out(out);
      args.in = in_place ? ConstRows(args.out) : io.in(*x);
      if (!run_call(rig, io, rig.ops().rms_norm, args, &outcome)) return outcome;
    }
    add_output(&outcome, out);
    return outcome;
  });
}

OpCase gated_case(const char* name, NormKind norm, GateKind gate_kind, std::int32_t heads, std::int32_t dim,
                  bool in_place, bool has_bias = false) {
  Random random(21);
  auto x = std::make_shared<TokenField>(normal_field(random, kLengths, heads * dim, 2)),
       z = std::make_shared<TokenField>(normal_field(random, kLengths, heads * dim, 3));
  auto weight = std::make_shared<std::vector<float>>(random.normals(dim, 0.2, 1)),
       bias = std::make_shared<std::vector<float>>(random.normals(dim));
  return rows_alone(name, [=](OpRig& rig, const Schedule& schedule, Phase) {
    Outcome outcome;
    TokenOutput out("out", kLengths, heads * dim);
    for (const Call& call : schedule) {
      CallIo io(rig, call);
      GatedRmsNormArgs args{rig.dtype(),
                            norm,
                            gate_kind,
                            io.token_count(),
                            heads,
                            dim,
                            1e-5F,
                            rig.upload(*weight),
                            has_bias ? rig.upload(*bias) : nullptr,
                            {},
                            {},
                            {}};
      if (gate_kind != GateKind::kNone) args.gate = io.in(*z);
      args.out = in_place ? io.in_place(*x, out) : io.out(out);
      args.in = in_place ? ConstRows(args.out) : io.in(*x);
      if (!run_call(rig, io, rig.ops().gated_rms_norm, args, &outcome)) return outcome;
    }
    add_output(&outcome, out);
    return outcome;
  });
}

}  // namespace

std::vector<OpCase> rms_norm_cases() {
  return {norm_case("one head", 1, 320, true, false), norm_case("heads, odd", 3, 7, true, false),
          norm_case("no weight, in place", 2, 64, false, true), norm_case("one number", 2, 1, true, false)};
}

std::vector<OpCase> gated_rms_norm_cases() {
  return {gated_case("silu", NormKind::kRms, GateKind::kSilu, 4, 16, false),
          gated_case("sigmoid, in place", NormKind::kRms, GateKind::kSigmoid, 2, 33, true),
          gated_case("no gate", NormKind::kRms, GateKind::kNone, 1, 128, false),
          gated_case("layer norm", NormKind::kLayerNorm, GateKind::kSilu, 3, 24, false, true),
          gated_case("layer norm, no bias, no gate", NormKind::kLayerNorm, GateKind::kNone, 2, 5, true)};
}

}  // namespace cairn::test
