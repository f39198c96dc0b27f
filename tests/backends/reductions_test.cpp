// What one mechanism becomes when its gates are tied (spec 1, 3, 4, 5), and numbers worked out by hand; on every
// backend.
#include <doctest/doctest.h>

#include <algorithm>

#include "backends/reference/reference_backend.h"
#include "tests/backends/op_case.h"
#include "tests/support/backend_access.h"
#include "tests/support/sdm_table_memory.h"
#include "tests/support/tolerance.h"

namespace cairn::test {
namespace {

using Values = std::vector<float>;

std::vector<const Backend*> every_backend() {
  std::vector<const Backend*> backends = {reference::reference_backend()};
  std::string reason;
  for (const std::string& name : tested_backends()) backends.push_back(find_backend(name, &reason));
  return backends;
}

double tolerance_on(const Backend& backend) {
  return &backend == reference::reference_backend() ? kReferenceReductionTolerance : kReductionTolerance;
}

double error_of(const Values& got, const Values& want) {
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (i >= got.size() || !std::isfinite(got[i])) return INFINITY;
    largest = std::fmax(largest, std::fabs(static_cast<double>(want[i])));
    difference = std::fmax(difference, std::fabs(static_cast<double>(got[i]) - want[i]));
  }
  return difference == 0 ? 0 : difference / largest;
}

/// One sequence of a delta rule on the host; what a rule does not take stays empty.
struct DeltaProblem {
  std::int32_t T, HK, HV, K, V;
  Values q, k, v, log_decay, beta, erase, write, state;
  float scale = 1;
  Phase phase = Phase::kPrefill;
};

struct Result {
  std::string trouble;
  Values out, state, residual;
};

DeltaProblem random_problem(std::int32_t T, std::int32_t HK, std::int32_t HV, std::int32_t K, std::int32_t V) {
  Random random(71);
  const auto heads = static_cast<std::size_t>(T) * HV;
  DeltaProblem p{T,
                 HK,
                 HV,
                 K,
                 V,
                 random.unit_rows(static_cast<std::size_t>(T) * HK, K),
                 random.unit_rows(static_cast<std::size_t>(T) * HK, K),
                 random.normals(heads * V),
                 random.log_decays(heads, false),
                 random.uniforms(heads, 0, 1),
                 {},
                 {},
                 random.normals(static_cast<std::size_t>(HV) * K * V, 0.3)};
  p.scale = 1 / std::sqrt(static_cast<float>(K));
  return p;
}

/// Each number `times` times: one gate per head becomes one per row or column.
Values repeated(const Values& values, std::int32_t times) {
  Values result;
  for (const float value : values) result.insert(result.end(), times, value);
  return result;
}

DeltaRuleArgs bind(OpRig& rig, const DeltaProblem& p) {
  DeltaRuleArgs a{};
  a.dtype = DType::kF32;
  a.phase = p.phase;
  a.batch = rig.batch({p.T});
  a.key_heads = p.HK, a.value_heads = p.HV, a.key_dim = p.K, a.value_dim = p.V;
  a.scale = p.scale;
  a.q = {rig.upload(p.q), p.HK * p.K};
  a.k = {rig.upload(p.k), p.HK * p.K};
  a.v = {rig.upload(p.v), p.HV * p.V};
  if (!p.log_decay.empty()) a.log_decay = rig.upload(p.log_decay);
  if (!p.beta.empty()) a.beta = rig.upload(p.beta);
  if (!p.erase.empty()) a.erase = {rig.upload(p.erase), p.HV * p.K};
  if (!p.write.empty()) a.write = {rig.upload(p.write), p.HV * p.V};
  return a;
}

Result run_delta(const Backend& backend, Op<DeltaRuleArgs> OpTable::*op, const DeltaProblem& p) {
  OpRig rig(backend);
  const std::size_t values = static_cast<std::size_t>(p.T) * p.HV * p.V;
  DeltaRuleArgs a = bind(rig, p);
  float *state = rig.upload(p.state), *out = rig.poisoned(values), *residual = rig.poisoned(values);
  a.states = rig.upload(std::vector<float*>{state});
  a.out = {out, p.HV * p.V};
  a.residual = {residual, p.HV * p.V};
  Result result{rig.run(rig.ops().*op, a)};
  if (result.trouble.empty())
    result = {"", rig.download(out, values), rig.download(state, p.state.size()), rig.download(residual, values)};
  return result;
}

void check_equal(const Backend& backend, const Result& got, const Result& want) {
  CAPTURE(std::string(backend.name));
  CHECK(got.trouble == "");
  CHECK(want.trouble == "");
  CHECK(error_of(got.out, want.out) <= tolerance_on(backend));
  CHECK(error_of(got.state, want.state) <= tolerance_on(backend));
  if (!want.residual.empty() && !got.residual.empty())
    CHECK(error_of(got.residual, want.residual) <= tolerance_on(backend));
}

TEST_CASE("KDA with one decay for all rows is GDN") {
  for (const Backend* backend : every_backend()) {
    const DeltaProblem gdn = random_problem(130, 2, 4, 16, 24);
    DeltaProblem kda = gdn;
    kda.log_decay = repeated(gdn.log_decay, gdn.K);

    check_equal(*backend, run_delta(*backend, &OpTable::kda, kda), run_delta(*backend, &OpTable::gdn, gdn));
  }
}

TEST_CASE("GDN without decay is DeltaNet") {
  for (const Backend* backend : every_backend()) {
    DeltaProblem gdn = random_problem(130, 2, 2, 16, 24);
    std::fill(gdn.log_decay.begin(), gdn.log_decay.end(), 0.0F);
    DeltaProblem delta_net = gdn;
    delta_net.log_decay.clear();

    check_equal(*backend, run_delta(*backend, &OpTable::gdn, gdn), run_delta(*backend, &OpTable::delta_net, delta_net));
  }
}

TEST_CASE("GDN2 with both gates equal to beta is KDA") {
  for (const Backend* backend : every_backend()) {
    DeltaProblem kda = random_problem(130, 1, 3, 16, 24);
    kda.log_decay = Random(72).log_decays(static_cast<std::size_t>(kda.T) * kda.HV * kda.K, false);
    DeltaProblem gdn2 = kda;
    gdn2.erase = repeated(kda.beta, kda.K);
    gdn2.write = repeated(kda.beta, kda.V);
    gdn2.beta.clear();

    const Result tied = run_delta(*backend, &OpTable::gdn2, gdn2);
    Result want = run_delta(*backend, &OpTable::kda, kda);

    want.residual.clear();  // GDN2's is beta times KDA's
    check_equal(*backend, tied, want);
  }
}

TEST_CASE("one unit key, prediction 2, target 5, beta a half: the state predicts 3.5") {
  for (const Backend* backend : every_backend()) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      const DeltaProblem p{1, 1, 1, 1, 1, {1}, {1}, {5}, {}, {0.5F}, {}, {}, {2}, 1, phase};

      const Result result = run_delta(*backend, &OpTable::delta_net, p);

      CAPTURE(std::string(backend->name));
      REQUIRE(result.trouble == "");
      CHECK(result.state[0] == doctest::Approx(3.5));
      CHECK(result.out[0] == doctest::Approx(3.5));
      CHECK(result.residual[0] == doctest::Approx(3));
    }
  }
}

