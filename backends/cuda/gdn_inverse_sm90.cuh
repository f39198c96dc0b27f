// The inverse of a chunk's M = I + strict_lower(...), by two warps: T' = M^-1 diag(beta) as bf16.
//   Computes  C_bb = M_bb^-1 of 16 x 16 blocks by forward substitution, a thread for each column (f32);
//             X_oe = -C_oo M_oe C_ee of neighbours, then the same of 32 x 32 halves, as products of one warp
//   Layout    products take rows of both sides: X^T = -(C_ee^T M_oe^T) C_oo^T, C_ee kept transposed. The sums of the first
//             product are the left operand of the second as they lie. Nothing above the diagonal is read
//   Numerics  tf32 operands (cut, not rounded), f32 sums
//   Measured  predicted to save the barriers and half the loads of the form before, whose bits it has; see gdn_intra.
//             4 unknowns of the substitution at a time, so that sums do not wait for each other, saved nothing
#pragma once

#include "backends/cuda/gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90 {

inline constexpr int kMatrixStride = 72;  // rows 8 banks apart: pairs of f32 of 4 rows meet no bank twice

/// One matrix M, unit lower triangular in 16 x 16 blocks, and the two warps (half = 0, 1) that invert it. M is in
/// place; of the blocks C of the inverse, transposes come to lie in the upper right quarter, which M does not use.
struct Inverter {
  float* m;
  int half, lane;

  __device__ __forceinline__ float* block(int row, int column) const { return m + 16 * (row * kMatrixStride + column); }
  /// C_00^T, C_11^T or C_22^T. With X_10^T the first two are the transpose of the upper left 32 x 32 half of the
  /// inverse.
  __device__ __forceinline__ float* transposed(int b) const { return block(b > 0, b == 1 ? 3 : 2); }
  __device__ __forceinline__ float* transposed_10() const { return block(0, 3); }

