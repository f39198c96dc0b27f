// Small problems on the host for the tests of reductions: run one operator on one backend, compare two results.
#pragma once

#include "tests/backends/op_case.h"

namespace cairn::test {

using Values = std::vector<float>;

/// The reference and every tested backend.
std::vector<const Backend*> every_backend();

/// One sequence of a delta rule; what a rule does not take stays empty.
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

DeltaProblem random_problem(std::int32_t T, std::int32_t HK, std::int32_t HV, std::int32_t K, std::int32_t V);

/// Each number `times` times: one gate per head becomes one per row or column.
Values repeated(const Values& values, std::int32_t times);

/// Inputs on the device; states, out and residual are the caller's.
DeltaRuleArgs bind_delta(OpRig& rig, const DeltaProblem& problem);
Result run_delta(const Backend& backend, Op<DeltaRuleArgs> OpTable::*op, const DeltaProblem& problem);

double tolerance_on(const Backend& backend);
double error_of(const Values& got, const Values& want);  ///< max|got - want| / max|want|
/// Outputs, states and (where both have one) residuals within tolerance_on(backend).
void check_equal(const Backend& backend, const Result& got, const Result& want);

}  // namespace cairn::test
