// The inverse of a chunk's M = I + strict_lower(...), by two warps: T' = M^-1 diag(weights) as bf16.
//   Computes  C = M^-1 of 8 x 8 tiles by forward substitution, a thread for each column (f32); then three times
//             X_oe = -C_oo M_oe C_ee of neighbours, of 8, 16 and 32 rows, as products of one warp
//   Layout    -M comes, and C^T is handed on, as a LowerTile of f16; the tiles on the diagonal come as f32. The sums of
//             a product, rounded, are the left operand of the next: X^T = (C_ee^T (-M_oe)^T) C_oo^T
//   Numerics  f16 operands, f32 sums. Entries of M and C are at most 2 where beta |k|^2 is; past 65,504, where no
//             recurrence is stable, they become infinite. T' against f64, keys of cosine 0.5, 0.9, 0.99, beta near 1,
//             hardly a decay: rms error 1.48e-3, 1.59e-3, 1.57e-3, largest 2.2e-3. Rounding T' alone: 1.32e-3, 1.23e-3,
//             1.18e-3, largest 2.0e-3. With tf32 operands, which are cut and not rounded: 1.55e-3, 1.63e-3, 1.62e-3;
//             2.3e-3, 2.3e-3, 2.5e-3 (all three computed on the host, operation by operation)
//   Measured  see gdn_intra. f16 in place of tf32: half of the products and of the shared memory's traffic
#pragma once

#include "backends/cuda/gdn_plan_sm90.cuh"

namespace cairn::gpu::sm90 {

/// Four 8 x 8 tiles of f32 side by side are a strip. 16-byte piece p of its row r lies at place p ^ strip_swizzle(r):
/// tiles as products have them (8 bytes a lane) and row by row (16 bytes for 8 lanes) meet no bank twice.
__device__ __forceinline__ constexpr int strip_swizzle(int row) { return (row & 3) * 2 ^ (row & 4 ? 3 : 0); }
/// Where a lane has its two entries of the first tile of a strip: row lane / 4, columns 2 (lane % 4) (+ 1). Of tile i:
/// ^ 8 i.
__device__ __forceinline__ int strip_place(int lane) {
  return lane / 4 * 32 + (lane / 2 % 2 ^ strip_swizzle(lane / 4)) * 4 + lane % 2 * 2;
}

/// -M of a chunk and head; then T'.
struct LowerMatrix {
  LowerTile tile;             ///< f16; of a 16 x 16 block on the diagonal only the 8 x 8 tile below it
  float diagonal[2][8 * 32];  ///< f32: the tiles on the diagonal, a strip for each half of the rows
  unsigned char unused[1024];
};
static_assert(sizeof(LowerMatrix) == kTileBytes, "takes a tile of queries first");

/// C^T of a 16 x 16 block on the diagonal: its tiles (0, 0), (0, 1) and (1, 1). What is left is zero.
struct DiagonalBlock {
  std::uint32_t upper, beside, under;
};

/// Where a lane's row of the 8 x 8 tile (row, column) of a 16 x 16 block lies, for loads of several tiles.
__device__ __forceinline__ std::uint32_t tile_row(std::uint32_t block, int row, int column, int lane) {
  return block + (8 * row + lane % 8) * 32 + ((column ^ lane / 4 % 2) << 4);
}
/// A tile as products have it: a lane's two entries of row lane / 4, columns 2 (lane % 4) (+ 1).
__device__ __forceinline__ void store_tile_entries(std::uint32_t block, int row, int column, int lane,
                                                   std::uint32_t words) {
  store_shared_4(block + (8 * row + lane / 4) * 32 + ((column ^ lane / 16) << 4) + lane % 4 * 4, words);
}

/// One matrix -M and the two warps (half = 0, 1) that invert it.
struct Inverter {
  LowerMatrix& m;
  int half, lane;
  std::uint32_t even_block, odd_block, joined_block;      ///< addresses of the warp's blocks (e, e), (o, o), (o, e)
  DiagonalBlock e, o;                                     ///< of them
  std::uint32_t joined_left[4];                           ///< C^T of (o, e)
  std::uint32_t even[4], odd[4], joined[4], lower[2][4];  ///< blocks of T', rounded

  __device__ __forceinline__ Inverter(LowerMatrix& matrix, int warp, int lane) : m(matrix), half(warp % 2), lane(lane) {
    even_block = shared_address(m.tile.blocks[half ? lower_block(2, 2) : lower_block(0, 0)]);
    odd_block = shared_address(m.tile.blocks[half ? lower_block(3, 3) : lower_block(1, 1)]);
    joined_block = shared_address(m.tile.blocks[half ? lower_block(3, 2) : lower_block(1, 0)]);
  }

