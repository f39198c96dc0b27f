#include "tests/backends/reduction_problem.h"

#include <doctest/doctest.h>

#include "backends/reference/reference_backend.h"
#include "tests/support/backend_access.h"
#include "tests/support/tolerance.h"

namespace cairn::test {

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

Values repeated(const Values& values, std::int32_t times) {
  Values result;
  for (const float value : values) result.insert(result.end(), times, value);
  return result;
}

DeltaRuleArgs bind_delta(OpRig& rig, const DeltaProblem& p) {
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
  DeltaRuleArgs a = bind_delta(rig, p);
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

}  // namespace cairn::test
