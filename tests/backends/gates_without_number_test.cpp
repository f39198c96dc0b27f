// A log-decay that is no number: a prefill shows it in the outputs from its token on and in the state, as a decode
// does, and in no other head or partition. On every backend, in f32 and in its own type.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/backends/reduction_problem.h"

namespace cairn::test {
namespace {

constexpr std::int32_t kTokens = 130, kHeads = 2, kKeyDim = 16, kValueDim = 8;
constexpr std::int32_t kBadTokens[] = {70, 91};  ///< in the second of three chunks, in its first and second block
constexpr std::int32_t kBadHead = 1, kBadRow = 3;

enum class Mechanism { kGdn, kKda, kGdn2, kSparseGdn, kSseGla, kSseDelta, kSseGdn };
constexpr struct {
  Mechanism mechanism;
  const char* name;
} kMechanisms[] = {{Mechanism::kGdn, "gdn"},        {Mechanism::kKda, "kda"},
                   {Mechanism::kGdn2, "gdn2"},      {Mechanism::kSparseGdn, "sparse_gdn"},
                   {Mechanism::kSseGla, "sse GLA"}, {Mechanism::kSseDelta, "sse delta"},
                   {Mechanism::kSseGdn, "sse GDN"}};

/// SSE: every token goes to partition 1 of 3.
constexpr std::int32_t kPartitions = 3, kChosen = 1;
bool is_sse(Mechanism m) { return m >= Mechanism::kSseGla; }
bool has_token_decay(Mechanism m) {
  return m == Mechanism::kGdn || m == Mechanism::kSparseGdn || m == Mechanism::kSseGdn;
}

/// One sequence on the device; `out` holds zeros, so that what is not written does not pass for no number.
struct Problem {
  Problem(OpRig& rig, Mechanism mechanism, Phase phase, std::int32_t count, std::int32_t bad_token) : tokens(count) {
    Random random(91);
    const auto heads = static_cast<std::size_t>(count) * kHeads;
    const auto activations = [&](const Values& values, std::int32_t width) {
      return Rows{rig.upload_activations(values), width};
    };
    const std::int32_t decay_rows = has_token_decay(mechanism) ? 1 : kKeyDim;
    Values decay = random.log_decays(heads * decay_rows, false);
    const std::size_t bad_gate = static_cast<std::size_t>(bad_token) * kHeads + kBadHead;
    decay[bad_gate * decay_rows + (decay_rows > 1 ? kBadRow : 0)] = std::nanf("");
    state_size = static_cast<std::size_t>(is_sse(mechanism) ? kPartitions : 1) * kHeads * kKeyDim * kValueDim;
    state = rig.upload(random.normals(state_size, 0.3));
    delta.dtype = rig.dtype();
    delta.phase = phase;
    delta.batch = rig.batch({count});
    delta.key_heads = delta.value_heads = kHeads, delta.key_dim = kKeyDim, delta.value_dim = kValueDim;
    delta.scale = 0.25F;
    delta.q = activations(random.unit_rows(heads, kKeyDim), kHeads * kKeyDim);
    delta.k = activations(random.unit_rows(heads, kKeyDim), kHeads * kKeyDim);
    delta.v = activations(random.normals(heads * kValueDim), kHeads * kValueDim);
    delta.log_decay = rig.upload(decay);
    if (mechanism != Mechanism::kGdn2) delta.beta = rig.upload(random.uniforms(heads, 0.1, 1));
    if (mechanism == Mechanism::kGdn2) {
      delta.erase = activations(random.uniforms(heads * kKeyDim, 0.1, 1), kHeads * kKeyDim);
      delta.write = activations(random.uniforms(heads * kValueDim, 0.1, 1), kHeads * kValueDim);
    }
    delta.states = rig.upload(std::vector<float*>{state});
    delta.out = activations(Values(heads * kValueDim, 0.0F), kHeads * kValueDim);
  }

