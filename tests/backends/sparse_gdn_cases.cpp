// sparse_gdn: every policy but random (whose generator belongs to a backend), full and 7-block inverse, ragged batches.
#include <memory>

#include "tests/backends/op_cases.h"
#include "tests/support/tolerance.h"

namespace cairn::test {
namespace {

struct SparseSpec {
  const char* name;
  std::int32_t HK, HV, K, V;
  Lengths lengths;
  SparsePolicy policy = SparsePolicy::kAdaptive;
  bool full_inverse = false, harsh = false;
};

struct SparseInputs {
  SparseSpec spec;
  TokenField q, k, v, decay, beta, gate;
  std::vector<float> norm_weight;
  std::vector<std::uint8_t> mask;
  std::vector<std::int32_t> tier;
  std::vector<std::vector<float>> states;
};

std::shared_ptr<SparseInputs> make_inputs(const SparseSpec& s) {
  Random random(static_cast<std::uint64_t>(s.K * 100 + s.HV));
  auto in = std::make_shared<SparseInputs>();
  in->spec = s;
  in->q = unit_field(random, s.lengths, s.HK, s.K);
  in->k = unit_field(random, s.lengths, s.HK, s.K);
  in->v = normal_field(random, s.lengths, s.HV * s.V);
  for (auto& values : in->v.of_sequence) {  // chunks of different weight, so that the ranking is clear
    const std::size_t chunk = static_cast<std::size_t>(64) * s.HV * s.V;
    double weight = 1;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % chunk == 0) weight = std::exp(0.8 * random.normal());
      values[i] = static_cast<float>(values[i] * weight);
    }
  }
  in->decay = decay_field(random, s.lengths, s.HV, s.harsh);
  in->beta = uniform_field(random, s.lengths, s.HV, 0, 1);
  in->gate = normal_field(random, s.lengths, s.HV * s.V);
  in->norm_weight = random.normals(s.V, 0.2, 1);
  const std::int32_t chunks = (s.lengths[0] + 63) / 64;
  for (std::int32_t i = 0; i < s.HK * chunks; ++i) in->mask.push_back(random.uniform() < 0.5);
  for (std::int32_t p = 0; p < s.HK; ++p) in->tier.push_back(static_cast<std::int32_t>(random.bits() % 3));
  for (std::size_t b = 0; b < s.lengths.size(); ++b)
    in->states.push_back(random.normals(static_cast<std::size_t>(s.HV) * s.K * s.V, 0.3));
  return in;
}

Outcome read(OpRig& rig, const SparseInputs& in, const Schedule& schedule) {
  const SparseSpec& s = in.spec;
  Outcome outcome;
  TokenOutput out("out", s.lengths, s.HV * s.V);
  const DeviceStates states(rig, in.states);
  for (const Call& call : schedule) {
    CallIo io(rig, call);
    SparseGdnArgs args{};
    DeltaRuleArgs& a = args.delta;
    a.dtype = rig.dtype();
    a.batch = io.batch();
    a.key_heads = s.HK, a.value_heads = s.HV, a.key_dim = s.K, a.value_dim = s.V;
    a.scale = 1 / std::sqrt(static_cast<float>(s.K));
    a.q = io.in(in.q), a.k = io.in(in.k), a.v = io.in(in.v);
    a.log_decay = io.packed(in.decay);
    a.beta = io.packed(in.beta);
    a.states = rig.upload(io.pick(states.of_sequence));
    a.out = io.out(out);
    args.policy = s.policy;
    args.full_inverse = s.full_inverse;
    args.gate = io.in(in.gate);
    args.norm_weight = rig.upload(in.norm_weight);
    if (s.policy == SparsePolicy::kGiven) args.given_mask = rig.upload(in.mask), args.given_tier = rig.upload(in.tier);
    if (!run_call(rig, io, rig.ops().sparse_gdn, args, &outcome)) return outcome;
  }
  add_output(&outcome, out);
  states.add_to(rig, "states", &outcome);
  return outcome;
}

}  // namespace

std::vector<OpCase> sparse_gdn_cases() {
  const std::vector<SparseSpec> specs = {
      {"adaptive, ragged, ratio 2", 2, 4, 16, 16, {460, 0, 64, 1, 590}},
      {"adaptive, ratio 3, odd dims", 4, 12, 12, 8, {401}},
      {"all", 2, 4, 16, 16, {200, 65}, SparsePolicy::kAll},
      {"all, full inverse", 2, 2, 16, 16, {200, 65}, SparsePolicy::kAll, true},
      {"fixed, 16 groups", 16, 16, 8, 8, {840}, SparsePolicy::kFixed},
      {"given", 3, 6, 16, 8, {460}, SparsePolicy::kGiven},
      {"given, gates to -1e4", 2, 4, 16, 16, {300}, SparsePolicy::kGiven, false, true},
      {"K 128, V 128", 1, 2, 128, 128, {330}},
  };
  std::vector<OpCase> result;
  for (const SparseSpec& spec : specs) {
    const auto inputs = make_inputs(spec);
    OpCase c{spec.name, spec.lengths,
             [inputs](OpRig& rig, const Schedule& schedule, Phase) { return read(rig, *inputs, schedule); }};
    c.split_multiple = 0;  // selects over its own call
    c.has_decode = false;
    if (spec.harsh) c.tolerance = kHarshTolerance;
    result.push_back(c);
  }
  return result;
}

}  // namespace cairn::test