Result run_sparse(const Backend& backend, const DeltaProblem& p, SparsePolicy policy, bool full_inverse) {
  OpRig rig(backend);
  const std::size_t values = static_cast<std::size_t>(p.T) * p.HV * p.V;
  SparseGdnArgs a{};
  a.delta = bind(rig, p);
  float *state = rig.upload(p.state), *out = rig.poisoned(values);
  a.delta.states = rig.upload(std::vector<float*>{state});
  a.delta.out = {out, p.HV * p.V};
  a.policy = policy;
  a.full_inverse = full_inverse;
  Result result{rig.run(rig.ops().sparse_gdn, a)};
  if (result.trouble.empty()) result = {"", rig.download(out, values), rig.download(state, p.state.size()), {}};
  return result;
}

TEST_CASE("SparseGDN with every chunk and the full inverse is dense GDN") {
  for (const Backend* backend : every_backend()) {
    for (const std::int32_t tokens : {1, 64, 65, 330}) {
      CAPTURE(tokens);
      const DeltaProblem p = random_problem(tokens, 2, 4, 16, 16);

      check_equal(*backend, run_sparse(*backend, p, SparsePolicy::kAll, true), run_delta(*backend, &OpTable::gdn, p));
    }
  }
}

TEST_CASE("decays to -1e4 give no NaN and forget everything before") {
  for (const Backend* backend : every_backend()) {
    CAPTURE(std::string(backend->name));
    DeltaProblem p = random_problem(130, 1, 2, 16, 16);
    std::fill(p.log_decay.begin() + 100 * p.HV, p.log_decay.begin() + 101 * p.HV, -1e4F);
    DeltaProblem other = p;
    std::fill(other.state.begin(), other.state.end(), 9.0F);

    const Result got = run_delta(*backend, &OpTable::gdn, p), elsewhere = run_delta(*backend, &OpTable::gdn, other);

    REQUIRE(got.trouble == "");
    CHECK(std::all_of(got.out.begin(), got.out.end(), [](float value) { return std::isfinite(value); }));
    CHECK(error_of(elsewhere.state, got.state) <= tolerance_on(*backend));
  }
}