  /// d[16 x 8 kTiles] += a[16 x 8] b[8 kTiles x 8]^T: a, b point to rows in shared memory.
  template <int kTiles>
  __device__ __forceinline__ void multiply(float (&d)[kTiles][4], const float* a, const float* b) const {
    std::uint32_t left[4], right[4];
    load_matrices(left, shared_address(a + (lane & 15) * kMatrixStride + lane / 16 * 4));
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      load_matrices(right, shared_address(b + (8 * n + lane / 16 * 8 + lane % 8) * kMatrixStride + (lane & 8) / 2));
      multiply_16x8_tf32(d[n], left, {right[0], right[1]});
      multiply_16x8_tf32(d[n + 1], left, {right[2], right[3]});
    }
  }
  /// d[16 x 8] += a[16 x 8] b[8 x 8]^T, a from the sums of a product: its columns 2 t and 2 t + 1 go to the places t
  /// and t + 4.
  __device__ __forceinline__ void multiply(float (&d)[4], const float (&a)[4], const float* b) const {
    const float2 right = *reinterpret_cast<const float2*>(b + lane / 4 * kMatrixStride + 2 * (lane % 4));
    multiply_16x8_tf32(d, {__float_as_uint(a[0]), __float_as_uint(a[2]), __float_as_uint(a[1]), __float_as_uint(a[3])},
                       {__float_as_uint(right.x), __float_as_uint(right.y)});
  }

  /// C_bb of the warp's blocks b = 2 half and 2 half + 1: a thread has one column of one of them.
  __device__ __forceinline__ void invert_diagonal() const {
    const int b = 2 * half + lane / 16, column = lane % 16;
    float* corner = block(b, b);
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < 16; j += 4) {  // 4 unknowns at a time leave all rows below
#pragma unroll
      for (int i = j + 1; i < 16; ++i) {
        const float4 row = *reinterpret_cast<const float4*>(corner + i * kMatrixStride + j);
        x[i] -= row.x * x[j];
        if (i > j + 1) x[i] -= row.y * x[j + 1];
        if (i > j + 2) x[i] -= row.z * x[j + 2];
        if (i > j + 3) x[i] -= row.w * x[j + 3];
      }
    }
    __syncwarp();  // all lanes have read
    if (b > 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) corner[i * kMatrixStride + column] = x[i];
    }
    if (b < 3) {
      float4* row = reinterpret_cast<float4*>(transposed(b) + column * kMatrixStride);
#pragma unroll
      for (int i = 0; i < 4; ++i) row[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    }
    __syncwarp();
  }

  /// -X^T of X = -C_oo M_oe C_ee, e = 2 half, o = e + 1, for the second step also to shared memory.
  __device__ __forceinline__ void join_blocks(float (&x)[2][4]) const {
    const int even = 2 * half, odd = even + 1;
    float p[2][4] = {};
#pragma unroll
    for (int step = 0; step < 2; ++step) multiply(p, transposed(even) + 8 * step, block(odd, even) + 8 * step);
    clear(x);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int n = 0; n < 2; ++n) multiply(x[n], p[step], block(odd, odd) + 8 * n * kMatrixStride + 8 * step);
    }
    if (half == 0) {
      float* to = transposed_10() + lane / 4 * kMatrixStride + 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        *reinterpret_cast<float2*>(to + 8 * n) = make_float2(-x[n][0], -x[n][1]);
        *reinterpret_cast<float2*>(to + 8 * n + 8 * kMatrixStride) = make_float2(-x[n][2], -x[n][3]);
      }
    } else {
      __syncwarp();  // all lanes have read M_32
      float* to = block(3, 2) + 2 * (lane % 4) * kMatrixStride + lane / 4;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[(8 * n + i % 2) * kMatrixStride + 8 * (i / 2)] = -x[n][i];
      }
    }
  }

  /// -X^T of the lower left 32 x 32 quarter X = -C_hi M_low C_lo: the warp's 16 columns of X.
  __device__ __forceinline__ void join_halves(float (&x)[4][4]) const {
    float p[4][4] = {};
#pragma unroll
    for (int step = 0; step < 4; ++step) {  // C_lo^T is upper triangular
      if (step >= 2 || half == 0) multiply(p, block(half, 2) + 8 * step, block(2, 0) + 8 * step);
    }
    clear(x);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {  // C_hi is lower triangular
        if (step < 2 || n >= 2) multiply(x[n], p[step], block(2, 2) + 8 * n * kMatrixStride + 8 * step);
      }
    }
  }

  template <int kTiles>
  __device__ __forceinline__ static void clear(float (&d)[kTiles][4]) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0;
  }

  /// 16 x 16 entries of the transpose, two 8-wide tiles of sums, times a factor for each row, as words for
  /// store_transposed.
  __device__ __forceinline__ static void round_rows(std::uint32_t (&w)[4], const float (&tile0)[4],
                                                    const float (&tile1)[4], float f0, float f1) {
    w[0] = pack_bf16(f0 * tile0[0], f0 * tile0[1]), w[1] = pack_bf16(f1 * tile0[2], f1 * tile0[3]);
    w[2] = pack_bf16(f0 * tile1[0], f0 * tile1[1]), w[3] = pack_bf16(f1 * tile1[2], f1 * tile1[3]);
  }
  /// Where this lane's row of 16 x 16 entries goes for store_transposed.
  __device__ __forceinline__ std::uint32_t transposed_address(const LowerTile& tile, int row_block,
                                                              int column_block) const {
    return piece_address(tile, 16 * row_block + lane / 16 * 8 + lane % 8, 2 * column_block + lane / 8 % 2);
  }

  /// M -> T' = M^-1 diag(beta), rounded, in the same place.
  __device__ __forceinline__ void run(const float* beta, int barrier) const {
    const int even = 2 * half, odd = even + 1, row = lane / 4, column = 2 * (lane % 4);
    float x[2][4], low[4][4];
    std::uint32_t joined[4], first[4], second[4], lower[2][4], zeros[4] = {};
    invert_diagonal();
    join_blocks(x);
    pair_barrier(barrier);
    join_halves(low);
    round_rows(joined, x[0], x[1], -beta[16 * even + row], -beta[16 * even + row + 8]);
    const float f0 = -beta[16 * half + row], f1 = -beta[16 * half + row + 8];
#pragma unroll
    for (int i = 0; i < 2; ++i) round_rows(lower[i], low[2 * i], low[2 * i + 1], f0, f1);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 b = *reinterpret_cast<const float2*>(beta + 16 * odd + 8 * n + column);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = (row + 8 * r) * kMatrixStride + 8 * n + column;
        const float2 e = *reinterpret_cast<const float2*>(transposed(even) + at);
        const float2 o = *reinterpret_cast<const float2*>(block(odd, odd) + at);
        const float f = beta[16 * even + row + 8 * r];
        first[2 * n + r] = pack_bf16(f * e.x, f * e.y);
        second[2 * n + r] = pack_bf16(b.x * o.x, b.y * o.y);
      }
    }
    pair_barrier(barrier);
    const LowerTile& tile = *reinterpret_cast<const LowerTile*>(m);
    store_transposed(transposed_address(tile, even, even), first);
    store_matrices(block_address(tile, odd, odd, lane), second);
    store_transposed(transposed_address(tile, odd, even), joined);
    store_matrices(block_address(tile, even, odd, lane), zeros);
#pragma unroll
    for (int i = 0; i < 2; ++i) store_transposed(transposed_address(tile, 2 + i, half), lower[i]);
    fence_engines();
    pair_barrier(barrier);
  }
  __device__ __forceinline__ static void pair_barrier(int id) { asm volatile("bar.sync %0, 64;" ::"r"(id) : "memory"); }
};

}  // namespace cairn::gpu::sm90
