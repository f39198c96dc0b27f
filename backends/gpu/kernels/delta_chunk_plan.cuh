// delta_chunk: chunked prefill of every rule whose state is [K, V]: gated linear attention, the delta rules, and the
// lists of tokens that SSE sends to its partitions. Two kernels: delta_chunk_intra (no state), then the chunks in
// order: delta_chunk_scan, or gla_chunk_scan where nothing is erased.
//   With a decay of every token per key row, e, k, q its erase key, write key and query, all of a chunk of 64 tokens:
//     (I + [<e_i, k_j> decay b_j]_{j<i}) r = v - (e decayed from the chunk's start)^T S          u_t = b_t r_t
//     o = scale ((q decayed from the start)^T S + [<q_i, k_j> decay]_{j<=i} u)
//     S <- decay S + sum_t (k_t decayed to the end) u_t^T
//   b stands in the columns, so that r is the residual of spec 1 itself. Gated linear attention has u = v, no triangle.
//   Windows   sequence s of a batch owns window slots offsets[s] / 64 + s + i, i = 0, 1, ..: no table is needed, a few
//             slots stay empty. A list's chunk is what a window has for it: one sequence is one list with all its
//             tokens; SSE has a list for each partition with the window's tokens that chose it, in order, and one for
//             the shared partition. So a prefill that is cut at multiples of 64 tokens keeps its bits, and so does a
//             sequence in any batch. Long prompts go by segments of kSegmentWindows windows, which bounds the scratch;
//             states carry over in f32.
//   Measured  (H200, bf16, batch 1, 32 heads of 128 x 128 unless said; us a layer)
//               KDA 32K 2,757 to 2,838 (in its place before: 127 ms a layer at 128K, token by token); GDN2 32K 3,222
//               an earlier form, slower by a quarter: KDA 4K 453, 8K 883, 32K 3,525, 128K 14,073, 8 x 8K 7,115;
//               GDN 64 x 64, 32K 2,734
//             scratch 272 MB from 8K tokens on
#pragma once

#include "backends/gpu/kernels/element.cuh"
#include "backends/gpu/platform/gpu_matrix.h"
#include "backends/interface/op_args.h"

