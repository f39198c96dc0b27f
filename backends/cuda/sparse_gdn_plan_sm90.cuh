// What the kernels of the sm_90a SparseGDN prefill share: sizes, arguments, where a chunk lies.
#pragma once

#include "backends/cuda/gdn_fragments_sm90.cuh"
#include "backends/gpu/kernels/sparse_gdn_selection.cuh"

namespace cairn::gpu::sm90::sparse {

inline constexpr int kDim = 128, kMaxHeadsPerKey = 4;
inline constexpr int kDecayBytes = kChunk * 4, kSnapshotBytes = 4 * kTileBytes;
inline constexpr std::int64_t kMaxOutStride = 1 << 24;  ///< places within a chunk fit 32 bits

/// T' = diag(2^(h - g)) inverse diag(beta) of one chunk and head, bf16, h: frame_of(g, gamma); so U' comes out as the
/// end of its chunk sees it. Of every 16 columns the 32 rows from the diagonal block on (of the last ones 16), in
/// matrices of 8 x 8 as products take them from shared memory: the two of columns 0 to 7 of the diagonal block, of the
/// block below it, then those of columns 8 to 15. A lane's words of a left operand lie in them as they are, a line for
/// 32 lanes: word w of a block belongs to columns 8 (w / 2) on and rows 8 (w % 2) on.
struct InverseBlocks {
  std::uint32_t words[7 * 4 * 32];

  /// The line of a word of the diagonal block in rows 16 i, from line 8 i on; of the block left of it, from line
  /// 8 (i - 1) on.
  __device__ __forceinline__ static int own_line(int i, int word) { return word / 2 * (i < 3 ? 4 : 2) + word % 2; }
  __device__ __forceinline__ static int left_line(int word) { return word / 2 * 4 + 2 + word % 2; }
};
inline constexpr int kInverseBytes = sizeof(InverseBlocks), kInverseLines = kInverseBytes / 128;

/// Where T' of a chunk and head lies, and those of the heads after it. Of a whole chunk it lies in the place of
/// outputs, until U' or they are stored there: line i in token i, once for each half of a walk in the columns of its
/// U'. (Both halves with one copy, and the one that overwrites it waiting for the other: 49,152 tokens took 990 us in
/// place of 830, H200; no better as a cluster of blocks.)
struct InverseLines {
  unsigned char* first;
  std::uint32_t stride, head_stride;  ///< bytes
  bool has_copies;

  /// A lane's place in line 8 i of a head.
  __device__ __forceinline__ std::uint32_t place(int head, int i, int lane) const {
    return static_cast<std::uint32_t>(head) * head_stride + static_cast<std::uint32_t>(i) * 8 * stride + 4 * lane;
  }
  __device__ __forceinline__ std::uint32_t* at(std::uint32_t place, int line) const {
    return reinterpret_cast<std::uint32_t*>(first + (place + line * stride));
  }
  __device__ __forceinline__ void store(std::uint32_t place, int line, std::uint32_t word) const {
    std::uint32_t* to = at(place, line);
    *to = word;
    if (has_copies) to[32] = word;
  }
};

/// Intermediate tensors. Chunks of all sequences lie one after another.
struct SparseWork {
  InverseBlocks* short_inverse;  ///< [sequence, HV]: of a last chunk that is short
  float* decay;                  ///< [chunk, HV, 64]: inclusive cumulative log2-decay
  /// [place, heads of a group]: S^T [128 columns x 128 rows] bf16 as 2 x 2 tiles, key halves outside.
  unsigned char* snapshots;
  int* progress;   ///< [sequence, HV, 2 halves, 2]: stored U' of events; stored states, the initial one first
  int* next_item;  ///< [1]
};

struct SparsePrefillArgs {
  CUtensorMap q, k, v, out;
  CUtensorMap v_tail;   ///< as v, boxes of 32 rows
  CUtensorMap inverse;  ///< as out, boxes of the lines of T', not swizzled
  SparseSelectArgs select;
  SparseWork work;
  const float* log_decay;
  const float* beta;
  float* const* states;
  unsigned short* out_rows;  ///< bf16
  std::int64_t out_stride;
  float scale;
  int key_heads, value_heads, heads_per_key;
  int snapshot_begin[kSelectSequences + 1];  ///< places of the sequences before
  int item_begin[kSelectSequences + 1];      ///< (pair, group) items of the sequences before

  __device__ __forceinline__ int per_group() const { return heads_per_key; }
};

__device__ __forceinline__ ChunkRows chunk_rows(const SparsePrefillArgs& a, int sequence, int chunk) {
  const int first = a.select.token_begin[sequence] + (chunk - a.select.chunk_begin[sequence]) * kChunk;
  return {first, min(kChunk, a.select.token_begin[sequence + 1] - first)};
}

__device__ __forceinline__ InverseBlocks* short_inverse(const SparsePrefillArgs& a, int sequence, int head) {
  return a.work.short_inverse + static_cast<std::int64_t>(sequence) * a.value_heads + head;
}
__device__ __forceinline__ InverseLines inverse_lines(const SparsePrefillArgs& a, int sequence, const ChunkRows& rows,
                                                      int head) {
  InverseLines lines = {reinterpret_cast<unsigned char*>(a.out_rows + rows.first * a.out_stride + head * kDim),
                        static_cast<std::uint32_t>(2 * a.out_stride), 2 * kDim, true};
  if (rows.count < kChunk)
    lines = {reinterpret_cast<unsigned char*>(short_inverse(a, sequence, head)), 128, kInverseBytes, false};
  __builtin_assume(__isGlobal(lines.first));
  return lines;
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
