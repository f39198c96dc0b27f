// sse: the three transitions, both prefill paths, with and without a shared partition and gates of its own.
#include <memory>

#include "tests/backends/op_cases.h"
#include "tests/support/tolerance.h"

namespace cairn::test {
namespace {

struct SseSpec {
  const char* name;
  std::int32_t H, K, V, P, top_k;
  Lengths lengths;
  SseTransition transition = SseTransition::kGla;
  SsePath path = SsePath::kAuto;
  bool has_shared = true, own_shared_gates = false, gate_write = true, gate_read = true, harsh = false;
};

struct SseInputs {
  SseSpec spec;
  TokenField logits, q, k, v, shared_q, shared_k, decay, shared_decay, beta, shared_beta;
  std::vector<std::vector<float>> states, shared_states;
};

std::shared_ptr<SseInputs> make_inputs(const SseSpec& s) {
  Random random(static_cast<std::uint64_t>(s.K * 100 + s.P));
  auto in = std::make_shared<SseInputs>();
  const std::int32_t decays = s.transition == SseTransition::kGdn ? s.H : s.H * s.K;
  in->spec = s;
  in->logits = normal_field(random, s.lengths, s.P, 1.5);
  in->q = normal_field(random, s.lengths, s.H * s.K);
  in->k = unit_field(random, s.lengths, s.H, s.K);
  in->v = normal_field(random, s.lengths, s.H * s.V);
  in->shared_q = normal_field(random, s.lengths, s.H * s.K);
  in->shared_k = unit_field(random, s.lengths, s.H, s.K);
  in->decay = decay_field(random, s.lengths, decays, s.harsh);
  in->shared_decay = decay_field(random, s.lengths, decays, s.harsh);
  in->beta = uniform_field(random, s.lengths, s.H, 0, 1);
  in->shared_beta = uniform_field(random, s.lengths, s.H, 0, 1);
  const std::size_t state = static_cast<std::size_t>(s.H) * s.K * s.V;
  for (std::size_t b = 0; b < s.lengths.size(); ++b) {
    in->states.push_back(random.normals(s.P * state, 0.3));
    in->shared_states.push_back(random.normals(state, 0.3));
  }
  return in;
}

void bind_shared(OpRig& rig, CallIo& io, const SseInputs& in, const DeviceStates& shared_states, SseArgs* a) {
  if (!in.spec.has_shared) return;
  a->shared_q = io.in(in.shared_q);
  a->shared_k = io.in(in.shared_k);
  a->shared_states = rig.upload(io.pick(shared_states.of_sequence));
  if (!in.spec.own_shared_gates) return;
  a->shared_log_decay = io.packed(in.shared_decay);
  if (in.spec.transition != SseTransition::kGla) a->shared_beta = io.packed(in.shared_beta);
}

Outcome read(OpRig& rig, const SseInputs& in, const Schedule& schedule, Phase phase) {
  const SseSpec& s = in.spec;
  Outcome outcome;
  TokenOutput out("out", s.lengths, s.H * s.V);
  const DeviceStates states(rig, in.states), shared_states(rig, in.shared_states);
  for (const Call& call : schedule) {
    CallIo io(rig, call);
    SseArgs a{};
    a.dtype = rig.dtype();
    a.phase = phase;
    a.transition = s.transition;
    a.path = s.path;
    a.gate_write = s.gate_write, a.gate_read = s.gate_read;
    a.batch = io.batch();
    a.head_count = s.H, a.key_dim = s.K, a.value_dim = s.V, a.partition_count = s.P, a.top_k = s.top_k;
    a.route_logits = io.packed(in.logits);
    a.q = io.in(in.q), a.k = io.in(in.k), a.v = io.in(in.v);
    a.log_decay = io.packed(in.decay);
    if (s.transition != SseTransition::kGla) a.beta = io.packed(in.beta);
    a.states = rig.upload(io.pick(states.of_sequence));
    bind_shared(rig, io, in, shared_states, &a);
    a.out = io.out(out);
    if (!run_call(rig, io, rig.ops().sse, a, &outcome)) return outcome;
  }
  add_output(&outcome, out);
  states.add_to(rig, "states", &outcome);
  shared_states.add_to(rig, "shared states", &outcome);
  return outcome;
}

}  // namespace

std::vector<OpCase> sse_cases() {
  const std::vector<SseSpec> specs = {
      {"GLA, ragged", 2, 16, 24, 4, 1, {1, 63, 0, 65, 130}},
      {"GLA, T 500, masked", 1, 16, 8, 8, 2, {500}, SseTransition::kGla, SsePath::kMasked},
      {"GLA, T 500, varlen", 1, 16, 8, 8, 2, {500, 64}, SseTransition::kGla, SsePath::kVarlen},
      {"GLA, no shared partition, odd dims", 3, 6, 5, 5, 3, {70, 2}, SseTransition::kGla, SsePath::kAuto, false},
      {"GLA, all partitions chosen", 1, 8, 8, 3, 3, {66}},
      {"GLA, own shared gates", 2, 64, 64, 4, 1, {100, 64}, SseTransition::kGla, SsePath::kAuto, true, true},
      {"delta", 2, 16, 8, 5, 2, {130, 0, 65}, SseTransition::kDelta},
      {"delta, own shared gates, varlen", 2, 16, 8, 5, 2, {130}, SseTransition::kDelta, SsePath::kVarlen, true, true},
      {"GDN", 2, 16, 16, 4, 2, {130, 0, 65}, SseTransition::kGdn},
      {.name = "GDN, ungated write and read, own shared gates",
       .H = 1,
       .K = 16,
       .V = 16,
       .P = 4,
       .top_k = 1,
       .lengths = {130},
       .transition = SseTransition::kGdn,
       .own_shared_gates = true,
       .gate_write = false,
       .gate_read = false},
      {.name = "GLA, ungated write",
       .H = 1,
       .K = 16,
       .V = 16,
       .P = 4,
       .top_k = 1,
       .lengths = {70},
       .gate_write = false},
      {.name = "delta, ungated read",
       .H = 1,
       .K = 16,
       .V = 16,
       .P = 4,
       .top_k = 1,
       .lengths = {70},
       .transition = SseTransition::kDelta,
       .gate_read = false},
      {"K 128, V 128", 1, 128, 128, 4, 1, {70}},
      {.name = "gates to -1e4", .H = 2, .K = 8, .V = 8, .P = 4, .top_k = 2, .lengths = {150}, .harsh = true},
      {"nothing to read", 1, 8, 8, 4, 1, {0, 0}},
      {.name = "GLA, K 128, V 128", .H = 1, .K = 128, .V = 128, .P = 4, .top_k = 1, .lengths = {0, 1, 63, 64, 65, 150}},
      {.name = "delta, K 64, V 64",
       .H = 2,
       .K = 64,
       .V = 64,
       .P = 6,
       .top_k = 2,
       .lengths = {130, 0, 17},
       .transition = SseTransition::kDelta},
      {.name = "GDN, gates to -1e4, K 32, V 96",
       .H = 1,
       .K = 32,
       .V = 96,
       .P = 3,
       .top_k = 2,
       .lengths = {129, 5},
       .transition = SseTransition::kGdn,
       .harsh = true},
      {.name = "GLA, 70 partitions", .H = 1, .K = 16, .V = 8, .P = 70, .top_k = 3, .lengths = {70, 2}},
      {.name = "GLA, K 160", .H = 1, .K = 160, .V = 40, .P = 2, .top_k = 1, .lengths = {66}},
  };
  std::vector<OpCase> result;
  for (const SseSpec& spec : specs) {
    const auto inputs = make_inputs(spec);
    OpCase c{spec.name, spec.lengths, [inputs](OpRig& rig, const Schedule& schedule, Phase phase) {
               return read(rig, *inputs, schedule, phase);
             }};
    if (spec.harsh) c.tolerance = kHarshTolerance;
    result.push_back(c);
  }
  return result;
}

}  // namespace cairn::test
