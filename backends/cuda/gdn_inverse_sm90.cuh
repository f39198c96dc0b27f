// The inverse of a chunk's M = I + strict_lower(...), by two warps: T' = M^-1 diag(weights) as bf16.
//   Computes  C = M^-1 of 8 x 8 blocks by forward substitution, a thread for each column (f32); then three times
//             X_oe = -C_oo M_oe C_ee of neighbours, of 8, 16 and 32 rows, as products of one warp
//   Layout    -M comes as 8 x 8 tiles up to the diagonal; in its place and above come the tiles of C^T. The sums of
//             a product lie as its left operand does, with the summed index in the order 0 2 4 6 1 3 5 7:
//             X^T = (C_ee^T (-M_oe)^T) C_oo^T takes its first sums as they are
//   Numerics  tf32 operands (cut, not rounded), f32 sums. T' against f64, keys of cosine 0.5, 0.9, 0.99, beta near 1,
//             hardly a decay: rms error 1.44e-3, 1.61e-3, 1.36e-3, largest 2.3e-3, 2.4e-3, 2.6e-3. Rounding T' alone:
//             rms 1.28e-3, 1.21e-3, 0.78e-3. Substitution of 16 rows: 1.43e-3, 1.59e-3, 1.33e-3; 2.3e-3, 4e-3, 5e-3
//   Measured  see gdn_intra. A quarter of the shared-memory reads of substitution in blocks of 16 rows
#pragma once

#include "backends/cuda/gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90 {

/// A lower triangular 64 x 64 matrix of f32 as three quarters of 32 x 32. 16-byte piece p of row r of a quarter lies at
/// place p ^ lower_swizzle(r): tiles of 8 x 8 by rows (8 bytes a lane) and by columns (4 bytes a lane) meet no bank
/// twice.
struct LowerMatrix {
  float quarter[3][32 * 32];  ///< rows 0 to 31; rows 32 to 63 of columns 0 to 31; of columns 32 to 63
};
__device__ __forceinline__ constexpr int lower_swizzle(int row) { return (row & 3) * 2 ^ (row & 4 ? 3 : 0); }

/// Where a lane has its two entries of a tile, as index of a quarter: row lane / 4, columns 2 (lane % 4) (+ 1).
__device__ __forceinline__ int tile_place(int lane) {
  return lane / 4 * 32 + (lane / 2 % 2 ^ lower_swizzle(lane / 4)) * 4 + lane % 2 * 2;
}
/// The same of the tile's transpose: its first entry; the second lies a row further on, in the neighbouring tile's
/// place.
__device__ __forceinline__ int transposed_place(int lane) {
  return lane % 4 * 64 + (lane / 16 ^ lower_swizzle(lane % 4 * 2)) * 4 + lane / 4 % 4;
}

/// One matrix -M and the two warps (half = 0, 1) that invert it.
struct Inverter {
  LowerMatrix& m;
  int half, lane;
  float2 left[4][2];                                      ///< of C_lo^T: tiles of the warp's 16 rows
  std::uint32_t even[4], odd[4], joined[4], lower[2][4];  ///< blocks of T', rounded

  __device__ __forceinline__ Inverter(LowerMatrix& matrix, int warp, int lane)
      : m(matrix), half(warp % 2), lane(lane) {}