namespace cairn::gpu {

inline constexpr int kChunkTokens = 64, kBlockTokens = 16, kChunkBlocks = 4, kSegmentWindows = 128;
inline constexpr int kChunkStride = kChunkTokens + 8;  ///< of tiles [64, 64] in shared memory: rows 4 banks apart

enum class ChunkDecay : std::uint8_t { kNone, kToken, kRow };
enum class ChunkEdit : std::uint8_t { kNone, kTied, kDecoupled };  ///< no erase; e = k; e = erase * k

/// 16 bytes that move together: a matrix operand of one lane.
struct alignas(16) FourWords {
  std::uint32_t word[4];
};
__device__ inline void store_words(void* to, const FourWords& words) { *static_cast<FourWords*>(to) = words; }
__device__ inline FourWords load_words(const void* from) { return *static_cast<const FourWords*>(from); }
struct alignas(8) TwoFloats {
  float x, y;
};
__device__ inline TwoFloats load_floats(const void* from) { return *static_cast<const TwoFloats*>(from); }

__device__ inline void store_floats(void* to, const TwoFloats& floats) { *static_cast<TwoFloats*>(to) = floats; }

/// A token of a list and what its keys and query are multiplied with.
struct ChunkMember {
  std::int32_t token;
  float erase_weight, key_weight, query_weight;
};

/// What 16 rows of the tiles hold. Four make a quad, the work of one block of delta_chunk_intra. A list has 1, 2 or 4
/// of them, from a multiple of that on, so the places inside a quad tell which token pairs meet at which level.
struct alignas(16) ChunkBlock {
  std::int32_t list;   ///< -1: nothing
  std::int32_t base;   ///< the list's first block in the quad
  std::int32_t first;  ///< as in ChunkPlace, of the list
  std::int32_t count;
};

/// Lists of a segment's windows (SSE). Blocks are numbered inside a window; list P is the shared one.
struct ChunkLists {
  const ChunkMember* members;  ///< [windows, member_capacity]
  const std::int32_t* first;   ///< [windows, P + 1]: of each list's members in the window's
  const std::int32_t* block;   ///< [windows, P + 1]: each list's first block
  const ChunkBlock* blocks;    ///< [windows, blocks_per_window]
  std::int32_t member_capacity, routed_quads;
};

/// What a list reads: the routed partitions one, the shared partition another.
struct ChunkSide {
  ConstRows q, k;
  const float* log_decay;  ///< [T, HV] or [T, HV, K]
  const float* beta;       ///< [T, HV]; null: 1
  float* const* states;    ///< [B] -> [lists, HV, K, V]
};

/// From delta_chunk_intra to delta_chunk_scan. KD: key_dim rounded up to the kernel's; rows: [HV, windows * blocks,
/// 16].
struct ChunkTiles {
  std::uint16_t* erase;   ///< [rows, KD] bf16: -e, decayed from the chunk's start
  std::uint16_t* query;   ///< [rows, KD]: scale q, decayed from the start
  std::uint16_t* key;     ///< [rows, KD]: k, decayed to the end
  std::uint16_t* solve;   ///< [rows, 64]: inverse of the unit lower triangle
  std::uint16_t* attend;  ///< [rows, 64]: scale <q_i, k_j> decay, j <= i
  float* factors;         ///< [HV, windows * lists, KD + 64]: decay of the chunk, then b
};

struct DeltaChunkArgs {
  const std::int32_t* offsets;
  std::int32_t sequence_count, key_heads, value_heads, key_dim, value_dim;
  float scale;
  ChunkDecay decay;
  ChunkSide routed, shared;  ///< the delta rules have one routed list
  std::int32_t routed_lists, list_count;
  ConstRows v, erase, write;  ///< data null: none
  Rows out, residual;         ///< residual.data null: not wanted
  float* list_out;            ///< SSE: [windows * blocks * 16, HV, V] in place of out
  std::int32_t checkpoint_chunks;
  float* const* checkpoints;
  ChunkLists lists;  ///< members null: every list has all tokens
  ChunkTiles tiles;
  std::int32_t blocks_per_window;  ///< a multiple of 4
  std::int32_t first_window, window_count,
      first_sequence;                                   ///< of this segment; the first sequence that has a part in it
  bool has_key_words, has_value_pieces, has_out_words;  ///< rows aligned for loads of 4 and 16, stores of 4 bytes
};

__device__ inline int first_window_of(const DeltaChunkArgs& a, int sequence) {
  return a.offsets[sequence] / kChunkTokens + sequence;
}

/// The sequence that owns a window slot.
__device__ inline int sequence_of_window(const DeltaChunkArgs& a, int window) {
  int low = a.first_sequence, high = a.sequence_count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first_window_of(a, middle) <= window) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// A list's part of a window of the segment.
struct ChunkPlace {
  int first;  ///< token, or place among the window's members
  int count;  ///< 0 to 64
  int block;  ///< of the segment's blocks
  int window;
};

__device__ inline bool is_listed(const DeltaChunkArgs& a, int list) { return a.lists.members && list < a.routed_lists; }

/// `window` counts from the segment's first; `sequence` owns it.
__device__ inline ChunkPlace chunk_place(const DeltaChunkArgs& a, int window, int list, int sequence) {
  ChunkPlace place{0, 0, window * a.blocks_per_window, window};
  if (a.lists.members) place.block += a.lists.block[window * (a.routed_lists + 1) + list];
  if (is_listed(a, list)) {
    const std::int32_t* first = a.lists.first + window * (a.routed_lists + 1) + list;
    place.first = first[0];
    place.count = first[1] - first[0];
    return place;
  }
  place.first = a.offsets[sequence] + (a.first_window + window - first_window_of(a, sequence)) * kChunkTokens;
  const int left = a.offsets[sequence + 1] - place.first;
  place.count = left < 0 ? 0 : left < kChunkTokens ? left : kChunkTokens;
  return place;
}

/// Block s of a quad.
__device__ inline ChunkBlock chunk_block(const DeltaChunkArgs& a, int window, int quad, int s) {
  if (a.lists.members) return a.lists.blocks[window * a.blocks_per_window + quad * kChunkBlocks + s];
  const ChunkPlace place = chunk_place(a, window, 0, sequence_of_window(a, a.first_window + window));
  return {0, 0, place.first, place.count};
}

/// Row i of a chunk: its token and weights.
__device__ inline ChunkMember chunk_member(const DeltaChunkArgs& a, const ChunkPlace& place, int list, int i) {
  if (!is_listed(a, list)) return {place.first + i, 1.0f, 1.0f, 1.0f};
  return a.lists.members[static_cast<std::int64_t>(place.window) * a.lists.member_capacity + place.first + i];
}

/// First row of a chunk of head h in the tiles.
__device__ inline std::int64_t tile_row(const DeltaChunkArgs& a, const ChunkPlace& place, int h) {
  return (static_cast<std::int64_t>(h) * a.window_count * a.blocks_per_window + place.block) * kBlockTokens;
}
__device__ inline float* chunk_factors(const DeltaChunkArgs& a, int window, int list, int h, int key_width) {
  return a.tiles.factors +
         ((static_cast<std::int64_t>(h) * a.window_count + window) * a.list_count + list) * (key_width + kChunkTokens);
}

}  // namespace cairn::gpu