// ---------------------------------------------------------------- SSE

struct SseProblem {
  std::int32_t T, H, K, V, P, top_k;
  SseTransition transition;
  Values logits, q, k, v, log_decay, beta, states;
};

Result run_sse(const Backend& backend, const SseProblem& p, SsePath path) {
  OpRig rig(backend);
  const std::size_t values = static_cast<std::size_t>(p.T) * p.H * p.V;
  SseArgs a{};
  a.dtype = DType::kF32;
  a.transition = p.transition;
  a.path = path;
  a.gate_write = a.gate_read = true;
  a.batch = rig.batch({p.T});
  a.head_count = p.H, a.key_dim = p.K, a.value_dim = p.V, a.partition_count = p.P, a.top_k = p.top_k;
  a.route_logits = rig.upload(p.logits);
  a.q = {rig.upload(p.q), p.H * p.K};
  a.k = {rig.upload(p.k), p.H * p.K};
  a.v = {rig.upload(p.v), p.H * p.V};
  a.log_decay = rig.upload(p.log_decay);
  if (!p.beta.empty()) a.beta = rig.upload(p.beta);
  float *states = rig.upload(p.states), *out = rig.poisoned(values);
  a.states = rig.upload(std::vector<float*>{states});
  a.out = {out, p.H * p.V};
  Result result{rig.run(rig.ops().sse, a)};
  if (result.trouble.empty()) result = {"", rig.download(out, values), rig.download(states, p.states.size()), {}};
  return result;
}

TEST_CASE("the masked and the varlen path of SSE agree") {
  for (const Backend* backend : every_backend()) {
    for (const SseTransition transition : {SseTransition::kGla, SseTransition::kDelta, SseTransition::kGdn}) {
      Random random(73);
      const std::size_t tokens = 200, heads = tokens * 2;
      SseProblem p{200,
                   2,
                   16,
                   8,
                   4,
                   2,
                   transition,
                   random.normals(tokens * 4),
                   random.normals(heads * 16),
                   random.unit_rows(heads, 16),
                   random.normals(heads * 8),
                   {},
                   {},
                   random.normals(4 * 2 * 16 * 8)};
      p.log_decay = random.log_decays(transition == SseTransition::kGdn ? heads : heads * 16, false);
      if (transition != SseTransition::kGla) p.beta = random.uniforms(heads, 0, 1);

      check_equal(*backend, run_sse(*backend, p, SsePath::kMasked), run_sse(*backend, p, SsePath::kVarlen));
    }
  }
}

TEST_CASE("SSE with one partition is its transition alone") {
  for (const Backend* backend : every_backend()) {
    DeltaProblem gdn = random_problem(130, 2, 2, 16, 8);
    gdn.scale = 1;
    DeltaProblem kda = gdn;
    kda.log_decay = repeated(gdn.log_decay, gdn.K);
    SseProblem p{
        130,           2,        16,       8, 1, 1, SseTransition::kGdn, Values(130, 0.7F), gdn.q, gdn.k, gdn.v,
        gdn.log_decay, gdn.beta, gdn.state};

    const Result by_gdn = run_sse(*backend, p, SsePath::kAuto);
    p.transition = SseTransition::kDelta;
    p.log_decay = kda.log_decay;
    const Result by_delta = run_sse(*backend, p, SsePath::kAuto);

    check_equal(*backend, by_gdn, run_delta(*backend, &OpTable::gdn, gdn));
    check_equal(*backend, by_delta, run_delta(*backend, &OpTable::kda, kda));
  }
}

