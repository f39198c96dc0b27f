#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "runtime/execution/sampler.h"

namespace cairn {
namespace {

const std::vector<float> kLogits = {1.0F, 3.0F, 2.0F, 3.0F, -1.0F};

std::map<std::int32_t, int> histogram(SamplerOptions options, int draws) {
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < draws; ++i) {
    options.draw = static_cast<std::uint64_t>(i);
    counts[sample(kLogits, options).value()] += 1;
  }
  return counts;
}

}  // namespace

TEST_CASE("greedy takes the largest logit, ties to the lower id, and never NaN") {
  CHECK(sample(kLogits, {}).value() == 1);

  std::vector<float> logits = kLogits;
  logits[1] = std::numeric_limits<float>::quiet_NaN();

  CHECK(sample(logits, {}).value() == 3);
}

TEST_CASE("no finite logit is a numeric error") {
  const std::vector<float> logits(3, std::numeric_limits<float>::infinity());

  CHECK(sample(logits, {}).status().code() == CAIRN_STATUS_NUMERIC);
}

TEST_CASE("temperature 1 samples the softmax") {
  SamplerOptions options;
  options.temperature = 1;
  constexpr int kDraws = 20000;

  std::map<std::int32_t, int> counts = histogram(options, kDraws);

  double total = 0;
  for (const float logit : kLogits) total += std::exp(logit);
  for (int token = 0; token < 5; ++token) {
    const double expected = std::exp(kLogits[token]) / total;
    CHECK(std::abs(counts[token] / double{kDraws} - expected) < 0.015);  // 4 standard deviations
  }
}

TEST_CASE("top_k, top_p and min_p cut the tail") {
  SamplerOptions options;
  options.temperature = 1;
  options.top_k = 2;
  CHECK(histogram(options, 500).size() == 2);

  options.top_k = 0;
  options.top_p = 0.5F;  // the two largest hold 0.74
  CHECK(histogram(options, 500).size() == 2);

  options.top_p = 0;
  options.min_p = 0.3F;  // e^-1 = 0.37 stays, e^-2 goes
  CHECK(histogram(options, 500).size() == 3);
}

TEST_CASE("the same seed and draw choose the same token; another seed chooses otherwise somewhere") {
  SamplerOptions options;
  options.temperature = 1;
  const auto run = [&](std::uint64_t seed) {
    options.seed = seed;
    std::vector<std::int32_t> tokens;
    for (options.draw = 0; options.draw < 50; ++options.draw) tokens.push_back(sample(kLogits, options).value());
    return tokens;
  };

  CHECK(run(1) == run(1));
  CHECK(run(1) != run(2));
}

TEST_CASE("a repetition penalty makes recent tokens less likely, whatever their sign") {
  SamplerOptions options;
  options.repetition_penalty = 2;
  const std::vector<std::int32_t> recent = {1, 3, -7, 99};  // ids outside the vocabulary are ignored
  options.recent_tokens = recent;

  CHECK(sample(kLogits, options).value() == 2);
}

TEST_CASE("a penalty that takes a logit out of the range of floats leaves a choice between finite ones") {
  SamplerOptions options;
  options.repetition_penalty = 1e-38F;  // divides: the second logit becomes the largest float
  options.temperature = 1;
  const std::vector<std::int32_t> recent = {1};
  options.recent_tokens = recent;
  const std::vector<float> logits = {0.5F, 9, 0.25F, 8};

  for (options.draw = 0; options.draw < 20; ++options.draw) CHECK(sample(logits, options).value() == 1);
}

TEST_CASE("options out of range are refused with their value") {
  SamplerOptions options;
  options.top_p = 1.5F;
  const Status status = sample(kLogits, options).status();

  CHECK(status.code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(status.message().find("top_p 1.5") != std::string::npos);

  options = {};
  options.temperature = std::numeric_limits<float>::quiet_NaN();
  CHECK(sample(kLogits, options).status().code() == CAIRN_STATUS_INVALID_ARGUMENT);
}

}  // namespace cairn
