// SparseGDN's policies beside each other (spec 3.2, 6): what random shares with adaptive, what fixed counts. On every
// backend.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/backends/reduction_problem.h"
#include "tests/support/sparse_gdn_run.h"

namespace cairn::test {
namespace {

/// 16 groups, 33 chunks of different weight.
SparseGdnInput random_input(SparsePolicy policy) {
  constexpr std::int32_t T = 2060, n = 16, K = 8, V = 8;
  Random random(80);
  SparseGdnInput in{T,
                    n,
                    n,
                    K,
                    V,
                    random.unit_rows(T * n, K),
                    random.unit_rows(T * n, K),
                    random.normals(T * n * V),
                    random.log_decays(T * n, false),
                    random.uniforms(T * n, 0, 1),
                    Values(n * K * V, 0.0F),
                    random.normals(T * n * V),
                    Values(V, 1.0F)};
  double weight = 1;
  for (std::size_t i = 0; i < in.v.size(); ++i) {
    if (i % (64 * n * V) == 0) weight = std::exp(random.normal());
    in.v[i] = static_cast<float>(in.v[i] * weight);
  }
  in.policy = policy;
  return in;
}

SparseGdnOutcome run(const Backend& backend, const SparseGdnInput& input) {
  OpRig rig(backend);
  return run_sparse_gdn(rig, input);
}

std::int64_t kept(const SparseGdnOutcome& outcome, std::int32_t group) {
  const auto first = outcome.mask.begin() + group * 33;
  return std::count(first, first + 33, 1);
}

TEST_CASE("random keeps the tiers, the counts and the anchors of adaptive, and follows its seed") {
  for (const Backend* backend : every_backend()) {
    CAPTURE(std::string(backend->name));
    SparseGdnInput input = random_input(SparsePolicy::kRandom);

    const SparseGdnOutcome adaptive = run(*backend, random_input(SparsePolicy::kAdaptive)),
                           random = run(*backend, input), again = run(*backend, input);
    input.seed = 2;
    const SparseGdnOutcome other = run(*backend, input);

    REQUIRE(adaptive.trouble == "");
    REQUIRE(random.trouble == "");
    CHECK(random.tier == adaptive.tier);
    for (std::int32_t group = 0; group < 16; ++group) {
      CHECK(kept(random, group) == kept(adaptive, group));
      CHECK(random.mask[group * 33] == 1);
      CHECK(random.mask[group * 33 + 32] == 1);
    }
    CHECK(random.mask == again.mask);
    CHECK(random.mask != other.mask);
    CHECK(random.mask != adaptive.mask);
  }
}

TEST_CASE("fixed makes 3 of 16 groups high, 4 medium, 9 low, and keeps 31, 10 and 3 of 33 chunks") {
  for (const Backend* backend : every_backend()) {
    CAPTURE(std::string(backend->name));
    constexpr std::int64_t kKept[] = {3, 10, 31};

    const SparseGdnOutcome fixed = run(*backend, random_input(SparsePolicy::kFixed));

    REQUIRE(fixed.trouble == "");
    CHECK(std::count(fixed.tier.begin(), fixed.tier.end(), 2) == 3);
    CHECK(std::count(fixed.tier.begin(), fixed.tier.end(), 1) == 4);
    for (std::int32_t group = 0; group < 16; ++group) CHECK(kept(fixed, group) == kKept[fixed.tier[group]]);
  }
}

/// 8 groups of 3 heads, 3 chunks, all alike: scores and decays are 1, every gate lets 64 through.
SparseGdnInput equal_input() {
  constexpr std::int32_t T = 192, n = 8, HV = 24, K = 8, V = 8;
  SparseGdnInput in{T,
                    n,
                    HV,
                    K,
                    V,
                    Values(T * n * K, 0.0F),
                    Values(T * n * K, 0.0F),
                    Values(T * HV * V, 0.0F),
                    Values(T * HV, 0.0F),
                    Values(T * HV, 1.0F),
                    Values(HV * K * V, 0.0F),
                    Values(T * HV * V, 64.0F),
                    Values(V, 1.0F)};
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t h = 0; h < HV; ++h) in.v[((64 * c + 63) * HV + h) * V] = 1;
  }
  return in;
}

TEST_CASE("groups with equal gains: the smallest count becomes high, lower groups first") {
  for (const Backend* backend : every_backend()) {
    CAPTURE(std::string(backend->name));

    const SparseGdnOutcome equal = run(*backend, equal_input());

    REQUIRE(equal.trouble == "");
    CHECK(equal.gain_medium_high == Values(8, 3.0F));
    CHECK(equal.tier == std::vector<std::int32_t>{2, 1, 1, 1, 0, 0, 0, 0});
  }
}

}  // namespace
}  // namespace cairn::test
