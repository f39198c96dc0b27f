// What the kernels of the sm_90a SparseGDN prefill share: sizes, arguments, where a chunk lies.
#pragma once

#include "backends/cuda/gdn_fragments_sm90.cuh"
#include "backends/gpu/kernels/sparse_gdn_selection.cuh"

namespace cairn::gpu::sm90::sparse {

inline constexpr int kDim = 128, kMaxHeadsPerKey = 4;
inline constexpr int kDecayBytes = kChunk * 4, kSnapshotBytes = 4 * kTileBytes;

/// T' = inverse diag(beta) of one chunk and head, bf16: of every 16 columns the 32 rows from the diagonal block on (of
/// the last ones 16), in matrices of 8 x 8 as products take them from shared memory: the two of columns 0 to 7 of the
/// diagonal block, of the block below it, then those of columns 8 to 15. A lane's words of a left operand lie in them
/// as they are: word w of a block belongs to columns 8 (w / 2) on and rows 8 (w % 2) on.
struct InverseBlocks {
  std::uint32_t words[7 * 4 * 32];

  /// Of the diagonal block in rows 16 i.
  __device__ __forceinline__ static int own_place(int i, int word, int lane) {
    return 256 * i + word / 2 * (i < 3 ? 128 : 64) + word % 2 * 32 + lane;
  }
  /// Of the block left of it, i > 0.
  __device__ __forceinline__ static int left_place(int i, int word, int lane) {
    return 256 * (i - 1) + word / 2 * 128 + 64 + word % 2 * 32 + lane;
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

/// Rows from `count` on of `tiles` tiles of 64 rows that lie one after another: a neighbour's numbers must not meet
/// even a zero of ours. 128 threads.
__device__ __forceinline__ void clear_rows(unsigned char* tile, int tiles, int count, int thread) {
  const int pieces = (kChunk - count) * 8;
  for (int i = thread; i < tiles * pieces; i += 128) {
    *reinterpret_cast<uint4*>(tile + i / pieces * kTileBytes + count * 128 + i % pieces * 16) = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace cairn::gpu::sm90::sparse
