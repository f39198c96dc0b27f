// Matrix products of a warpgroup with 64 rows and 32 to 256 columns: d[64 x n] (+)= a[64 x 16] b[n x 16]^T, bf16, f32
// sums, both operands from shared memory in 128-byte swizzled rows (sm90_instructions.cuh). A thread holds d[4 j + e]:
// row 16 warp + lane / 4 + 8 (e / 2), column 8 j + 2 (lane % 4) + e % 2.
#pragma once

#include "backends/cuda/sm90_instructions.cuh"

namespace cairn::gpu::sm90 {

#define CAIRN_D16(d, i) CAIRN_D8(d, i), CAIRN_D8(d, i + 8)
#define CAIRN_D32_AT(d, i) CAIRN_D16(d, i), CAIRN_D16(d, i + 16)
#define CAIRN_R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define CAIRN_R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CAIRN_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define CAIRN_R48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CAIRN_R64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define CAIRN_R80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define CAIRN_R96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define CAIRN_R112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
/// `registers`: the names of d; `left`, `right`, `adds`: the numbers behind them.
#define CAIRN_MULTIPLY(columns, registers, left, right, adds, ...)                                             \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" adds ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
               "k16.f32.bf16.bf16 {" registers "}, %" left ", %" right ", add, 1, 1, 0, 0;\n}"                 \
               : __VA_ARGS__                                                                                   \
               : "l"(a), "l"(b), "r"(add))

/// add = 0: d is overwritten.
template <int kColumns>
__device__ __forceinline__ void multiply_64(float (&d)[kColumns / 2], std::uint64_t a, std::uint64_t b, int add) {
  if constexpr (kColumns == 32) {
    CAIRN_MULTIPLY("32", CAIRN_R0, "16", "17", "18", CAIRN_D16(d, 0));
  } else if constexpr (kColumns == 64) {
    CAIRN_MULTIPLY("64", CAIRN_R0 CAIRN_R16, "32", "33", "34", CAIRN_D32_AT(d, 0));
  } else if constexpr (kColumns == 128) {
    CAIRN_MULTIPLY("128", CAIRN_R0 CAIRN_R16 CAIRN_R32 CAIRN_R48, "64", "65", "66", CAIRN_D32_AT(d, 0),
                   CAIRN_D32_AT(d, 32));
  } else if constexpr (kColumns == 160) {
    CAIRN_MULTIPLY("160", CAIRN_R0 CAIRN_R16 CAIRN_R32 CAIRN_R48 CAIRN_R64, "80", "81", "82", CAIRN_D32_AT(d, 0),
                   CAIRN_D32_AT(d, 32), CAIRN_D16(d, 64));
  } else if constexpr (kColumns == 192) {
    CAIRN_MULTIPLY("192", CAIRN_R0 CAIRN_R16 CAIRN_R32 CAIRN_R48 CAIRN_R64 CAIRN_R80, "96", "97", "98",
                   CAIRN_D32_AT(d, 0), CAIRN_D32_AT(d, 32), CAIRN_D32_AT(d, 64));
  } else {
    static_assert(kColumns == 256, "no product of this width");
    CAIRN_MULTIPLY("256", CAIRN_R0 CAIRN_R16 CAIRN_R32 CAIRN_R48 CAIRN_R64 CAIRN_R80 CAIRN_R96 CAIRN_R112, "128", "129",
                   "130", CAIRN_D32_AT(d, 0), CAIRN_D32_AT(d, 32), CAIRN_D32_AT(d, 64), CAIRN_D32_AT(d, 96));
  }
}

}  // namespace cairn::gpu::sm90
