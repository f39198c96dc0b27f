// moe: both routers, renormalised or not, correction, groups, every storage of weights.
#include <memory>

#include "tests/backends/linear_cases.h"
#include "tests/backends/op_cases.h"

namespace cairn::test {
namespace {

struct MoeSpec {
  const char* name;
  RouterKind router;
  bool renormalize, has_correction;
  std::int32_t D, F, E, top_k, groups, top_groups;
  float scale;
  DType dtype = DType::kF32;
  Lengths lengths = {1, 20, 0, 65};
  std::int32_t group_size = 32;
};

struct MoeInputs {
  std::vector<HostWeight> gate, up, down;
  TokenField x, logits;
  std::vector<float> correction;
};

OpCase moe_case(const MoeSpec& s) {
  Random random(40);
  auto in = std::make_shared<MoeInputs>();
  for (std::int32_t e = 0; e < s.E; ++e) {
    in->gate.push_back(random_weight(random, s.F, s.D, s.dtype, false, s.group_size));
    in->up.push_back(random_weight(random, s.F, s.D, s.dtype, false, s.group_size));
    in->down.push_back(random_weight(random, s.D, s.F, s.dtype, false, s.group_size));
  }
  in->x = normal_field(random, s.lengths, s.D);
  in->logits = normal_field(random, s.lengths, s.E, 2);
  in->correction = random.normals(s.E, 0.3);
  OpCase c{s.name, s.lengths, [=](OpRig& rig, const Schedule& schedule, Phase phase) {
             Outcome outcome;
             TokenOutput out("out", s.lengths, s.D);
             std::vector<LinearWeight> gate, up, down;
             for (std::int32_t e = 0; e < s.E; ++e) {
               gate.push_back(bind_weight(rig, in->gate[e]));
               up.push_back(bind_weight(rig, in->up[e]));
               down.push_back(bind_weight(rig, in->down[e]));
             }
             for (auto* weights : {&gate, &up, &down}) {
               for (LinearWeight& weight : *weights) rig.pack(&weight);
             }
             for (const Call& call : schedule) {
               CallIo io(rig, call);
               const MoeArgs args{rig.dtype(),
                                  phase,
                                  s.router,
                                  s.renormalize,
                                  s.scale,
                                  io.token_count(),
                                  s.D,
                                  s.F,
                                  s.E,
                                  s.top_k,
                                  s.groups,
                                  s.top_groups,
                                  io.packed(in->logits),
                                  s.has_correction ? rig.upload(in->correction) : nullptr,
                                  gate.data(),
                                  up.data(),
                                  down.data(),
                                  io.in(in->x),
                                  io.out(out)};
               if (!run_call(rig, io, rig.ops().moe, args, &outcome)) break;
             }
             if (outcome.trouble.empty()) add_output(&outcome, out);
             rig.clear();  // the weights are unpacked while they live
             return outcome;
           }};
  c.split_multiple = 1;
  return c;
}

}  // namespace

std::vector<OpCase> moe_cases() {
  std::vector<OpCase> cases;
  for (const MoeSpec& spec :
       std::vector<MoeSpec>{{"softmax, renormalised", RouterKind::kSoftmax, true, false, 24, 16, 8, 3, 1, 1, 1},
                            {"softmax: neither groups nor correction", RouterKind::kSoftmax, true, true, 16, 8, 12, 3,
                             4, 2, 1},
                            {"softmax, as they are, odd", RouterKind::kSoftmax, false, false, 13, 7, 5, 2, 1, 1, 1},
                            {"sigmoid, correction", RouterKind::kSigmoid, true, true, 24, 16, 8, 2, 1, 1, 2.446F},
                            {"sigmoid, groups", RouterKind::kSigmoid, true, true, 16, 16, 12, 3, 4, 2, 2.5F},
                            {"sigmoid, not renormalised", RouterKind::kSigmoid, false, false, 16, 8, 6, 6, 1, 1, 1},
                            {"bf16 weights", RouterKind::kSoftmax, true, false, 32, 48, 4, 1, 1, 1, 1, DType::kBF16},
                            {"i4 weights", RouterKind::kSoftmax, true, false, 64, 32, 4, 2, 1, 1, 1, DType::kI4},
                            {"bf16, rows past the tiles", RouterKind::kSoftmax, true, false, 136, 88, 9, 3, 1, 1, 1,
                             DType::kBF16, {200, 9}},
                            {"bf16, 260 experts in groups", RouterKind::kSigmoid, true, true, 72, 40, 260, 6, 26, 7, 1.5F,
                             DType::kBF16, {1, 13}},
                            {"i8 weights", RouterKind::kSoftmax, true, false, 136, 72, 6, 2, 1, 1, 1, DType::kI8, {1, 20, 0, 65}},
                            {"i4 weights, groups of 64", RouterKind::kSoftmax, true, false, 192, 128, 5, 2, 1, 1, 1, DType::kI4,
                             {1, 70}, 64}}) {
    cases.push_back(moe_case(spec));
  }
  return cases;
}

}  // namespace cairn::test