  /// C_bb^T of the four 8 x 8 tiles b on the diagonal of the warp's quarter: a thread has one column of one of them.
  __device__ __forceinline__ void invert_tiles() const {
    const int b = lane / 8, column = lane % 8;
    const float* strip = m.diagonal[half];
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
#pragma unroll
      for (int i = j + 1; i < 8; ++i) {
        const float4 row = *reinterpret_cast<const float4*>(strip + 32 * i + (8 * b ^ 4 * (j / 4 ^ strip_swizzle(i))));
        x[i] += row.x * x[j];
        if (i > j + 1) x[i] += row.y * x[j + 1];
        if (i > j + 2) x[i] += row.z * x[j + 2];
        if (i > j + 3) x[i] += row.w * x[j + 3];
      }
    }
    store_shared_16(tile_row(b / 2 ? odd_block : even_block, b % 2, b % 2, lane),
                    make_uint4(pack_f16(x[0], x[1]), pack_f16(x[2], x[3]), pack_f16(x[4], x[5]), pack_f16(x[6], x[7])));
    __syncwarp();
  }

  __device__ __forceinline__ static void round_left(const float (&tile0)[4], const float (&tile1)[4],
                                                    std::uint32_t (&left)[4]) {
    left[0] = pack_f16(tile0[0], tile0[1]), left[1] = pack_f16(tile0[2], tile0[3]);
    left[2] = pack_f16(tile1[0], tile1[1]), left[3] = pack_f16(tile1[2], tile1[3]);
  }
  __device__ __forceinline__ static std::uint32_t weigh(float factor, float x, float y) {
    return pack_bf16(factor * x, factor * y);
  }
  __device__ __forceinline__ static std::uint32_t weigh(float factor, std::uint32_t words) {
    const float2 x = unpack_f16(words);
    return weigh(factor, x.x, x.y);
  }
  /// 16 x 16 entries of the transpose, two 8-wide tiles of sums, times a factor for each row, as words for
  /// store_transposed.
  __device__ __forceinline__ static void round_rows(std::uint32_t (&w)[4], const float (&tile0)[4],
                                                    const float (&tile1)[4], float f0, float f1) {
    w[0] = weigh(f0, tile0[0], tile0[1]), w[1] = weigh(f1, tile0[2], tile0[3]);
    w[2] = weigh(f0, tile1[0], tile1[1]), w[3] = weigh(f1, tile1[2], tile1[3]);
  }
  /// Where this lane's row of 16 x 16 entries goes for store_transposed.
  __device__ __forceinline__ std::uint32_t transposed_address(int row_block, int column_block) const {
    return shared_address(m.tile.blocks[lower_block(row_block, column_block)]) + (lane / 16 * 8 + lane % 8) * 32 +
           ((lane / 8 % 2 ^ lane / 4 % 2) << 4);
  }

  /// The warp's 32 x 32 quarter on the diagonal: from tiles to blocks of 16 x 16, two at once (of each product one half
  /// counts), then to the quarter.
  __device__ __forceinline__ void join_quarter(const float* weights) {
    std::uint32_t first[4], second[4], under[2], below[4];
    // C_00^T of e and of o, -M_10 of e and of o
    load_matrices(first, tile_row(lane & 8 ? odd_block : even_block, lane / 16, 0, lane));
    // C_11 of e and of o, C_00 of o (and of e for nothing)
    const bool is_second = lane & 16;
    const std::uint32_t at =
        tile_row(((lane & 8) != 0) != is_second ? odd_block : even_block, !is_second, !is_second, lane);
    load_transposed(second, at);
    load_two_matrices(under, at);
    load_matrices(below, block_row(joined_block, lane));
    float p_e[4] = {}, p_o[4] = {}, x_e[4] = {}, x_o[4] = {};
    multiply_16x8_f16(p_e, first[0], first[1], first[2]);
    multiply_16x8_f16(p_o, first[0], first[1], first[3]);
    const std::uint32_t p_upper = pack_f16(p_e[0], p_e[1]), p_under = pack_f16(p_o[2], p_o[3]);
    multiply_16x8_f16(x_e, p_upper, p_under, second[0]);
    multiply_16x8_f16(x_o, p_upper, p_under, second[1]);
    e = {first[0], pack_f16(x_e[0], x_e[1]), under[0]};
    o = {first[1], pack_f16(x_o[2], x_o[3]), under[1]};
    const std::uint32_t left[4] = {e.upper, 0, e.beside, e.under};
    float p[2][4] = {}, x[2][4] = {};
    multiply_16x8_f16(p[0], left, below[0], below[2]);
    multiply_16x8_f16(p[1], left, below[1], below[3]);
    std::uint32_t p_left[4];
    round_left(p[0], p[1], p_left);
    multiply_16x8_f16(x[0], p_left[0], p_left[1], second[2]);
    multiply_16x8_f16(x[1], p_left, turn_matrix(o.beside), second[1]);
    round_left(x[0], x[1], joined_left);
    store_tile_entries(odd_block, 0, 1, lane, o.beside);
    if (half == 1) {
      store_tile_entries(even_block, 0, 1, lane, e.beside);
      store_matrices(block_row(joined_block, lane), joined_left);
    }
    const float* mine = weights + 32 * half + lane / 4;
    even[0] = weigh(mine[0], e.upper), even[1] = 0;
    even[2] = weigh(mine[0], x_e[0], x_e[1]), even[3] = weigh(mine[8], e.under);
    odd[0] = weigh(mine[16], o.upper), odd[1] = 0;
    odd[2] = weigh(mine[16], x_o[2], x_o[3]), odd[3] = weigh(mine[24], o.under);
    round_rows(joined, x[0], x[1], mine[0], mine[8]);
  }

