#include <cstring>

#include "tests/fuzz/fuzz_targets.h"

namespace cairn::test {
namespace {

std::uint64_t next(std::uint64_t& state) {  // SplitMix64
  std::uint64_t z = state += 0x9e3779b97f4a7c15U;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
  z = (z ^ z >> 27) * 0x94d049bb133111ebU;
  return z ^ z >> 31;
}

constexpr std::uint32_t kNastyNumbers[] = {0, 1, 2, 4, 0xffffffff, 0x7fffffff, 0x80000000, 0xfffffffc, 0xffff, 0x10000, 64};

}  // namespace

void mutate(std::uint8_t* data, std::size_t size, std::uint64_t seed) {
  if (size < 8) return;
  std::uint64_t state = seed;
  const std::uint64_t changes = 1 + next(state) % 4;
  for (std::uint64_t i = 0; i < changes; ++i) {
    const std::size_t at = next(state) % (size - 7);
    switch (next(state) % 5) {
      case 0: data[at] ^= static_cast<std::uint8_t>(1U << next(state) % 8); break;
      case 1: data[at] = static_cast<std::uint8_t>(next(state)); break;
      case 2: {
        const std::uint32_t number = kNastyNumbers[next(state) % (sizeof kNastyNumbers / sizeof *kNastyNumbers)];
        std::memcpy(data + (at & ~std::size_t{3}), &number, 4);
        break;
      }
      case 3: {
        std::uint16_t small = 0;
        std::memcpy(&small, data + at, 2);
        small = static_cast<std::uint16_t>(small + next(state) % 9 - 4);
        std::memcpy(data + at, &small, 2);
        break;
      }
      default: {
        const std::size_t from = next(state) % (size - 7);
        std::memmove(data + at, data + from, 1 + next(state) % 7);
        break;
      }
    }
  }
}

}  // namespace cairn::test
