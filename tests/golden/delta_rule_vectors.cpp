// Kinds deltanet, gdn, kda and gdn2: prefill and token by token, the states at chunk borders, and the chunk tensors U
// and W.
#include "tests/support/sparse_gdn_run.h"
#include "tests/golden/vector_kinds.h"

namespace cairn::test {
namespace {

struct DeltaShape {
  std::int32_t T, HK, HV, K, V, decays;  ///< decays per head: 0, 1 or K
  std::size_t values() const { return static_cast<std::size_t>(T) * HV * V; }
  std::size_t state() const { return static_cast<std::size_t>(HV) * K * V; }
};

DeltaShape shape_of(const VectorCase& vectors) {
  DeltaShape s{vectors.dim("q", 0), vectors.dim("q", 1), vectors.dim("v", 1),
               vectors.dim("q", 2), vectors.dim("v", 2), 0};
  if (vectors.has("g")) s.decays = vectors.tensor("g").shape.size() == 3 ? s.K : 1;
  return s;
}

const Op<DeltaRuleArgs>& op_of(const VectorCase& vectors, OpRig& rig) {
  if (vectors.kind() == "deltanet") return rig.ops().delta_net;
  if (vectors.kind() == "gdn") return rig.ops().gdn;
  return vectors.kind() == "kda" ? rig.ops().kda : rig.ops().gdn2;
}

std::vector<float> initial_state(const VectorCase& vectors, const DeltaShape& s) {
  return vectors.has("S0") ? vectors.floats("S0") : std::vector<float>(s.state(), 0.0F);
}

/// The whole sequence on the device; advance() moves a copy to a later token.
struct DeltaCase {
  DeltaRuleArgs args{};
  float *out, *residual, *state, *checkpoints;
};

DeltaCase prepare(const VectorCase& vectors, OpRig& rig, const DeltaShape& s) {
  DeltaCase c;
  DeltaRuleArgs& a = c.args;
  a.dtype = DType::kF32;
  a.key_heads = s.HK, a.value_heads = s.HV, a.key_dim = s.K, a.value_dim = s.V;
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.K)));
  a.q = rows(rig.upload(vectors.floats("q")), s.HK * s.K);
  a.k = rows(rig.upload(vectors.floats("k")), s.HK * s.K);
  a.v = rows(rig.upload(vectors.floats("v")), s.HV * s.V);
  if (vectors.has("g")) a.log_decay = rig.upload(vectors.floats("g"));
  if (vectors.has("beta")) a.beta = rig.upload(vectors.floats("beta"));
  if (vectors.has("b")) a.erase = rows(rig.upload(vectors.floats("b")), s.HV * s.K);
  if (vectors.has("w")) a.write = rows(rig.upload(vectors.floats("w")), s.HV * s.V);
  c.state = rig.upload(initial_state(vectors, s));
  a.states = rig.upload(std::vector<float*>{c.state});
  c.out = rig.poisoned(s.values());
  c.residual = rig.poisoned(s.values());
  a.out = rows(c.out, s.HV * s.V);
  a.residual = rows(c.residual, s.HV * s.V);
  c.checkpoints = rig.poisoned(s.state() * ((s.T + 63) / 64));
  return c;
}

template <class View>
View later(View view, std::int64_t token) {
  if (!view.data) return view;
  using Pointer = std::conditional_t<std::is_same_v<View, Rows>, float*, const float*>;
  view.data = static_cast<Pointer>(view.data) + token * view.stride;
  return view;
}

DeltaRuleArgs at_token(DeltaRuleArgs a, const DeltaShape& s, std::int64_t t) {
  a.q = later(a.q, t), a.k = later(a.k, t), a.v = later(a.v, t);
  a.erase = later(a.erase, t), a.write = later(a.write, t), a.out = later(a.out, t), a.residual = later(a.residual, t);
  if (a.log_decay) a.log_decay += t * s.HV * s.decays;
  if (a.beta) a.beta += t * s.HV;
  return a;
}

void compare(const DeltaCase& c, const DeltaShape& s, OpRig& rig, Comparison& result, Path path, const char* label) {
  result.floats("o", rig.download(c.out, s.values()), path, label);
  result.floats("S", rig.download(c.state, s.state()), path, label);
  result.floats("r", rig.download(c.residual, s.values()), path, label);
}

void check_prefill(const VectorCase& vectors, OpRig& rig, const DeltaShape& s, Comparison& result) {
  DeltaCase c = prepare(vectors, rig, s);
  c.args.phase = Phase::kPrefill;
  c.args.batch = rig.batch({s.T});
  c.args.checkpoint_chunks = 1;
  c.args.checkpoints = rig.upload(std::vector<float*>{c.checkpoints});
  if (!result.ran(rig.run(op_of(vectors, rig), c.args), "prefill")) return;
  compare(c, s, rig, result, Path::kChunked, "prefill");
  std::vector<float> entry = initial_state(vectors, s);
  const std::vector<float> after = rig.download(c.checkpoints, s.state() * ((s.T - 1) / 64));
  entry.insert(entry.end(), after.begin(), after.end());
  result.floats("S_entry", entry);
  rig.clear();
}

void check_decode(const VectorCase& vectors, OpRig& rig, const DeltaShape& s, Comparison& result) {
  DeltaCase c = prepare(vectors, rig, s);
  c.args.phase = Phase::kDecode;
  c.args.batch = rig.batch({1});
  for (std::int32_t t = 0; t < s.T; ++t) {
    if (!result.ran(rig.run(op_of(vectors, rig), at_token(c.args, s, t)), "decode")) return;
  }
  compare(c, s, rig, result, Path::kRecurrent, "decode");
  rig.clear();
}

/// U = inverse diag(beta) V and W = inverse diag(beta 2^g) K, by the full inverse of the SparseGDN operator.
void check_chunk_tensors(const VectorCase& vectors, OpRig& rig, const DeltaShape& s, Comparison& result) {
  if (!vectors.has("U") && !vectors.has("W")) return;
  SparseGdnInput in{s.T,
                    s.HK,
                    s.HV,
                    s.K,
                    s.V,
                    vectors.floats("q"),
                    vectors.floats("k"),
                    vectors.floats("v"),
                    {},
                    vectors.floats("beta"),
                    initial_state(vectors, s),
                    {},
                    {},
                    SparsePolicy::kAll,
                    true,
                    {},
                    {}};
  in.g = vectors.has("g") ? vectors.floats("g") : std::vector<float>(static_cast<std::size_t>(s.T) * s.HV, 0.0F);
  const SparseGdnOutcome all = run_sparse_gdn(rig, in);
  const SparseGdnOutcome keys = run_sparse_gdn_on(rig, in, s.K, decayed_keys(in));
  if (all.trouble.empty())
    result.floats("U", all.u);
  else
    result.not_compared("U", all.trouble);
  if (keys.trouble.empty())
    result.floats("W", keys.u);
  else
    result.not_compared("W", keys.trouble);
  if (!all.trouble.empty()) return;
  result.floats("o", all.o, Path::kChunked, "sparse_gdn: all, full inverse");
  result.floats("S", all.state, Path::kChunked, "sparse_gdn: all, full inverse");
}

}  // namespace

void check_delta_rule(const VectorCase& vectors, OpRig& rig, Comparison& result) {
  const DeltaShape s = shape_of(vectors);
  check_prefill(vectors, rig, s, result);
  check_decode(vectors, rig, s, result);
  check_chunk_tensors(vectors, rig, s, result);
}

}  // namespace cairn::test
