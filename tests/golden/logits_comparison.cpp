#include "tests/golden/logits_comparison.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/golden/model_session.h"
#include "tests/support/random_inputs.h"
#include "tests/support/tolerance.h"

namespace cairn::test {
namespace {

constexpr std::size_t kPrefillTokens = 70, kDecodeSteps = 16;  // a chunk of 64 and a part of the next

double relative_rms(const Logits& got, const Row& want) {
  double square = 0, reference = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    square += (got[i] - want[i]) * (got[i] - want[i]);
    reference += want[i] * want[i];
  }
  return std::sqrt(square / reference);
}

}  // namespace

void check_logits(const std::string& folder, PlainModel& plain, int vocab) {
  Random random(99);
  Tokens tokens;
  Row prefilled, decoded;
  for (std::size_t i = 0; i < kPrefillTokens + kDecodeSteps; ++i) {
    tokens.push_back(static_cast<std::int32_t>(random.bits() % static_cast<std::uint64_t>(vocab)));
    const Row logits = plain.step(tokens.back());
    Row& all = i < kPrefillTokens ? prefilled : decoded;
    all.insert(all.end(), logits.begin(), logits.end());
  }
  for (const char* backend : {"reference", "cpu"}) {
    CAPTURE(backend);
    ModelSession session(folder, backend);

    const Logits first = session.prefill({tokens.begin(), tokens.begin() + kPrefillTokens}, kPrefillTokens);
    Logits steps;
    for (std::size_t i = kPrefillTokens; i < tokens.size(); ++i) {
      const Logits step = session.decode(tokens[i]);
      steps.insert(steps.end(), step.begin(), step.end());
    }

    REQUIRE(first.size() == prefilled.size());
    REQUIRE(steps.size() == decoded.size());
    CHECK(relative_rms(first, prefilled) <= kGoldenRelativeRms);
    CHECK(relative_rms(steps, decoded) <= kGoldenRelativeRms);
  }
}

void check_load_refused(const std::string& folder, const char* part) {
  cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
  options.backend = "reference";
  cairn_device* device = nullptr;
  require(cairn_device_open(&options, &device), "device");
  cairn_model* model = nullptr;

  const cairn_status status = cairn_model_load(device, folder.c_str(), nullptr, &model);

  CHECK(status != CAIRN_STATUS_OK);
  const std::string message = cairn_last_error_message();
  CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  cairn_model_release(model);
  cairn_device_release(device);
}

}  // namespace cairn::test
