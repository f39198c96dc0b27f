// delta_net, gdn, kda, gdn2: ragged batches, non-zero states, residuals and checkpoints.
#include <memory>

#include "tests/backends/op_cases.h"
#include "tests/support/tolerance.h"

namespace cairn::test {
namespace {

enum class Rule { kDeltaNet, kGdn, kKda, kGdn2 };

struct DeltaSpec {
  const char* name;
  std::int32_t HK, HV, K, V;
  Lengths lengths;
  bool harsh = false;
  bool wants_residual = true;
  bool forgets = false;  ///< chunks of 64 decay by 2^-90 to 2^-115, where chunked forms change their ways
};

struct DeltaInputs {
  DeltaSpec spec;
  Rule rule;
  TokenField q, k, v, decay, beta, erase, write;
  std::vector<std::vector<float>> states;
};

std::shared_ptr<DeltaInputs> make_inputs(const DeltaSpec& s, Rule rule) {
  Random random(static_cast<std::uint64_t>(s.K * 1000 + s.V * 10 + s.HV));
  auto in = std::make_shared<DeltaInputs>();
  in->spec = s;
  in->rule = rule;
  in->q = unit_field(random, s.lengths, s.HK, s.K);
  in->k = unit_field(random, s.lengths, s.HK, s.K);
  in->v = normal_field(random, s.lengths, s.HV * s.V);
  const std::int32_t decays = rule == Rule::kGdn ? s.HV : s.HV * s.K;
  in->decay = s.forgets ? uniform_field(random, s.lengths, decays, -1.8, -0.4)
                        : decay_field(random, s.lengths, decays, s.harsh);
  in->beta = uniform_field(random, s.lengths, s.HV, 0, 1);
  in->erase = uniform_field(random, s.lengths, s.HV * s.K, 0, 1);
  in->write = uniform_field(random, s.lengths, s.HV * s.V, 0, 1);
  for (std::size_t b = 0; b < s.lengths.size(); ++b)
    in->states.push_back(random.normals(static_cast<std::size_t>(s.HV) * s.K * s.V, 0.3));
  return in;
}

const Op<DeltaRuleArgs>& op_of(const OpTable& ops, Rule rule) {
  switch (rule) {
    case Rule::kDeltaNet: return ops.delta_net;
    case Rule::kGdn: return ops.gdn;
    case Rule::kKda: return ops.kda;
    default: return ops.gdn2;
  }
}

DeltaRuleArgs bind(OpRig& rig, CallIo& io, const DeltaInputs& in, const DeviceStates& states, Phase phase) {
  const DeltaSpec& s = in.spec;
  DeltaRuleArgs a{};
  a.dtype = rig.dtype();
  a.phase = phase;
  a.batch = io.batch();
  a.key_heads = s.HK, a.value_heads = s.HV, a.key_dim = s.K, a.value_dim = s.V;
  a.scale = 1 / std::sqrt(static_cast<float>(s.K));
  a.q = io.in(in.q), a.k = io.in(in.k), a.v = io.in(in.v);
  if (in.rule != Rule::kDeltaNet) a.log_decay = io.packed(in.decay);
  if (in.rule != Rule::kGdn2) a.beta = io.packed(in.beta);
  if (in.rule == Rule::kGdn2) a.erase = io.in(in.erase), a.write = io.in(in.write);
  a.states = rig.upload(io.pick(states.of_sequence));
  return a;
}

/// Checkpoints of a call with all tokens of each sequence: room for those due, filled with NaN.
struct Checkpoints {
  Checkpoints(OpRig& rig, const Call& call, std::size_t state_size) {
    for (const Piece& piece : call) {
      counts.push_back(piece.count > 64 ? (piece.count - 1) / 64 * state_size : 0);
      of_piece.push_back(rig.poisoned(counts.back()));
    }
  }
  std::vector<float*> of_piece;
  std::vector<std::size_t> counts;
};

Outcome read(OpRig& rig, const DeltaInputs& in, const Schedule& schedule, Phase phase) {
  const DeltaSpec& s = in.spec;
  Outcome outcome;
  TokenOutput out("out", s.lengths, s.HV * s.V), residual("residual", s.lengths, s.HV * s.V);
  const DeviceStates states(rig, in.states);
  // A batch of whole sequences also asks for checkpoints; they are part of what is compared between backends.
  const bool whole = phase == Phase::kPrefill && schedule.size() == 1;
  for (const Call& call : schedule) {
    CallIo io(rig, call);
    DeltaRuleArgs args = bind(rig, io, in, states, phase);
    args.out = io.out(out);
    if (s.wants_residual) args.residual = io.out(residual);
    const Checkpoints checkpoints(rig, call, in.states[0].size());
    if (whole) args.checkpoint_chunks = 1, args.checkpoints = rig.upload(checkpoints.of_piece);
    if (!run_call(rig, io, op_of(rig.ops(), in.rule), args, &outcome)) return outcome;
    for (std::size_t i = 0; whole && i < call.size(); ++i) {
      outcome.outputs.push_back({"checkpoints of " + std::to_string(call[i].sequence),
                                 rig.download(checkpoints.of_piece[i], checkpoints.counts[i])});
    }
  }
  add_output(&outcome, out);
  if (s.wants_residual) add_output(&outcome, residual);
  states.add_to(rig, "states", &outcome);
  return outcome;
}

std::vector<OpCase> cases(Rule rule) {
  std::vector<DeltaSpec> specs = {
      {"T 500, HV = HK", 2, 2, 16, 16, {500}},
      {"ragged, HV = 2 HK", 2, 4, 64, 64, {1, 63, 0, 64, 65, 130}},
      {"odd dims, HV = 3 HK", 1, 3, 5, 7, {65, 0, 2, 129}},
      {"K 96, V 192", 1, 1, 96, 192, {70, 3}},
      {"K 128, V 128", 1, 2, 128, 128, {100, 64}},
      {"nothing to read", 1, 1, 8, 8, {0, 0}},
      {"gates to -1e4", 1, 2, 16, 16, {150, 64}, true},
      {"gates to -1e4, K 128, V 128", 1, 1, 128, 128, {65, 0, 80}, true, false},
      {"HV = 3 HK, K 32, V 32", 1, 3, 32, 32, {0, 1, 63, 64, 65, 500}},
      {"K 96, V 192, no residual", 1, 1, 96, 192, {130, 17}, false, false},
      {"K 64, V 72, no residual", 2, 4, 64, 72, {1, 200, 0, 64}, false, false},
      {"odd dims, K 97, V 33", 1, 2, 97, 33, {67, 1}},
      {"K 160, V 40", 1, 1, 160, 40, {70}},
      {"forgets within a chunk, K 128, V 128", 2, 4, 128, 128, {200, 64, 1, 65}, false, false, true},
  };
  if (rule == Rule::kDeltaNet || rule == Rule::kGdn) {
    // Enough states for the forms that the cuda backend has for batches: 70 and 64.
    specs.push_back({"a batch of 14 heads, K 128, V 128", 7, 14, 128, 128, {129, 1, 0, 66, 1}, false, false});
    specs.push_back({"gates to -1e4, a batch of 16 heads", 8, 16, 128, 128, {65, 0, 2, 64}, true, false});
  }
  std::vector<OpCase> result;
  for (const DeltaSpec& spec : specs) {
    const auto inputs = make_inputs(spec, rule);
    OpCase c{spec.name, spec.lengths, [inputs](OpRig& rig, const Schedule& schedule, Phase phase) {
               return read(rig, *inputs, schedule, phase);
             }};
    if (spec.harsh) c.tolerance = kHarshTolerance;
    result.push_back(c);
  }
  return result;
}

}  // namespace

std::vector<OpCase> delta_net_cases() { return cases(Rule::kDeltaNet); }
std::vector<OpCase> gdn_cases() { return cases(Rule::kGdn); }
std::vector<OpCase> kda_cases() { return cases(Rule::kKda); }
std::vector<OpCase> gdn2_cases() { return cases(Rule::kGdn2); }

}  // namespace cairn::test