  std::int32_t tokens;
  DeltaRuleArgs delta{};
  float* state;
  std::size_t state_size;
};

std::string run_sparse(OpRig& rig, const Problem& p) {
  SparseGdnArgs args{};
  args.delta = p.delta;
  args.policy = SparsePolicy::kAll;  // every chunk writes: the others are left out of the state by design
  return rig.run(rig.ops().sparse_gdn, args);
}

std::string run_sse(OpRig& rig, const Problem& p, SseTransition transition) {
  Values logits;
  for (std::int32_t t = 0; t < p.tokens; ++t) logits.insert(logits.end(), {0.0F, 1.0F, 0.5F});
  SseArgs args{};
  args.dtype = p.delta.dtype, args.phase = p.delta.phase, args.batch = p.delta.batch;
  args.transition = transition;
  args.gate_write = args.gate_read = true;
  args.head_count = kHeads, args.key_dim = kKeyDim, args.value_dim = kValueDim;
  args.partition_count = kPartitions, args.top_k = 1;
  args.route_logits = rig.upload(logits);
  args.q = p.delta.q, args.k = p.delta.k, args.v = p.delta.v;
  args.log_decay = p.delta.log_decay;
  if (transition != SseTransition::kGla) args.beta = p.delta.beta;
  args.states = p.delta.states;
  args.out = p.delta.out;
  return rig.run(rig.ops().sse, args);
}

std::string run(OpRig& rig, const Problem& p, Mechanism mechanism) {
  switch (mechanism) {
    case Mechanism::kGdn: return rig.run(rig.ops().gdn, p.delta);
    case Mechanism::kKda: return rig.run(rig.ops().kda, p.delta);
    case Mechanism::kGdn2: return rig.run(rig.ops().gdn2, p.delta);
    case Mechanism::kSparseGdn: return run_sparse(rig, p);
    case Mechanism::kSseGla: return run_sse(rig, p, SseTransition::kGla);
    case Mechanism::kSseDelta: return run_sse(rig, p, SseTransition::kDelta);
    default: return run_sse(rig, p, SseTransition::kGdn);
  }
}

/// How many of the numbers [first, first + count) are none.
std::int64_t without_number(const Values& values, std::size_t first, std::size_t count) {
  const auto from = values.begin() + static_cast<std::ptrdiff_t>(first);
  return std::count_if(from, from + static_cast<std::ptrdiff_t>(count), [](float x) { return std::isnan(x); });
}

/// out [T, H, V]: the bad head's from the bad token on, of whole columns; tokens before and other heads are as ever. In
/// bf16 the matrix products of a chunk are of whole tiles: between its start and the token they may show it too.
void check_out(const Values& out, DType dtype, std::int32_t tokens, std::int32_t bad_token) {
  const std::int32_t first_shown = dtype == DType::kBF16 ? bad_token / 64 * 64 : bad_token;
  for (std::int32_t t = 0; t < tokens; ++t) {
    for (std::int32_t h = 0; h < kHeads; ++h) {
      if (h == kBadHead && t < bad_token && t >= first_shown) continue;
      CAPTURE(t);
      CAPTURE(h);
      const bool is_bad = h == kBadHead && t >= bad_token;
      CHECK(without_number(out, (static_cast<std::size_t>(t) * kHeads + h) * kValueDim, kValueDim) ==
            (is_bad ? kValueDim : 0));
    }
  }
}

/// state [P, H, K, V]. Where nothing is erased, only the bad row; else the residual takes it to all.
void check_state(const Values& state, Mechanism mechanism) {
  constexpr std::size_t kMatrix = static_cast<std::size_t>(kKeyDim) * kValueDim;
  const std::size_t matrices = state.size() / kMatrix, bad = (is_sse(mechanism) ? kChosen : 0) * kHeads + kBadHead;
  const std::size_t shown = mechanism == Mechanism::kSseGla ? kValueDim : kMatrix;
  for (std::size_t i = 0; i < matrices; ++i) {
    CAPTURE(i);
    CHECK(without_number(state, i * kMatrix, kMatrix) == static_cast<std::int64_t>(i == bad ? shown : 0));
  }
}

void check_shows(const Backend& backend, DType dtype, Phase phase, Mechanism mechanism, std::int32_t bad_token) {
  const std::int32_t tokens = phase == Phase::kDecode ? 1 : kTokens;
  OpRig rig(backend, 0, dtype);
  const Problem problem(rig, mechanism, phase, tokens, bad_token);

  REQUIRE(run(rig, problem, mechanism) == "");

  const std::size_t outputs = static_cast<std::size_t>(tokens) * kHeads * kValueDim;
  check_out(rig.download_activations(problem.delta.out.data, outputs), dtype, tokens, bad_token);
  check_state(rig.download(problem.state, problem.state_size), mechanism);
}

TEST_CASE("a log-decay that is no number shows in outputs and state, and in its head alone") {
  for (const Backend* backend : every_backend()) {
    for (const DType dtype : {DType::kF32, backend->activation_dtype}) {
      for (const auto& [mechanism, name] : kMechanisms) {
        CAPTURE(std::string(backend->name));
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(std::string(name));
        for (const std::int32_t bad : kBadTokens) check_shows(*backend, dtype, Phase::kPrefill, mechanism, bad);
        if (mechanism != Mechanism::kSparseGdn) check_shows(*backend, dtype, Phase::kDecode, mechanism, 0);
      }
    }
  }
}

}  // namespace
}  // namespace cairn::test
