// What the kernels of the sm_90a GDN prefill share (gdn_intra, gdn_scan, gdn_heads): sizes, arguments, where a chunk lies.
#pragma once

#include "backends/cuda/gdn_fragments_sm90.cuh"
#include "backends/interface/op_args.h"

namespace cairn::gpu::sm90 {

inline constexpr int kChunk = 64, kDim = 128;
inline constexpr int kMaxSequences = 128;  ///< of one launch; larger batches take several

/// Intermediate tensors, chunk-major.  [chunk, HV] each.
struct GdnWorkspace {
  unsigned char* tiles;  ///< 2 tiles: T' = M^-1 diag(beta), then A' = scale (Q K^T) 2^(g_i - g_j), j <= i; bf16
  float* factors;        ///< [2, 64]: 2^g of the inclusive cumulative log2-decay, then 2^(g_last - g)
  int* ready;            ///< [chunk, HK]: 1 once the tiles and g of the key head's value heads are written
};

struct GdnPrefillArgs {
  CUtensorMap q, k, v;
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

__device__ __forceinline__ int sequence_of(const GdnPrefillArgs& a, int chunk) {
  return find_sequence(a.chunk_begin, a.sequence_count, chunk);
}

}  // namespace cairn::gpu::sm90
