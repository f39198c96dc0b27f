// Numbers that are none, in the cpu backend's chunked prefills: they reach what comes after them, never what came
// before.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/cpu_backend.h"
#include "tests/backends/cpu_feature_sets.h"
#include "tests/support/op_rig.h"
#include "tests/support/random_inputs.h"

namespace cairn::test {
namespace {

constexpr std::int32_t kTokens = 100, kKeyDim = 16, kValueDim = 24;

enum class Rule { kGdn, kKda, kGdn2, kSparseGdn };
enum class Input { kKey, kValue, kDecay };

/// `width` numbers of token `bad` are none (-1: of no token).
std::vector<float> hurt(std::vector<float> values, std::int32_t width, std::int32_t bad) {
  if (bad >= 0) std::fill_n(values.begin() + bad * width, width, std::numeric_limits<float>::quiet_NaN());
  return values;
}

/// out [T, V] of one head; `input` of token `bad` is no number.
std::vector<float> outputs(OpRig& rig, Rule rule, Input input, std::int32_t bad) {
  Random random(17);
  const auto of = [&](Input one) { return one == input ? bad : -1; };
  const bool has_row_decay = rule == Rule::kKda || rule == Rule::kGdn2;
  SparseGdnArgs sparse{};
  sparse.policy = SparsePolicy::kAll;
  DeltaRuleArgs& a = sparse.delta;
  a.phase = Phase::kPrefill;
  a.batch = rig.batch({kTokens});
  a.key_heads = a.value_heads = 1, a.key_dim = kKeyDim, a.value_dim = kValueDim;
  a.scale = 0.25F;
  a.q = {rig.upload(random.unit_rows(kTokens, kKeyDim)), kKeyDim};
  a.k = {rig.upload(hurt(random.unit_rows(kTokens, kKeyDim), kKeyDim, of(Input::kKey))), kKeyDim};
  a.v = {rig.upload(hurt(random.normals(kTokens * kValueDim), kValueDim, of(Input::kValue))), kValueDim};
  const std::int32_t decays = has_row_decay ? kKeyDim : 1;
  a.log_decay = rig.upload(hurt(random.log_decays(kTokens * decays, false), decays, of(Input::kDecay)));
  const std::vector<float> beta = random.uniforms(kTokens, 0.1, 1);
  if (rule != Rule::kGdn2) a.beta = rig.upload(beta);
  if (rule == Rule::kGdn2) {
    a.erase = {rig.upload(random.uniforms(kTokens * kKeyDim, 0.1, 1)), kKeyDim};
    a.write = {rig.upload(random.uniforms(kTokens * kValueDim, 0.1, 1)), kValueDim};
  }
  a.states = rig.upload(std::vector<float*>{rig.upload(random.normals(kKeyDim * kValueDim, 0.3))});
  float* out = rig.poisoned<float>(kTokens * kValueDim);
  a.out = {out, kValueDim};
  switch (rule) {
    case Rule::kGdn: REQUIRE(rig.run(rig.ops().gdn, a) == ""); break;
    case Rule::kKda: REQUIRE(rig.run(rig.ops().kda, a) == ""); break;
    case Rule::kGdn2: REQUIRE(rig.run(rig.ops().gdn2, a) == ""); break;
    case Rule::kSparseGdn: REQUIRE(rig.run(rig.ops().sparse_gdn, sparse) == ""); break;
  }
  return rig.download(out, kTokens * kValueDim);
}

}  // namespace

TEST_CASE("a key, value or log-decay that is no number leaves the bits of all tokens before it as they are") {
  for (const cpu::CpuFeatures& most : kCpuFeatureSets) {
    const FeatureLimit limit(most);
    OpRig rig(*cpu::cpu_backend(), 1);
    for (const Rule rule : {Rule::kGdn, Rule::kKda, Rule::kGdn2, Rule::kSparseGdn}) {
      const std::vector<float> whole = outputs(rig, rule, Input::kValue, -1);
      for (const Input input : {Input::kKey, Input::kValue, Input::kDecay}) {
        for (std::int32_t bad = 0; bad < kTokens; ++bad) {
          CAPTURE(most.avx2);
          CAPTURE(most.avx512);
          CAPTURE(static_cast<int>(rule));
          CAPTURE(static_cast<int>(input));
          CAPTURE(bad);
          const std::vector<float> out = outputs(rig, rule, input, bad);
          const auto first = out.begin() + bad * kValueDim;
          CHECK(std::equal(out.begin(), first, whole.begin()));
          CHECK(std::all_of(first, out.end(), [](float x) { return std::isnan(x); }));
          rig.clear();
        }
      }
    }
  }
}

}  // namespace cairn::test