  /// Entries of the tile at 8 x 8 block (row, column) of a quarter.
  __device__ __forceinline__ float2 tile(const float* quarter, int row, int column) const {
    return *reinterpret_cast<const float2*>(quarter + (tile_place(lane) ^ 8 * column) + 256 * row);
  }
  __device__ __forceinline__ void store_tile(float* quarter, int row, int column, float x, float y) const {
    *reinterpret_cast<float2*>(quarter + (tile_place(lane) ^ 8 * column) + 256 * row) = make_float2(x, y);
  }
  /// Entries of the transpose of that tile.
  __device__ __forceinline__ float2 turned_tile(const float* quarter, int row, int column) const {
    const float* at = quarter + 256 * row;
    return make_float2(at[transposed_place(lane) ^ 8 * column], at[(transposed_place(lane) ^ 8 * (column ^ 1)) + 32]);
  }
  /// d[16 x 8] += a[16 x 8] b[8 x 8]^T, of a the upper and the lower tile.
  __device__ __forceinline__ static void multiply(float (&d)[4], float2 upper, float2 lower, float2 b) {
    multiply_16x8_tf32(
        d, {__float_as_uint(upper.x), __float_as_uint(lower.x), __float_as_uint(upper.y), __float_as_uint(lower.y)},
        {__float_as_uint(b.x), __float_as_uint(b.y)});
  }
  __device__ __forceinline__ static void multiply(float (&d)[4], const float (&a)[4], float2 b) {
    multiply(d, make_float2(a[0], a[1]), make_float2(a[2], a[3]), b);
  }

  /// C_bb^T of the four 8 x 8 blocks b of a quarter, in place: a thread has one column of one of them.
  __device__ __forceinline__ void invert_diagonal(float* quarter) const {
    const int b = lane / 8, column = lane % 8;
    float* block = quarter + 256 * b;
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
#pragma unroll
      for (int i = j + 1; i < 8; ++i) {
        const float4 row = *reinterpret_cast<const float4*>(block + 32 * i + (8 * b ^ 4 * (j / 4 ^ lower_swizzle(i))));
        x[i] += row.x * x[j];
        if (i > j + 1) x[i] += row.y * x[j + 1];
        if (i > j + 2) x[i] += row.z * x[j + 2];
        if (i > j + 3) x[i] += row.w * x[j + 3];
      }
    }
    __syncwarp();  // all lanes have read
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      *reinterpret_cast<float4*>(block + 32 * column + (8 * b ^ 4 * (j ^ lower_swizzle(column)))) =
          make_float4(x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
    }
    __syncwarp();
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
    return shared_address(tile.blocks[lower_block(row_block, column_block)]) + (lane / 16 * 8 + lane % 8) * 32 +
           ((lane / 8 % 2 ^ lane / 4 % 2) << 4);
  }

  /// Factors of the columns that a thread has of the tile from column `first` on.
  __device__ __forceinline__ float2 columns_of(const float* weights, int first) const {
    return *reinterpret_cast<const float2*>(weights + first + 2 * (lane % 4));
  }

  /// Of the warp's 32 x 32 quarter on the diagonal: blocks of 8 x 8 to 16 x 16, two at once (of each product one half
  /// counts), then those to 32 x 32.
  __device__ __forceinline__ void join_tiles(float* quarter, const float* weights) {
    const float2 c_00 = tile(quarter, 0, 0), c_22 = tile(quarter, 2, 2);
    float p_0[4] = {}, p_2[4] = {}, x_0[4] = {}, x_2[4] = {};
    multiply(p_0, c_00, c_22, tile(quarter, 1, 0));
    multiply(p_2, c_00, c_22, tile(quarter, 3, 2));
    const float2 upper = make_float2(p_0[0], p_0[1]), under = make_float2(p_2[2], p_2[3]);
    const float2 r_11 = turned_tile(quarter, 1, 1), r_33 = turned_tile(quarter, 3, 3);
    multiply(x_0, upper, under, r_11);
    multiply(x_2, upper, under, r_33);
    store_tile(quarter, 2, 3, x_2[2], x_2[3]);
    if (half == 1) store_tile(quarter, 0, 1, x_0[0], x_0[1]);
    __syncwarp();
    left[0][0] = c_00, left[0][1] = make_float2(0, 0);
    left[1][0] = make_float2(x_0[0], x_0[1]), left[1][1] = tile(quarter, 1, 1);
    join_blocks(quarter, weights, r_33);
  }
  __device__ __forceinline__ void join_blocks(float* quarter, const float* weights, float2 r_33) {
    const float2 r_22 = turned_tile(quarter, 2, 2), r_32 = turned_tile(quarter, 2, 3);
    float p[2][4] = {}, x[2][4] = {};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int k = 0; k < 2; ++k) multiply(p[n], left[k][0], left[k][1], tile(quarter, 2 + n, k));
    }
    multiply(x[0], p[0], r_22);
    multiply(x[1], p[0], r_32);
    multiply(x[1], p[1], r_33);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (half == 1) {
        store_tile(quarter, 0, 2 + n, x[n][0], x[n][1]);
        store_tile(quarter, 1, 2 + n, x[n][2], x[n][3]);
      }
      left[2 + n][0] = make_float2(x[n][0], x[n][1]), left[2 + n][1] = make_float2(x[n][2], x[n][3]);
    }
    const float f0 = weights[32 * half + lane / 4], f1 = weights[32 * half + lane / 4 + 8];
    const float2 c_00 = left[0][0], c_10 = left[1][0], c_11 = left[1][1];
    even[0] = pack_bf16(f0 * c_00.x, f0 * c_00.y), even[1] = 0;
    even[2] = pack_bf16(f0 * c_10.x, f0 * c_10.y), even[3] = pack_bf16(f1 * c_11.x, f1 * c_11.y);
    round_rows(joined, x[0], x[1], f0, f1);
    const float2 b0 = columns_of(weights, 32 * half + 16), b1 = columns_of(weights, 32 * half + 24);
    odd[0] = pack_bf16(b0.x * r_22.x, b0.y * r_22.y), odd[1] = pack_bf16(b0.x * r_32.x, b0.y * r_32.y);
    odd[2] = 0, odd[3] = pack_bf16(b1.x * r_33.x, b1.y * r_33.y);
  }

  /// The lower left 32 x 32 quarter: the warp's 16 columns.
  __device__ __forceinline__ void join_halves(const float* weights) {
    const float *low = m.quarter[1], *high = m.quarter[2];
    float p[4][4] = {}, x[4][4] = {};
    if (half == 0) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int n = 0; n < 4; ++n) multiply(p[n], left[k][0], left[k][1], tile(low, n, k));
      }
    } else {
      left[2][0] = tile(m.quarter[0], 2, 2), left[2][1] = make_float2(0, 0);
      left[3][0] = tile(m.quarter[0], 2, 3), left[3][1] = tile(m.quarter[0], 3, 3);
    }
