// How a decode of softmax attention splits a sequence's keys: chunks of them, chunk % slots names a slot.
#pragma once

#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {

inline constexpr int kMaxSlots = 64;

struct DecodeAttentionArgs {
  SoftmaxAttentionArgs call;
  int first_sequence;  ///< blocks in z begin there
  int slot_count, head_groups;
  int least_log2, most_log2;  ///< of the keys of a chunk
  int short_chunks;           ///< that a sequence has at most while they are shorter than the most; a power of two
  bool in_eights;             ///< q, k and v may be read 16 bytes at a time, and K, V are in eights
  int keys_at_once;           ///< of a group: a power of two, at most a chunk's divided by kDecodeGroups
  float* sums;                ///< [B of this launch, HQ, slots, V]: weighted values
  float* totals;              ///< [B of this launch, HQ, slots, 2]: largest score in powers of 2, sum of weights
};

/// Keys of a chunk of a sequence that sees `keys` of them.
__host__ __device__ inline int chunk_log2_of(const DecodeAttentionArgs& args, std::int64_t keys) {
  int log2 = args.least_log2;
  while (log2 < args.most_log2 && keys > std::int64_t{args.short_chunks} << log2) ++log2;
  return log2;
}

/// Chunks of positions that a token sees.
struct SeenChunks {
  std::int64_t position, oldest, first, last;
  int log2;  ///< of the keys of a chunk
};

__device__ inline SeenChunks seen_chunks(const DecodeAttentionArgs& args, int b) {
  const std::int64_t position = args.call.starts[b], window = args.call.window;
  const std::int64_t oldest = window > 0 && position >= window ? position - window + 1 : 0;
  const int log2 = chunk_log2_of(args, position - oldest + 1);
  return {position, oldest, oldest >> log2, position >> log2, log2};
}

}  // namespace cairn::gpu
