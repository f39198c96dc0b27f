// Kind sse: masked, varlen and token by token; the routed part alone; the routing itself by probing.
#include <algorithm>

#include "tests/golden/vector_kinds.h"

namespace cairn::test {
namespace {

struct SseShape {
  std::int32_t T, H, K, V, P, top_k;
  std::size_t values() const { return static_cast<std::size_t>(T) * H * V; }
  std::size_t head_state() const { return static_cast<std::size_t>(H) * K * V; }
};

SseShape shape_of(const VectorCase& v) {
  return {v.dim("q", 0), v.dim("q", 1), v.dim("q", 2), v.dim("v", 2), v.dim("logits", 1), v.param("topk")};
}

struct SseCase {
  SseArgs args{};
  float *out, *states, *shared;
};

SseCase prepare(const VectorCase& v, OpRig& rig, const SseShape& s) {
  SseCase c;
  SseArgs& a = c.args;
  a.dtype = DType::kF32;
  a.transition = v.has("beta") ? SseTransition::kDelta : SseTransition::kGla;
  a.gate_write = a.gate_read = true;
  a.head_count = s.H, a.key_dim = s.K, a.value_dim = s.V, a.partition_count = s.P, a.top_k = s.top_k;
  a.route_logits = rig.upload(v.floats("logits"));
  a.q = rows(rig.upload(v.floats("q")), s.H * s.K);
  a.k = rows(rig.upload(v.floats("k")), s.H * s.K);
  a.v = rows(rig.upload(v.floats("v")), s.H * s.V);
  if (v.has("q_s")) a.shared_q = rows(rig.upload(v.floats("q_s")), s.H * s.K);
  if (v.has("k_s")) a.shared_k = rows(rig.upload(v.floats("k_s")), s.H * s.K);
  a.log_decay = rig.upload(v.floats("g"));
  if (v.has("beta")) a.beta = rig.upload(v.floats("beta"));
  c.states = rig.upload(v.has("S0") ? v.floats("S0") : std::vector<float>(s.P * s.head_state(), 0.0F));
  c.shared = rig.upload(v.has("S0_shared") ? v.floats("S0_shared") : std::vector<float>(s.head_state(), 0.0F));
  a.states = rig.upload(std::vector<float*>{c.states});
  a.shared_states = rig.upload(std::vector<float*>{c.shared});
  c.out = rig.poisoned(s.values());
  a.out = rows(c.out, s.H * s.V);
  return c;
}

void compare(const SseCase& c, const SseShape& s, OpRig& rig, Comparison& result, Path path, const char* label) {
  result.floats("o", rig.download(c.out, s.values()), path, label);
  result.floats("S", rig.download(c.states, s.P * s.head_state()), path, label);
  result.floats("S_shared", rig.download(c.shared, s.head_state()), path, label);
}

void check_prefill(const VectorCase& v, OpRig& rig, const SseShape& s, SsePath path, const char* label,
                   Comparison& result) {
  SseCase c = prepare(v, rig, s);
  c.args.phase = Phase::kPrefill;
  c.args.path = path;
  c.args.batch = rig.batch({s.T});
  if (result.ran(rig.run(rig.ops().sse, c.args), label)) compare(c, s, rig, result, Path::kChunked, label);
  rig.clear();
}

const float* at(const ConstRows& view, std::int64_t token) {
  return static_cast<const float*>(view.data) + token * view.stride;
}

SseArgs at_token(SseArgs a, const SseShape& s, std::int64_t t) {
  a.q.data = at(a.q, t), a.k.data = at(a.k, t), a.v.data = at(a.v, t);
  if (a.shared_q.data) a.shared_q.data = at(a.shared_q, t), a.shared_k.data = at(a.shared_k, t);
  a.route_logits += t * s.P;
  a.log_decay += t * s.H * s.K;
  if (a.beta) a.beta += t * s.H;
  a.out.data = static_cast<float*>(a.out.data) + t * a.out.stride;
  return a;
}

void check_decode(const VectorCase& v, OpRig& rig, const SseShape& s, Comparison& result) {
  SseCase c = prepare(v, rig, s);
  c.args.phase = Phase::kDecode;
  c.args.batch = rig.batch({1});
  for (std::int32_t t = 0; t < s.T; ++t) {
    if (!result.ran(rig.run(rig.ops().sse, at_token(c.args, s, t)), "decode")) return;
  }
  compare(c, s, rig, result, Path::kRecurrent, "decode");
  rig.clear();
}

void check_routed_alone(const VectorCase& v, OpRig& rig, const SseShape& s, Comparison& result) {
  if (!v.has("o_routed")) return;
  SseCase c = prepare(v, rig, s);
  c.args.phase = Phase::kPrefill;
  c.args.batch = rig.batch({s.T});
  c.args.shared_q = c.args.shared_k = {};
  c.args.shared_states = nullptr;
  if (result.ran(rig.run(rig.ops().sse, c.args), "without the shared partition"))
    result.floats("o_routed", rig.download(c.out, s.values()));
  rig.clear();
}

void check_weights(const VectorCase& v, OpRig& rig, const SseShape& s, Comparison& result) {
  float* e = rig.poisoned(static_cast<std::size_t>(s.T) * s.P);
  const FeatureMapArgs args{
      DType::kF32, DType::kF32, FeatureMap::kSoftmax, s.T, 1, s.P, 1, 1, rows(rig.upload(v.floats("logits")), s.P),
      rows(e, s.P)};
  if (result.ran(rig.run(rig.ops().feature_map, args), "feature_map"))
    result.floats("e", rig.download(e, static_cast<std::size_t>(s.T) * s.P));
  rig.clear();
}

/// Reads every token into a state of ones of its own, v = 0, decay e^-1: a partition that was chosen decays, whatever
/// its weight. Returns [T, P]; empty when the operator does not take this shape.
std::vector<bool> probe_routing(const VectorCase& v, OpRig& rig, const SseShape& s, std::int32_t width) {
  const std::size_t size = static_cast<std::size_t>(width) * width,
                    rows_of_ones = static_cast<std::size_t>(s.T) * width;
  const float* ones = rig.upload(std::vector<float>(rows_of_ones, 1.0F));
  float* states = rig.upload(std::vector<float>(s.T * s.P * size, 1.0F));
  std::vector<float*> state_of(s.T);
  for (std::int32_t t = 0; t < s.T; ++t) state_of[t] = states + t * s.P * size;
  SseArgs a{};
  a.dtype = DType::kF32;
  a.phase = Phase::kDecode;
  a.gate_write = a.gate_read = true;
  a.batch = rig.batch(std::vector<std::int32_t>(s.T, 1));
  a.head_count = 1, a.key_dim = width, a.value_dim = width, a.partition_count = s.P, a.top_k = s.top_k;
  a.route_logits = rig.upload(v.floats("logits"));
  a.q = a.k = {ones, width};
  a.v = {rig.upload(std::vector<float>(rows_of_ones, 0.0F)), width};
  a.log_decay = rig.upload(std::vector<float>(rows_of_ones, -1.0F));
  a.states = rig.upload(state_of);
  a.out = rows(rig.poisoned(rows_of_ones), width);
  std::vector<bool> chosen;
  if (rig.run(rig.ops().sse, a).empty()) {
    const std::vector<float> all = rig.download(states, s.T * s.P * size);
    for (std::size_t i = 0; i < all.size(); i += size) chosen.push_back(all[i] < 0.5F);
  }
  rig.clear();
  return chosen;
}

/// Which partitions were chosen is the operator's; their order is that of the logits, ties: lower index.
void check_routing(const VectorCase& v, OpRig& rig, const SseShape& s, Comparison& result) {
  std::vector<bool> chosen;
  if (s.T > 0) chosen = probe_routing(v, rig, s, 1);
  if (s.T > 0 && chosen.empty()) chosen = probe_routing(v, rig, s, 64);
  if (s.T > 0 && chosen.empty()) return result.fail("routing could not be probed");
  const std::vector<float> logits = v.floats("logits");
  std::vector<std::int64_t> idx, token, offsets = {0};
  for (std::int32_t t = 0; t < s.T; ++t) {
    const std::size_t row = static_cast<std::size_t>(t) * s.P;
    std::vector<std::int64_t> order;
    for (std::int32_t p = 0; p < s.P; ++p) {
      if (chosen[row + p]) order.push_back(p);
    }
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[row + a] > logits[row + b]; });
    idx.insert(idx.end(), order.begin(), order.end());
  }
  for (std::int32_t p = 0; p < s.P; ++p) {
    for (std::int32_t t = 0; t < s.T; ++t) {
      if (chosen[static_cast<std::size_t>(t) * s.P + p]) token.push_back(t);
    }
    offsets.push_back(static_cast<std::int64_t>(token.size()));
  }
  result.integers("idx", idx, "probed");
  result.integers("varlen_token", token, "from the probed choice");
  result.integers("varlen_offsets", offsets, "from the probed choice");
}

}  // namespace

void check_sse(const VectorCase& v, OpRig& rig, Comparison& result) {
  const SseShape s = shape_of(v);
  check_prefill(v, rig, s, SsePath::kAuto, "prefill", result);
  check_prefill(v, rig, s, SsePath::kMasked, "masked", result);
  check_prefill(v, rig, s, SsePath::kVarlen, "varlen", result);
  check_decode(v, rig, s, result);
  check_routed_alone(v, rig, s, result);
  check_weights(v, rig, s, result);
  check_routing(v, rig, s, result);
}

}  // namespace cairn::test
