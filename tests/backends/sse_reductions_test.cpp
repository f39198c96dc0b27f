// SSE: its two paths agree, one partition is its transition, the others rest (spec 4). On every backend.
#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "tests/backends/reduction_problem.h"

namespace cairn::test {
namespace {

struct SseProblem {
  std::int32_t T, H, K, V, P, top_k;
  SseTransition transition;
  Values logits, q, k, v, log_decay, beta, states;
};

/// 70 tokens of one head of 8 by 8, one partition chosen; the logits are the caller's to add.
SseProblem small_gla(Random& random, std::int32_t partition_count, Values log_decay) {
  return {70,
          1,
          8,
          8,
          partition_count,
          1,
          SseTransition::kGla,
          {},
          random.normals(70 * 8),
          random.unit_rows(70, 8),
          random.normals(70 * 8),
          std::move(log_decay),
          {},
          random.normals(static_cast<std::size_t>(partition_count) * 8 * 8)};
}

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
    SseProblem p = small_gla(random, 3, random.log_decays(70 * 8, false));
    for (std::int32_t t = 0; t < p.T; ++t) p.logits.insert(p.logits.end(), {0.0F, 1.0F, 0.5F});  // partition 1, always

    const Result result = run_sse(*backend, p, SsePath::kAuto);

    REQUIRE(result.trouble == "");
    CHECK(std::equal(p.states.begin(), p.states.begin() + 64, result.state.begin()));
    CHECK(std::equal(p.states.begin() + 128, p.states.end(), result.state.begin() + 128));
    CHECK(!std::equal(p.states.begin() + 64, p.states.begin() + 128, result.state.begin() + 64));
  }
}

TEST_CASE("a chosen partition whose logit is minus infinity adds nothing and decays") {
  for (const Backend* backend : every_backend()) {
    CAPTURE(std::string(backend->name));
    Random random(75);
    SseProblem p = small_gla(random, 2, Values(70 * 8, -0.125F));
    for (std::int32_t t = 0; t < p.T; ++t) p.logits.insert(p.logits.end(), {0.5F, -INFINITY});

    const Result alone = run_sse(*backend, p, SsePath::kAuto);
    p.top_k = 2;
    const Result both = run_sse(*backend, p, SsePath::kAuto);

    REQUIRE(alone.trouble == "");
    REQUIRE(both.trouble == "");
    CHECK(error_of(both.out, alone.out) <= tolerance_on(*backend));
    for (std::size_t i = 64; i < 128; ++i) p.states[i] *= std::exp(-0.125F * 70);
    std::copy_n(alone.state.begin(), 64, p.states.begin());
    CHECK(error_of(both.state, p.states) <= tolerance_on(*backend));
  }
}

}  // namespace
}  // namespace cairn::test
