// Matrix products of 32 neighbouring lanes, and 16-byte copies to shared memory that run beside the arithmetic.
//   nvcc   -> mma.sync, ldmatrix, cp.async (sm_80 and newer)
//   hipcc  -> shuffles and fused multiply-adds; plain copies
//   g++    -> the same sums on the host
// Numerics: bf16 products are exact in f32; sums are f32. The order of the 16 additions inside one instruction is the
// vendor's own, but always the same.
//
// A group is 32 lanes, also where a warp has 64: lane = threadIdx.x % 32. With row = lane / 4, pair = 2 (lane % 4), a lane holds
//   left   a[16 x 16]  a[0] = (row, pair..+1)  a[1] = (row + 8, pair..+1)  a[2] = (row, pair + 8..+9)  a[3] = (row + 8, pair + 8..+9)
//   right  b[16 x 8]   b0 = (pair..+1, row)    b1 = (pair + 8..+9, row)                      (summed index first)
//   sums   d[16 x 8]   d[0], d[1] = (row, pair..+1)    d[2], d[3] = (row + 8, pair..+1)
// Two bf16 lie in a word, the lower index in the low half. All 32 lanes call together.
#pragma once

#include "backends/gpu/platform/gpu_platform.h"

#if defined(__CUDACC__) || defined(__HIPCC__) || defined(CAIRN_GPU_EMULATOR)

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP__)
#define CAIRN_MATRIX_BY_SHUFFLES 1
#elif !defined(CAIRN_GPU_EMULATOR)
#define CAIRN_MATRIX_BY_MMA 1
#endif

namespace cairn::gpu {

inline constexpr int kMatrixLanes = 32;

__device__ inline float low_bf16(std::uint32_t pair) { return bits_to_float(pair << 16); }
__device__ inline float high_bf16(std::uint32_t pair) { return bits_to_float(pair & 0xFFFF0000u); }

/// Two f32 rounded to bf16 (nearest, ties to even; NaN stays NaN) in one word, `low` in the low half.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
#if defined(CAIRN_MATRIX_BY_MMA)
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  const auto round = [](float x) {
    const std::uint32_t bits = float_to_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bits >> 16 | 0x40u;
    return (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
  };
  return round(low) | round(high) << 16;
#endif
}

#if !defined(CAIRN_MATRIX_BY_MMA)
/// The sums of a lane: left(i, lane) and right(i, lane) give a[i] and b[i] of a lane of the group.
template <class Left, class Right>
__device__ inline float4 sum_products(float4 d, const Left& left, const Right& right) {
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes, row = lane / 4, column = lane % 4 * 2;
  for (int half = 0; half < 2; ++half) {
    for (int quarter = 0; quarter < 4; ++quarter) {
      const std::uint32_t upper = left(2 * half, 4 * row + quarter), lower = left(2 * half + 1, 4 * row + quarter);
      const std::uint32_t first = right(half, 4 * column + quarter), second = right(half, 4 * column + 4 + quarter);
      d.x = fmaf(high_bf16(upper), high_bf16(first), fmaf(low_bf16(upper), low_bf16(first), d.x));
      d.y = fmaf(high_bf16(upper), high_bf16(second), fmaf(low_bf16(upper), low_bf16(second), d.y));
      d.z = fmaf(high_bf16(lower), high_bf16(first), fmaf(low_bf16(lower), low_bf16(first), d.z));
      d.w = fmaf(high_bf16(lower), high_bf16(second), fmaf(low_bf16(lower), low_bf16(second), d.w));
    }
  }
  return d;
}
#endif

#if defined(CAIRN_MATRIX_BY_SHUFFLES)
/// A call, not inlined: kernels have hundreds of products, and inlined a file of them compiled for six minutes a chip.
static __device__ __attribute__((noinline)) float4 multiply_by_shuffles(float4 d, uint4 a, uint2 b) {
  const std::uint32_t left[4] = {a.x, a.y, a.z, a.w}, right[2] = {b.x, b.y};
  const auto word = [](std::uint32_t mine, int from) { return __shfl(mine, from, kMatrixLanes); };
  return sum_products(d, [&](int i, int from) { return word(left[i], from); }, [&](int i, int from) { return word(right[i], from); });
}
#endif

/// d += a b, bf16 operands.
__device__ inline void multiply_16x8(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#if defined(CAIRN_MATRIX_BY_MMA)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  float4 sums;
  sums.x = d[0], sums.y = d[1], sums.z = d[2], sums.w = d[3];
#if defined(CAIRN_MATRIX_BY_SHUFFLES)
  sums = multiply_by_shuffles(sums, make_uint4(a[0], a[1], a[2], a[3]), make_uint2(b0, b1));
#else
  const EmulatedOperands* group = emulated_operands({{a[0], a[1], a[2], a[3]}, {b0, b1}});
  sums = sum_products(sums, [&](int i, int from) { return group[from].a[i]; }, [&](int i, int from) { return group[from].b[i]; });
#endif
  d[0] = sums.x, d[1] = sums.y, d[2] = sums.z, d[3] = sums.w;
#endif
}

#if defined(CAIRN_MATRIX_BY_MMA)
template <bool kTransposed>
__device__ inline void load_four_matrices(std::uint32_t (&m)[4], const std::uint16_t* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
  }
}
#else
/// Elements (row, column) and (row, column + 1) of a tile, or with kTransposed of its transpose.
template <bool kTransposed, class Tile>
__device__ inline std::uint32_t load_pair(const Tile& tile, int row, int column) {
  if constexpr (kTransposed) return *tile(column, row) | static_cast<std::uint32_t>(*tile(column + 1, row)) << 16;
  return *tile(row, column) | static_cast<std::uint32_t>(*tile(row, column + 1)) << 16;
}
#endif