TEST_CASE("a partition that is not chosen does not change") {
  for (const Backend* backend : every_backend()) {
    CAPTURE(std::string(backend->name));
    Random random(74);
    SseProblem p{70,
                 1,
                 8,
                 8,
                 3,
                 1,
                 SseTransition::kGla,
                 {},
                 random.normals(70 * 8),
                 random.unit_rows(70, 8),
                 random.normals(70 * 8),
                 random.log_decays(70 * 8, false),
                 {},
                 random.normals(3 * 8 * 8)};
    for (std::int32_t t = 0; t < p.T; ++t) p.logits.insert(p.logits.end(), {0.0F, 1.0F, 0.5F});  // partition 1, always

    const Result result = run_sse(*backend, p, SsePath::kAuto);

    REQUIRE(result.trouble == "");
    CHECK(std::equal(p.states.begin(), p.states.begin() + 64, result.state.begin()));
    CHECK(std::equal(p.states.begin() + 128, p.states.end(), result.state.begin() + 128));
    CHECK(!std::equal(p.states.begin() + 64, p.states.begin() + 128, result.state.begin() + 64));
  }
}

// ---------------------------------------------------------------- SDM

/// One head, every address given by scores; rows come back dense [N, V].
struct SdmProblem {
  std::int32_t T, n, V, W, R;
  Values write_scores, read_scores, v, log_decay, beta, initial;
  bool slot_residual = false;
};

SdmArgs bind_sdm(OpRig& rig, const SdmProblem& p, const SdmTableMemory& table) {
  SdmArgs a{};
  a.dtype = DType::kF32;
  a.batch = rig.batch({p.T});
  a.slot_residual = p.slot_residual;
  a.head_count = 1, a.side = p.n, a.value_dim = p.V, a.write_count = p.W, a.read_count = p.R;
  a.write_scale = a.read_scale = 1;
  a.write_scores = {rig.upload(p.write_scores), 2 * p.n};
  a.read_scores = {rig.upload(p.read_scores), 2 * p.n};
  a.v = {rig.upload(p.v), p.V};
  a.log_decay = rig.upload(p.log_decay);
  a.beta = rig.upload(p.beta);
  a.initial = rig.upload(p.initial);
  a.initial_dtype = DType::kF32;
  a.rows_per_slab = 4;
  a.tables = rig.upload(std::vector<SdmTable>{table.table()});
  return a;
}

Values dense_rows(OpRig& rig, const SdmTableMemory& table, const SdmProblem& p) {
  Values all = p.initial;
  const SdmTableMemory::Written written = table.written(rig);
  for (std::size_t i = 0; i < written.pairs.size() / 2; ++i) {
    std::copy_n(written.rows.begin() + i * p.V, p.V, all.begin() + written.pairs[2 * i + 1] * p.V);
  }
  return all;
}

Result run_sdm(const Backend& backend, const SdmProblem& p) {
  OpRig rig(backend);
  const SdmTableMemory table(rig, 1, static_cast<std::int64_t>(p.n) * p.n, p.V, static_cast<std::int64_t>(p.n) * p.n,
                             4);
  SdmArgs a = bind_sdm(rig, p, table);
  const std::size_t values = static_cast<std::size_t>(p.T) * p.V;
  float *out = rig.poisoned(values), *residual = rig.poisoned(values);
  a.out = {out, p.V};
  if (!p.slot_residual) a.residual = {residual, p.V};
  Result result{rig.run(rig.ops().sdm, a)};
  if (!result.trouble.empty()) return result;
  result = {"", rig.download(out, values), dense_rows(rig, table, p), {}};
  if (!p.slot_residual) result.residual = rig.download(residual, values);
  return result;
}

