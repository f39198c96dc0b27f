// Product-key addresses of the cpu backend against the reference's: the same slots in the same order, ties included.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "backends/cpu/sdm_address_cpu.h"
#include "backends/reference/sdm_address.h"
#include "tests/support/random_inputs.h"

namespace cairn::test {
namespace {

struct Address {
  std::vector<std::int32_t> slots;
  std::vector<double> weights;
};

Address fast_address(cpu::Isa isa, const std::vector<float>& scores, std::int32_t side, std::int32_t count) {
  ScratchLayout size(nullptr);
  cpu::carve_sdm_address_work(side, count, size);
  std::vector<std::byte> memory(size.size_bytes() + 256);
  const auto misalignment = reinterpret_cast<std::uintptr_t>(memory.data()) % 256;
  ScratchLayout layout(memory.data() + 256 - misalignment);
  const cpu::SdmAddressWork work = cpu::carve_sdm_address_work(side, count, layout);
  Address address{std::vector<std::int32_t>(cpu::sdm_slots_held(side, count)), {}};
  std::vector<float> weights(address.slots.size());
  cpu::find_sdm_slots(cpu::recurrent_kernels(isa), {scores.data(), side, count, 0.7f}, work, address.slots.data(),
                      weights.data());
  address.weights.assign(weights.begin(), weights.end());
  return address;
}

Address reference_address(const std::vector<float>& scores, std::int32_t side, std::int32_t count) {
  ScratchLayout size(nullptr);
  reference::carve_sdm_address(side, count, size);
  std::vector<std::byte> memory(size.size_bytes() + 256);
  const auto misalignment = reinterpret_cast<std::uintptr_t>(memory.data()) % 256;
  ScratchLayout layout(memory.data() + 256 - misalignment);
  Address address{std::vector<std::int32_t>(reference::sdm_address_size(side, count)), {}};
  address.weights.resize(address.slots.size());
  reference::sdm_address(scores.data(), side, count, 0.7f, reference::carve_sdm_address(side, count, layout),
                         address.slots.data(), address.weights.data());
  return address;
}

std::vector<cpu::Isa> instruction_sets() {
  std::vector<cpu::Isa> sets = {cpu::Isa::kBaseline};
  if (cpu::cpu_features().avx2) sets.push_back(cpu::Isa::kAvx2);
  if (cpu::cpu_features().avx512) sets.push_back(cpu::Isa::kAvx512);
  return sets;
}

constexpr std::int32_t kSides[] = {1, 2, 3, 12, 32, 48, 49, 96, 200, 480}, kCounts[] = {1, 2, 16, 64, 128};

void check_addresses(const std::vector<float>& scores, std::int32_t side, std::int32_t count) {
  const Address want = reference_address(scores, side, count);
  for (const cpu::Isa isa : instruction_sets()) {
    CAPTURE(static_cast<int>(isa));
    CAPTURE(side);
    CAPTURE(count);

    const Address got = fast_address(isa, scores, side, count);

    CHECK(got.slots == want.slots);
    for (std::size_t i = 0; i < want.weights.size(); ++i) {
      CHECK(got.weights[i] == doctest::Approx(want.weights[i]).epsilon(1e-5));
    }
  }
}

TEST_CASE("cpu: sdm addresses are the reference's, largest score first") {
  Random random(3);
  for (const std::int32_t side : kSides) {
    for (const std::int32_t count : kCounts) check_addresses(random.normals(2 * side, 2), side, count);
  }
}

TEST_CASE("cpu: sdm addresses settle ties by the lower slot") {
  Random random(4);
  for (const std::int32_t side : kSides) {
    std::vector<float> scores = random.uniforms(2 * side, -2, 2);
    for (float& score : scores) score = std::round(score);  // five values only
    for (const std::int32_t count : kCounts) check_addresses(scores, side, count);
    check_addresses(std::vector<float>(2 * side, 0.25f), side, 16);
  }
}

TEST_CASE("cpu: sdm addresses of scores that are no numbers are slots, each once") {
  Random random(5);
  for (const std::int32_t side : kSides) {
    std::vector<float> scores = random.normals(2 * side, 2);
    const float odd[] = {NAN, -INFINITY, INFINITY};
    for (std::size_t i = 0; i < scores.size(); i += 2) scores[i] = odd[i / 2 % 3];
    for (const cpu::Isa isa : instruction_sets()) {
      const Address address = fast_address(isa, scores, side, 64);

      std::vector<std::int32_t> sorted = address.slots;
      std::sort(sorted.begin(), sorted.end());
      CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end());
      CHECK(sorted.front() >= 0);
      CHECK(sorted.back() < side * side);
    }
  }
}

}  // namespace
}  // namespace cairn::test
