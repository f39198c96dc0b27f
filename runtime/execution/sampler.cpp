#include "runtime/execution/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace cairn {
namespace {

struct Candidate {
  float logit;
  std::int32_t token;
};

/// Higher logit first, ties to the lower id.
bool comes_first(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

Status check(const SamplerOptions& options) {
  const auto is_in = [](float value, float low, float high) { return value >= low && value <= high; };  // false for NaN
  if (!is_in(options.temperature, 0, 1e6F)) return Status::invalid_argument("temperature %g is outside [0, 1e6]", options.temperature);
  if (options.top_k < 0) return Status::invalid_argument("top_k %d is negative", options.top_k);
  if (!is_in(options.top_p, 0, 1)) return Status::invalid_argument("top_p %g is outside [0, 1]", options.top_p);
  if (!is_in(options.min_p, 0, 1)) return Status::invalid_argument("min_p %g is outside [0, 1]", options.min_p);
  if (!is_in(options.repetition_penalty, 0, 1e3F)) {
    return Status::invalid_argument("repetition_penalty %g is outside [0, 1000]", options.repetition_penalty);
  }
  return {};
}

/// splitmix64 over the pair: uniform in [0, 1).
double uniform(std::uint64_t seed, std::uint64_t draw) {
  std::uint64_t x = seed;
  for (const std::uint64_t part : {draw + 1, std::uint64_t{0x9e3779b97f4a7c15}}) {
    x += part * 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    x ^= x >> 31;
  }
  return static_cast<double>(x >> 11) * 0x1p-53;
}

void penalise(std::vector<Candidate>& candidates, std::size_t count, const SamplerOptions& options) {
  if (options.repetition_penalty == 0 || options.repetition_penalty == 1) return;
  std::vector<bool> seen(count, false);
  for (const std::int32_t token : options.recent_tokens) {
    if (token >= 0 && static_cast<std::size_t>(token) < count) seen[token] = true;
  }
  for (Candidate& candidate : candidates) {
    if (!seen[candidate.token]) continue;
    const float penalty = options.repetition_penalty, largest = std::numeric_limits<float>::max();
    candidate.logit = std::clamp(candidate.logit > 0 ? candidate.logit / penalty : candidate.logit * penalty, -largest, largest);
  }
}

/// Probabilities of the sorted candidates, cut by top-p and min-p.
std::vector<double> kept_probabilities(const std::vector<Candidate>& sorted, const SamplerOptions& options) {
  std::vector<double> weights;
  double total = 0;
  for (const Candidate& candidate : sorted) {
    weights.push_back(std::exp((static_cast<double>(candidate.logit) - sorted[0].logit) / options.temperature));
    total += weights.back();
  }
  std::size_t keep = weights.size();
  if (options.top_p > 0 && options.top_p < 1) {
    double sum = 0;
    for (keep = 0; keep < weights.size() && sum < options.top_p * total; ++keep) sum += weights[keep];
  }
  while (keep > 1 && weights[keep - 1] < options.min_p * weights[0]) --keep;
  weights.resize(std::max<std::size_t>(keep, 1));
  return weights;
}

}  // namespace

Result<std::int32_t> sample(std::span<const float> logits, const SamplerOptions& options) {
  CAIRN_TRY(check(options));
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) candidates.push_back({logits[i], static_cast<std::int32_t>(i)});
  }
  if (candidates.empty()) return Status::error(CAIRN_STATUS_NUMERIC, "none of %zu logits is finite", logits.size());
  penalise(candidates, logits.size(), options);
  if (options.temperature == 0 || options.top_k == 1) {
    return std::min_element(candidates.begin(), candidates.end(), comes_first)->token;
  }
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + options.top_k, candidates.end(), comes_first);
    candidates.resize(static_cast<std::size_t>(options.top_k));
  }
  std::sort(candidates.begin(), candidates.end(), comes_first);
  const std::vector<double> weights = kept_probabilities(candidates, options);
  double total = 0;
  for (const double weight : weights) total += weight;
  double rest = uniform(options.seed, options.draw) * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    rest -= weights[i];
    if (rest < 0) return candidates[i].token;
  }
  return candidates[weights.size() - 1].token;
}

}  // namespace cairn