// Fragments from shared memory. `tile(row, column)` gives the address of an element; the 8 elements from a column that is a
// multiple of 8 lie together, 16-byte aligned, so that rows may be padded or swizzled by such pieces.

/// Left operand from a tile [16 rows x 16 summed].
template <class Tile>
__device__ inline void load_left(std::uint32_t (&a)[4], const Tile& tile) {
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes;
#if defined(CAIRN_MATRIX_BY_MMA)
  load_four_matrices<false>(a, tile(lane % 16, lane / 16 * 8));
#else
  for (int i = 0; i < 4; ++i) a[i] = load_pair<false>(tile, lane / 4 + i % 2 * 8, lane % 4 * 2 + i / 2 * 8);
#endif
}
/// Left operand from a tile [16 summed x 16 rows].
template <class Tile>
__device__ inline void load_left_transposed(std::uint32_t (&a)[4], const Tile& tile) {
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes;
#if defined(CAIRN_MATRIX_BY_MMA)
  load_four_matrices<true>(a, tile(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8));
#else
  for (int i = 0; i < 4; ++i) a[i] = load_pair<true>(tile, lane / 4 + i % 2 * 8, lane % 4 * 2 + i / 2 * 8);
#endif
}
/// Two right operands from a tile [16 columns x 16 summed]: columns 0 to 7 are b[0], b[1]; 8 to 15 are b[2], b[3].
template <class Tile>
__device__ inline void load_right(std::uint32_t (&b)[4], const Tile& tile) {
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes;
#if defined(CAIRN_MATRIX_BY_MMA)
  load_four_matrices<false>(b, tile(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8));
#else
  for (int i = 0; i < 4; ++i) b[i] = load_pair<false>(tile, lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2 * 8);
#endif
}
/// Two right operands from a tile [16 summed x 16 columns].
template <class Tile>
__device__ inline void load_right_transposed(std::uint32_t (&b)[4], const Tile& tile) {
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes;
#if defined(CAIRN_MATRIX_BY_MMA)
  load_four_matrices<true>(b, tile(lane % 16, lane / 16 * 8));
#else
  for (int i = 0; i < 4; ++i) b[i] = load_pair<true>(tile, lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2 * 8);
#endif
}

// ---------------------------------------------------------------- copies beside the arithmetic

/// 16 bytes from global to shared memory, both 16-aligned; zeros where !is_inside. Seen after wait_for_copies and a barrier.
__device__ inline void copy_16_async(void* to, const void* from, bool is_inside) {
#if defined(CAIRN_MATRIX_BY_MMA)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(is_inside ? 16 : 0)
               : "memory");
#else
  float4 piece = {};
  if (is_inside) piece = *static_cast<const float4*>(from);
  *static_cast<float4*>(to) = piece;
#endif
}
/// Ends a group of copies.
__device__ inline void commit_copies() {
#if defined(CAIRN_MATRIX_BY_MMA)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Waits for this thread's groups but the last kPending.
template <int kPending>
__device__ void wait_for_copies() {
#if defined(CAIRN_MATRIX_BY_MMA)
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace cairn::gpu

#endif
