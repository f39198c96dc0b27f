// What the dense and the sparse GDN prefill of sm_90a share: chunks, and how products lie in registers.
#pragma once

#include "backends/cuda/sm90_instructions.cuh"
#include "backends/gpu/kernels/clamp_decay.cuh"

namespace cairn::gpu::sm90 {

/// Rows of the batch that a chunk covers: tokens [first, first + count), count <= 64.
struct ChunkRows {
  int first, count;
};

/// Deltas are kept as the end of their chunk sees them, 2^(gamma - g) U', so that the state takes them as they are;
/// but none smaller than 2^-kFrameBits of itself, so that scores, which take that back, stay finite.
inline constexpr float kFrameBits = 96;
/// h of a token whose cumulative log2-decay is g, in a chunk that decays by gamma: its deltas are kept as 2^(h - g) U'.
__device__ __forceinline__ float frame_of(float g, float gamma) { return fmaxf(gamma, g - kFrameBits); }
/// Whether h is gamma for all tokens of a chunk.
__device__ __forceinline__ bool has_one_frame(float gamma) { return gamma >= -kFrameBits; }

/// The b with begin[b] <= i < begin[b + 1].
__device__ __forceinline__ int find_sequence(const int* begin, int count, int i) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (begin[middle] <= i)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/// Address of the 8 x 8 pieces of a warp's 16 rows for store_matrices, at two neighbouring 16-byte columns.
__device__ __forceinline__ std::uint32_t fragment_address(int warp, int lane, int first_piece) {
  return swizzled(16 * warp + lane / 8 % 2 * 8 + lane % 8, first_piece + lane / 16);
}

/// The warp's number in its block, known to be the same for all lanes: what follows from it lives in uniform registers,
/// from which products take their operands.
__device__ __forceinline__ int uniform_warp() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

/// The operand `bytes` further on in shared memory: one addition.
__device__ __forceinline__ std::uint64_t further(std::uint64_t operand, int bytes) {
  return (operand & 0xffffffff00000000u) | (static_cast<std::uint32_t>(operand) + bytes / 16);
}
/// Of a tile pair 128 columns wide: columns 16 i to 16 i + 15.
__device__ __forceinline__ std::uint64_t columns(std::uint64_t operand, int i) {
  return further(operand, i / 4 * kTileBytes + i % 4 * 32);
}

/// The left operand at fragment_address().
__device__ __forceinline__ void load_matrices(std::uint32_t (&m)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

/// The words of a left operand of columns 16 i to 16 i + 15 from the sums of a product.
template <int kCount>
__device__ __forceinline__ void round_sums(const float (&d)[kCount], int i, std::uint32_t (&words)[4]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) words[n] = pack_bf16(d[8 * i + 2 * n], d[8 * i + 2 * n + 1]);
}

/// d[64 x 32] (+)= a[64 x 16] b[32 x 16]^T, a from registers.
__device__ __forceinline__ void multiply_64x32(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %21, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, "
      "%20, add, 1, 1, 0;\n}"
      : CAIRN_D8(d, 0), CAIRN_D8(d, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/// Calls visit(element of s, key row, value column) for the 64 state elements of this thread.
template <class Visit>
__device__ __forceinline__ void for_each_state_element(int warp, int lane, const Visit& visit) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) visit(4 * j + i, 8 * j + 2 * (lane % 4) + i % 2, 16 * warp + lane / 4 + 8 * (i / 2));
  }
}

/// Rounds S to the left operand of 8 products of 16 key rows.
__device__ __forceinline__ void round_state(const float (&s)[64], std::uint32_t (&rounded)[8][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) round_sums(s, i, rounded[i]);
}

}  // namespace cairn::gpu::sm90
