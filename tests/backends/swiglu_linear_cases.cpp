// swiglu_linear: gate and up in one weight, for few tokens and many.
#include <memory>

#include "tests/backends/linear_cases.h"
#include "tests/backends/op_cases.h"

namespace cairn::test {
namespace {

struct SwigluLinearSpec {
  const char* name;
  std::int32_t hidden, in_dim;
  DType dtype = DType::kBF16;
  bool has_bias = false;
  Lengths lengths = {1, 3, 0, 5, 2};
};

OpCase swiglu_linear_case(const SwigluLinearSpec& spec) {
  Random random(35);
  auto weight = std::make_shared<HostWeight>(random_weight(random, 2 * spec.hidden, spec.in_dim, spec.dtype, spec.has_bias, 32));
  auto x = std::make_shared<TokenField>(normal_field(random, spec.lengths, spec.in_dim));
  OpCase c{spec.name, spec.lengths, [=](OpRig& rig, const Schedule& schedule, Phase phase) {
             Outcome outcome;
             TokenOutput out("out", spec.lengths, spec.hidden);
             LinearWeight w = bind_weight(rig, *weight);
             rig.pack(&w);
             for (const Call& call : schedule) {
               CallIo io(rig, call);
               SwigluLinearArgs args{{rig.dtype(), rig.dtype(), phase, false, io.token_count(), &w, io.in(*x), io.out(out)}};
               if (!run_call(rig, io, rig.ops().swiglu_linear, args, &outcome)) break;
             }
             if (outcome.trouble.empty()) add_output(&outcome, out);
             rig.clear();
             return outcome;
           }};
  c.split_multiple = 1;
  return c;
}

}  // namespace

std::vector<OpCase> swiglu_linear_cases() {
  return {swiglu_linear_case({"few outputs", 40, 136}),
          swiglu_linear_case({"odd outputs, bias", 33, 2056, DType::kBF16, true}),
          swiglu_linear_case({"many outputs", 3075, 72}),
          swiglu_linear_case({"many outputs, bias, many tokens", 3072, 1096, DType::kBF16, true, {60, 9, 2}}),
          swiglu_linear_case({"i8 weights", 24, 64, DType::kI8}),
          swiglu_linear_case({"odd sizes", 5, 17, DType::kF32})};
}

}  // namespace cairn::test
