#include "backends/cpu/cpu_features.h"

#include <atomic>
#include <cstdio>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace cairn::cpu {
namespace {

#if defined(__x86_64__)

/// XCR0: which register files the operating system saves.
std::uint64_t enabled_register_files() {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<std::uint64_t>(high) << 32 | low;
}

/// Source: Intel SDM vol. 2, CPUID leaves 1 and 7.
CpuFeatures detect() {
  CpuFeatures features;
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  const auto bit = [](std::uint32_t word, int index) { return (word >> index & 1) != 0; };
  if (!__get_cpuid(1, &a, &b, &c, &d)) return features;
  const bool fma = bit(c, 12), f16c = bit(c, 29), xsave = bit(c, 27);
  if (!xsave || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
  const std::uint64_t files = enabled_register_files();
  constexpr std::uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
  const auto enabled = [files](std::uint64_t mask) { return (files & mask) == mask; };

  features.avx2 = fma && f16c && bit(b, 5) && enabled(kYmm);
  features.avx512 = features.avx2 && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31) && enabled(kZmm);
  features.amx_bf16 = features.avx512 && bit(d, 22) && bit(d, 24) && enabled(kTiles);
  const std::uint32_t last_subleaf = a;
  if (last_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) features.avx512_bf16 = features.avx512 && bit(a, 5);
  return features;
}

#else
CpuFeatures detect() { return {}; }
#endif

constexpr std::uint32_t kAll = ~0u;
std::atomic<std::uint32_t> allowed{kAll};

std::uint32_t to_bits(const CpuFeatures& f) { return f.avx2 | f.avx512 << 1 | f.avx512_bf16 << 2 | f.amx_bf16 << 3; }

}  // namespace

CpuFeatures cpu_features() {
  static const CpuFeatures detected = detect();
  const std::uint32_t bits = to_bits(detected) & allowed.load();
  CpuFeatures features;
  features.avx2 = bits & 1;
  features.avx512 = features.avx2 && bits & 2;
  features.avx512_bf16 = features.avx512 && bits & 4;
  features.amx_bf16 = features.avx512 && bits & 8;
  return features;
}

void limit_cpu_features(const CpuFeatures& most) { allowed.store(to_bits(most)); }

void describe_cpu_features(const CpuFeatures& features, char* text, int text_bytes) {
  std::snprintf(text, static_cast<std::size_t>(text_bytes), "%s%s%s",
                features.avx512 ? "avx512"
                : features.avx2 ? "avx2"
                                : "baseline",
                features.avx512_bf16 ? " avx512_bf16" : "", features.amx_bf16 ? " amx_bf16" : "");
}

}  // namespace cairn::cpu