TEST_CASE("SDM that writes and reads every slot is an unscaled GDN over its softmax weights") {
  for (const Backend* backend : every_backend()) {
    constexpr std::int32_t T = 130, n = 3, N = n * n, V = 12;
    Random random(75);
    SdmProblem p{T,
                 n,
                 V,
                 N,
                 N,
                 random.normals(T * 2 * n),
                 random.normals(T * 2 * n),
                 random.normals(T * V),
                 random.log_decays(T, false),
                 random.uniforms(T, 0, 1),
                 random.normals(N * V)};
    const auto weights = [&](const Values& scores) {
      Values all;
      for (std::int32_t t = 0; t < T; ++t) {
        double total = 0;
        for (std::int32_t i = 0; i < N; ++i)
          total += std::exp(static_cast<double>(scores[t * 2 * n + i / n]) + scores[t * 2 * n + n + i % n]);
        for (std::int32_t i = 0; i < N; ++i)
          all.push_back(static_cast<float>(
              std::exp(static_cast<double>(scores[t * 2 * n + i / n]) + scores[t * 2 * n + n + i % n]) / total));
      }
      return all;
    };
    const DeltaProblem gdn{
        T, 1, 1, N, V, weights(p.read_scores), weights(p.write_scores), p.v, p.log_decay, p.beta, {}, {}, p.initial, 1};

    check_equal(*backend, run_sdm(*backend, p), run_delta(*backend, &OpTable::gdn, gdn));
  }
}

TEST_CASE("the printed example of SDM: shared residual 3.75 and 5.75, slot residual 4 and 5.5") {
  for (const Backend* backend : every_backend()) {
    CAPTURE(std::string(backend->name));
    // Two slots of four with equal scores: k = [.5, .5]; alpha .8, beta .5, M = [2.5, 5], v = 10.
    SdmProblem p{1, 2, 1, 2, 2, {1, 0, 0, 0}, {1, 0, 0, 0}, {10}, {std::log(0.8F)}, {0.5F}, {2.5F, 5, 0, 0}};

    const Result shared = run_sdm(*backend, p);
    p.slot_residual = true;
    const Result slot = run_sdm(*backend, p);

    REQUIRE(shared.trouble == "");
    REQUIRE(slot.trouble == "");
    CHECK(shared.state[0] == doctest::Approx(3.75));
    CHECK(shared.state[1] == doctest::Approx(5.75));
    CHECK(shared.out[0] == doctest::Approx(4.75));
    CHECK(shared.residual[0] == doctest::Approx(7));
    CHECK(slot.state[0] == doctest::Approx(4));
    CHECK(slot.state[1] == doctest::Approx(5.5));
    CHECK(shared.state[2] == 0);
  }
}

TEST_CASE("writing through a forked table leaves the other one as it was") {
  for (const Backend* backend : every_backend()) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      CAPTURE(std::string(backend->name));
      OpRig rig(*backend);
      constexpr std::int32_t n = 4, N = n * n, V = 8;
      Random random(76);
      const std::int32_t T = phase == Phase::kDecode ? 1 : 70;
      SdmProblem p{T,
                   n,
                   V,
                   4,
                   4,
                   random.normals(T * 2 * n),
                   random.normals(T * 2 * n),
                   random.normals(T * V),
                   random.log_decays(T, false),
                   random.uniforms(T, 0, 1),
                   random.normals(N * V)};
      SdmTableMemory first(rig, 1, N, V, 8 * N, 4);
      const auto run = [&](const SdmTableMemory& table) {
        SdmArgs a = bind_sdm(rig, p, table);
        a.phase = phase;
        a.out = {rig.poisoned(static_cast<std::size_t>(T) * V), V};
        return rig.run(rig.ops().sdm, a);
      };
      REQUIRE(run(first) == "");
      SdmTableMemory second = first.fork(rig);
      const Values before = dense_rows(rig, first, p);

      p.v = random.normals(T * V);
      REQUIRE(run(second) == "");

      CHECK(dense_rows(rig, first, p) == before);
      CHECK(dense_rows(rig, second, p) != before);
      REQUIRE(run(first) == "");
      CHECK(dense_rows(rig, first, p) == dense_rows(rig, second, p));  // the same tokens after the same past
    }
  }
}

}  // namespace
}  // namespace cairn::test
