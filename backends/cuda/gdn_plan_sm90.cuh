// What the kernels of the sm_90a GDN prefill share (gdn_intra, gdn_scan, gdn_heads): sizes, arguments, where a chunk
// lies.
#pragma once

#include "backends/cuda/gdn_fragments_sm90.cuh"
#include "backends/interface/op_args.h"

namespace cairn::gpu::sm90 {

inline constexpr int kChunk = 64, kDim = 128;
inline constexpr int kMaxSequences = 128;  ///< of one launch; larger batches take several

/// A lower triangular 64 x 64 matrix of bf16 without its upper right quarter, as products take it.
struct LowerTile {
  unsigned char lower[32 * 128];  ///< rows 32 to 63: 64 columns, in the 128-byte swizzle
  unsigned char upper[32 * 64];   ///< rows 0 to 31: 32 columns, in the 64-byte swizzle
};
/// The address of the 16-byte piece `piece` of row `row`.
__device__ __forceinline__ std::uint32_t piece_address(const LowerTile& tile, int row, int piece) {
  return row < 32 ? shared_address(tile.upper) + row * 64 + ((piece ^ (row / 2 & 3)) << 4)
                  : shared_address(tile.lower) + swizzled(row - 32, piece);
}
/// Where this lane's row of 16 x 16 entries lies, for load_matrices and store_matrices.
__device__ __forceinline__ std::uint32_t block_address(const LowerTile& tile, int row_block, int column_block,
                                                       int lane) {
  return piece_address(tile, 16 * row_block + (lane & 15), 2 * column_block + lane / 16);
}
/// Operand of rows of 64 bytes.
__device__ __forceinline__ std::uint64_t operand_64(std::uint32_t address) {
  return (std::uint64_t{2} << 62) | (std::uint64_t{32} << 32) | (std::uint64_t{1} << 16) | ((address & 0x3FFFF) >> 4);
}

/// Intermediate tensors, chunk-major.  [chunk, HV] each.
struct GdnWorkspace {
  LowerTile* inverses;  ///< T' = M^-1 diag(beta)
  LowerTile* scores;    ///< A' = scale (Q K^T) 2^(g_i - g_j), j <= i
  float* factors;       ///< [3, 64]: inclusive cumulative log2-decay g, 2^g, 2^(g_last - g)
  int* ready;           ///< [chunk, HK]: 1 once the inverses and factors of the key head's value heads are written
};

struct GdnPrefillArgs {
  CUtensorMap q, k, v;
  CUtensorMap out_map;  ///< 16 rows at a time
  GdnWorkspace work;
  const float* log_decay;
  const float* beta;
  float* const* states;
  float* const* checkpoints;
  unsigned short* out;  ///< bf16
  std::int64_t out_stride;
  float scale;
  int key_heads, value_heads, checkpoint_chunks;
  int sequence_count, overlapped;
  int token_begin[kMaxSequences + 1];
  int chunk_begin[kMaxSequences + 1];
};

__device__ __forceinline__ ChunkRows chunk_rows(const GdnPrefillArgs& a, int sequence, int chunk) {
  const int first = a.token_begin[sequence] + (chunk - a.chunk_begin[sequence]) * kChunk;
  return {first, min(kChunk, a.token_begin[sequence + 1] - first)};
}

}  // namespace cairn::gpu::sm90