#pragma unroll
    for (int k = 2; k < 4; ++k) {
#pragma unroll
      for (int n = 0; n < 4; ++n) multiply(p[n], left[k][0], left[k][1], tile(low, n, k));
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int n = k; n < 4; ++n) multiply(x[n], p[k], turned_tile(high, k, n));
    }
    const float f0 = weights[16 * half + lane / 4], f1 = weights[16 * half + lane / 4 + 8];
#pragma unroll
    for (int i = 0; i < 2; ++i) round_rows(lower[i], x[2 * i], x[2 * i + 1], f0, f1);
  }

  /// -M -> T' = M^-1 diag(weights), rounded, in the same place.
  __device__ __forceinline__ void run(const float* weights, int barrier) {
    float* const quarter = m.quarter[2 * half];
    const int e = 2 * half, o = e + 1;
    invert_diagonal(quarter);
    join_tiles(quarter, weights);
    pair_barrier(barrier);
    join_halves(weights);
    pair_barrier(barrier);
    const LowerTile& to = reinterpret_cast<const LowerTile&>(m);
    store_transposed(transposed_address(to, e, e), even);
    store_matrices(block_address(to, o, o, lane), odd);
    store_transposed(transposed_address(to, o, e), joined);
#pragma unroll
    for (int i = 0; i < 2; ++i) store_transposed(transposed_address(to, 2 + i, half), lower[i]);
    fence_engines();
    pair_barrier(barrier);
  }
  __device__ __forceinline__ static void pair_barrier(int id) { asm volatile("bar.sync %0, 64;" ::"r"(id) : "memory"); }
};

}  // namespace cairn::gpu::sm90
