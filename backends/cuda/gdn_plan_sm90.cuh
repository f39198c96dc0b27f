// What the kernels of the sm_90a GDN prefill share (gdn_intra, gdn_scan, gdn_heads): sizes, arguments, where a chunk
// lies.
#pragma once

#include "backends/cuda/gdn_fragments_sm90.cuh"
#include "backends/interface/op_args.h"

namespace cairn::gpu::sm90 {

inline constexpr int kChunk = 64, kDim = 128;
inline constexpr int kMaxSequences = 128;    ///< of one launch; larger batches take several
inline constexpr int kMaxHeadsBlocks = 256;  ///< of gdn_heads

/// Where what belongs to a token of a chunk lies: of 16 tokens, the pairs 2 i and 2 i + 8 side by side, as a thread
/// wants them.
__device__ __forceinline__ int gate_place(int token) {
  return (token & ~15) + token / 2 % 4 * 4 + token / 8 % 2 * 2 + token % 2;
}

/// A lower triangular 64 x 64 matrix of bf16: its ten blocks of 16 x 16 up to the diagonal, each 16 rows of 32 bytes in
/// the 32-byte swizzle.
struct LowerTile {
  unsigned char blocks[10][512];
};
/// Blocks one below the other lie one behind the other, except that (3, 3) comes first.
__device__ __forceinline__ constexpr int lower_block(int row, int column) {
  return row < 2 ? 7 + row + column : column == 3 ? 0 : 2 * column + row - 1;
}
/// Where this lane's row of a block lies, for load_matrices and store_matrices.
__device__ __forceinline__ std::uint32_t block_row(std::uint32_t block, int lane) {
  return block + (lane & 15) * 32 + ((lane / 16 ^ lane / 4 & 1) << 4);
}
__device__ __forceinline__ std::uint32_t block_address(const LowerTile& tile, int row_block, int column_block,
                                                       int lane) {
  return block_row(shared_address(tile.blocks[lower_block(row_block, column_block)]), lane);
}

/// The same as products take it: with a block of zeros above (3, 3) and above (1, 1).
struct LowerOperand {
  unsigned char zeros0[512], most[9][512], zeros1[512], last[512];
};
/// What of it a load does not bring.
inline constexpr int kLowerOperandZeros = 1024;
static_assert(sizeof(LowerOperand) == sizeof(LowerTile) + kLowerOperandZeros, "a copy of the tile");
/// Rows 32 to 63 or 0 to 31 (i < 2) of columns 16 i to 16 i + 15 of the one at `place`, in units of 16 bytes.
__device__ __forceinline__ std::uint64_t lower_columns(std::uint32_t place, int i) {
  return operand_at(place + ((1u << 16) + (i + 1) % 4 * 1024 / 16), kRowsOf32);
}
__device__ __forceinline__ std::uint64_t upper_columns(std::uint32_t place, int i) {
  return operand_at(place + ((1u << 16) + (4096 + i * 1024) / 16), kRowsOf32);
}
/// 16 bytes each of 64 threads.
__device__ __forceinline__ void clear_zeros(LowerOperand& to, int thread) {
  if (thread < 64) {
    *reinterpret_cast<uint4*>((thread < 32 ? to.zeros0 : to.zeros1) + thread % 32 * 16) = make_uint4(0, 0, 0, 0);
  }
}
__device__ __forceinline__ void load_lower(LowerOperand& to, const LowerTile* from, std::uint32_t barrier) {
  load_bytes(shared_address(to.most), from->blocks, sizeof(to.most), barrier);
  load_bytes(shared_address(to.last), from->blocks[9], sizeof(to.last), barrier);
}

/// What the gates of a chunk come to, at gate_place.
struct ChunkFactors {
  float in[kChunk];    ///< 2^g; g: inclusive cumulative log2-decays
  float read[kChunk];  ///< scale 2^g
};

/// Intermediate tensors, chunk-major.
struct GdnWorkspace {
  LowerTile* inverses;  ///< [chunk, HV]: T' = diag(2^(h - g)) M^-1 diag(beta)
  LowerTile* scores;    ///< [chunk, HV]: A' = scale (Q K^T) 2^(g_i - h_j), j <= i; for gdn_scan
  float* factors;       ///< [chunk, HV]: ChunkFactors for gdn_scan, g (64 numbers) for gdn_heads
  /// [chunk, HK]: 1 once all of a key head and its value heads is written, for an overlapped gdn_scan; or [blocks, 2]:
  /// 1 once the first segment of a block of gdn_heads has left its state, and how many blocks have begun.
  int* ready;
};

struct GdnPrefillArgs {
  CUtensorMap q, k, v;
  CUtensorMap out_map;    ///< 16 rows at a time
  CUtensorMap out_tiles;  ///< 64 rows
  GdnWorkspace work;
  const float* log_decay;
  const float* beta;
  float* const* states;
  float* const* checkpoints;
  unsigned short* out;  ///< bf16
  std::int64_t out_stride;
  float scale, log2_scale;
  int key_heads, value_heads, checkpoint_chunks;
  int sequence_count;
  int overlapped;                  ///< gdn_scan runs beside gdn_intra, by flags
  int heads_blocks, heads_window;  ///< of gdn_heads: how many blocks, and how many chunks each goes through
  int token_begin[kMaxSequences + 1];
  int chunk_begin[kMaxSequences + 1];
};

__device__ __forceinline__ ChunkRows chunk_rows(const GdnPrefillArgs& a, int sequence, int chunk) {
  const int first = a.token_begin[sequence] + (chunk - a.chunk_begin[sequence]) * kChunk;
  return {first, min(kChunk, a.token_begin[sequence + 1] - first)};
}

}  // namespace cairn::gpu::sm90