  /// p += left b^T, b block (row, column) of -M: columns are the rows of b.
  __device__ __forceinline__ void multiply_below(float (&p0)[4], float (&p1)[4], const std::uint32_t (&left)[4],
                                                 int row, int column) const {
    std::uint32_t b[4];
    load_matrices(b, block_address(m.tile, row, column, lane));
    multiply_16x8_f16(p0, left, b[0], b[2]);
    multiply_16x8_f16(p1, left, b[1], b[3]);
  }
  /// x += left C_bb^T, b on the diagonal.
  __device__ __forceinline__ void multiply_diagonal(float (&x0)[4], float (&x1)[4], const std::uint32_t (&left)[4],
                                                    int b) const {
    std::uint32_t c[4];
    load_transposed(c, block_address(m.tile, b, b, lane));
    multiply_16x8_f16(x0, left[0], left[1], c[0]);
    multiply_16x8_f16(x1, left, c[2], c[3]);
  }

  /// The lower left 32 x 32 quarter: the warp's 16 columns.
  __device__ __forceinline__ void join_halves(const float* weights) {
    float p[4][4] = {}, x[4][4] = {};
    std::uint32_t left[4], c[4];
    if (half == 0) {
      const std::uint32_t first[4] = {e.upper, 0, e.beside, e.under};
      multiply_below(p[0], p[1], first, 2, 0);
      multiply_below(p[2], p[3], first, 3, 0);
#pragma unroll
      for (int i = 0; i < 4; ++i) left[i] = joined_left[i];
    } else {
      load_matrices(left, block_address(m.tile, 1, 1, lane));
      left[1] = 0;
    }
    multiply_below(p[0], p[1], left, 2, 1);
    multiply_below(p[2], p[3], left, 3, 1);
    std::uint32_t p2[4], p3[4];
    round_left(p[0], p[1], p2);
    round_left(p[2], p[3], p3);
    multiply_diagonal(x[0], x[1], p2, 2);
    multiply_diagonal(x[2], x[3], p3, 3);
    load_transposed(c, block_address(m.tile, 3, 2, lane));
    multiply_16x8_f16(x[2], p2, c[0], c[1]);
    multiply_16x8_f16(x[3], p2, c[2], c[3]);
    const float f0 = weights[16 * half + lane / 4], f1 = weights[16 * half + lane / 4 + 8];
#pragma unroll
    for (int i = 0; i < 2; ++i) round_rows(lower[i], x[2 * i], x[2 * i + 1], f0, f1);
  }

  /// -M -> T' = M^-1 diag(weights), rounded, in the same place. For all warps of a warpgroup, which `barrier` is of:
  /// the other two have another matrix, or what is left of one.
  __device__ __forceinline__ void run(const float* weights, int barrier) {
    invert_tiles();
    join_quarter(weights);
    warpgroup_barrier(barrier);
    join_halves(weights);
    warpgroup_barrier(barrier);
    const int i = 2 * half;
    store_transposed(transposed_address(i, i), even);
    store_transposed(transposed_address(i + 1, i + 1), odd);
    store_transposed(transposed_address(i + 1, i), joined);
#pragma unroll
    for (int row = 2; row < 4; ++row) store_transposed(transposed_address(row, half), lower[row - 2]);
    fence_engines();
    warpgroup_barrier(barrier);
  }
};

}  // namespace cairn::gpu::sm90
