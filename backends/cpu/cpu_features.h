// What this processor can do, found at run time, and which instruction set the kernels use.
#pragma once

#include <cstdint>

namespace cairn::cpu {

/// Instruction sets that kernels are compiled for. kBaseline is what the compiler targets by default and runs anywhere.
enum class Isa : std::uint8_t { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

struct CpuFeatures {
  bool avx2 = false;    ///< AVX2, FMA and F16C
  bool avx512 = false;  ///< AVX-512 F, BW, VL and DQ (and avx2)
  bool avx512_bf16 = false;
  bool amx_bf16 = false;  ///< tile registers and their bf16 products; the kernel's permission is asked for by oneDNN

  Isa isa() const { return avx512 ? Isa::kAvx512 : avx2 ? Isa::kAvx2 : Isa::kBaseline; }
};

/// The processor's features that the operating system has enabled, without those masked off by limit_cpu_features().
CpuFeatures cpu_features();

/// For tests: devices opened from now on use at most these features. Thread-safe.
void limit_cpu_features(const CpuFeatures& most);

/// "avx512 avx512_bf16", for device descriptions.
void describe_cpu_features(const CpuFeatures& features, char* text, int text_bytes);

}  // namespace cairn::cpu
