// linear_swiglu: halves in and out of every multiple, storages with and without a fused form.
#include <memory>

#include "tests/backends/linear_cases.h"
#include "tests/backends/op_cases.h"

namespace cairn::test {
namespace {

struct SwigluSpec {
  const char* name;
  std::int32_t half, in_dim;
  bool has_bias = false;
  DType dtype = DType::kBF16;
  Lengths lengths = {1, 2, 1};
};

OpCase swiglu_case(const SwigluSpec& s) {
  Random random(63);
  auto weight = std::make_shared<HostWeight>(random_weight(random, 2 * s.half, s.in_dim, s.dtype, s.has_bias));
  auto x = std::make_shared<TokenField>(normal_field(random, s.lengths, s.in_dim));
  return weight_case(s.name, s.lengths, weight, s.half,
                     [=](OpRig& rig, CallIo& io, const LinearWeight& w, Phase phase, TokenOutput& out,
                         Outcome* outcome) {
                       const LinearArgs args{rig.dtype(), rig.dtype(), phase,     false,
                                             io.token_count(), &w,        io.in(*x), io.out(out)};
                       return run_call(rig, io, rig.ops().linear_swiglu, args, outcome);
                     });
}

}  // namespace

std::vector<OpCase> linear_swiglu_cases() {
  std::vector<OpCase> cases;
  for (const SwigluSpec& spec : std::vector<SwigluSpec>{{"1 and 1", 1, 64},
                                                        {"odd widths, bias", 37, 41, true},
                                                        {"2 x 45, bias", 45, 192, true},
                                                        {"2 x 133, a ring's worth of inputs", 133, 2112},
                                                        {"2 x 2201, many outputs", 2201, 704, true},
                                                        {"several passes", 12800, 64},
                                                        {"f32", 20, 64, false, DType::kF32},
                                                        {"i8", 17, 96, true, DType::kI8},
                                                        {"7 at once", 135, 1152, false, DType::kBF16, Lengths(7, 1)},
                                                        {"8 at once", 135, 1152, true, DType::kBF16, Lengths(8, 1)},
                                                        {"9 at once", 2120, 192, false, DType::kBF16, Lengths(9, 1)},
                                                        {"17 at once", 135, 640, false, DType::kBF16, Lengths(17, 1)},
                                                        {"70 at once", 2120, 192, true, DType::kBF16, Lengths(70, 1)}}) {
    cases.push_back(swiglu_case(spec));
  }
  return cases;
}

}  // namespace cairn::test
