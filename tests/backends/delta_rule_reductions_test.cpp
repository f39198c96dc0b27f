// GDN2, KDA, GDN, DeltaNet: one ladder (spec 1); SparseGDN with nothing left out is dense (spec 3). On every backend.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/backends/reduction_problem.h"

namespace cairn::test {
namespace {

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
  a.delta = bind_delta(rig, p);
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

TEST_CASE("a log-decay of minus infinity leaves nothing of the state, in SparseGDN as in GDN") {
  for (const Backend* backend : every_backend()) {
    DeltaProblem p = random_problem(330, 2, 4, 16, 16);
    DeltaProblem low = p;  // what e^-1e4 leaves is nothing either
    for (const std::int32_t t : {0, 63, 100, 101, 192, 329}) {
      std::fill_n(p.log_decay.begin() + t * p.HV, 3, -INFINITY);
      std::fill_n(low.log_decay.begin() + t * p.HV, 3, -1e4F);
    }

    const Result dense = run_delta(*backend, &OpTable::gdn, p);

    check_equal(*backend, dense, run_delta(*backend, &OpTable::gdn, low));
    check_equal(*backend, run_sparse(*backend, p, SparsePolicy::kAll, true), dense);
    check_equal(*backend, run_sparse(*backend, p, SparsePolicy::kAll, false),
                run_sparse(*backend, low, SparsePolicy::kAll, false));
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

}  // namespace
}  // namespace cairn::test
