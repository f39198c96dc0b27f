// What the kernels of the sm_90a SparseGDN prefill share: sizes, arguments, where a chunk lies.
#pragma once

#include "backends/cuda/gdn_fragments_sm90.cuh"
#include "backends/gpu/kernels/sparse_gdn_selection.cuh"

namespace cairn::gpu::sm90::sparse {

inline constexpr int kDim = 128, kMaxHeadsPerKey = 4;
inline constexpr int kDecayBytes = kChunk * 4, kSnapshotBytes = 4 * kTileBytes;

/// T' = inverse diag(beta) of one chunk and head, bf16, in blocks of 16 x 16 that are left operands: a lane has words
/// 0 to 3 of each. Of a diagonal block word 2, the upper right quarter, is zero and not kept.
struct InverseBlocks {
  uint4 left[3][32];           ///< 10 21 32
  uint2 own_first[4][32];      ///< 00 11 22 33: words 0, 1
  std::uint32_t own_last[4][32];  ///< word 3

  __device__ __forceinline__ uint4 own(int row, int lane) const {
    const uint2 first = own_first[row][lane];
    return make_uint4(first.x, first.y, 0, own_last[row][lane]);
  }
};
inline constexpr int kInverseBytes = sizeof(InverseBlocks);

/// Intermediate tensors. Chunks of all sequences lie one after another.
struct SparseWork {
  InverseBlocks* inverse;  ///< [chunk, HV]
  float* decay;            ///< [chunk, HV, 64]: inclusive cumulative log2-decay
  /// [place, heads of a group]: S^T [128 columns x 128 rows] bf16 as 2 x 2 tiles, key halves outside.
  unsigned char* snapshots;
  int* progress;   ///< [sequence, HV, 2 halves, 2]: stored U' of events; stored states, the initial one first
  int* next_item;  ///< [1]
};

struct SparsePrefillArgs {
  CUtensorMap q, k, v, out;
  CUtensorMap v_tail;  ///< as v, boxes of 32 rows
  SparseSelectArgs select;
  SparseWork work;
  const float* log_decay;
  const float* beta;
  float* const* states;
  unsigned short* out_rows;  ///< bf16
  std::int64_t out_stride;
  float scale;
  int key_heads, value_heads;
  int snapshot_begin[kSelectSequences + 1];  ///< places of the sequences before
  int item_begin[kSelectSequences + 1];      ///< (pair, group) items of the sequences before

  __device__ __forceinline__ int per_group() const { return value_heads / key_heads; }
};

__device__ __forceinline__ ChunkRows chunk_rows(const SparsePrefillArgs& a, int sequence, int chunk) {
  const int first = a.select.token_begin[sequence] + (chunk - a.select.chunk_begin[sequence]) * kChunk;
  return {first, min(kChunk, a.select.token_begin[sequence + 1] - first)};
}

/// Rows from `count` on of `tiles` tiles of 64 rows that lie one after another: a neighbour's numbers must not meet even a
/// zero of ours. 128 threads.
__device__ __forceinline__ void clear_rows(unsigned char* tile, int tiles, int count, int thread) {
  const int pieces = (kChunk - count) * 8;
  for (int i = thread; i < tiles * pieces; i += 128) {
    *reinterpret_cast<uint4*>(tile + i / pieces * kTileBytes + count * 128 + i % pieces * 16) = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace cairn::gpu::sm90::sparse
