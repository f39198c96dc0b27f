// delta_chunk_walk: what delta_chunk_scan and gla_chunk_scan share: the chunks that a block walks, its state in registers,
// and the copies of the operands that delta_chunk_intra left (delta_chunk_plan.cuh).
#pragma once

#include "backends/gpu/kernels/delta_chunk_plan.cuh"

namespace cairn::gpu {

inline constexpr int kChunkLoaders = 4, kLoaderLanes = kChunkLoaders * kMatrixLanes;

/// What a block works on.
struct ChunkScan {
  int sequence, list, h, first_column;
  int begin, end;   ///< windows of the segment
  int first_chunk;  ///< of the sequence, at `begin`
  int token_count;  ///< of the sequence
  float* state;     ///< [K, V] of the head
};

__device__ __forceinline__ ChunkScan chunk_scan(const DeltaChunkArgs& a, int columns) {
  ChunkScan scan;
  const int z = static_cast<int>(blockIdx.z);
  const int sequences = static_cast<int>(gridDim.z) / a.list_count;
  scan.sequence = a.first_sequence + z % sequences;
  scan.list = a.list_count - 1 - z / sequences;  // the shared lists are the longest: first
  scan.h = static_cast<int>(blockIdx.y);
  scan.first_column = static_cast<int>(blockIdx.x) * columns;
  scan.token_count = a.offsets[scan.sequence + 1] - a.offsets[scan.sequence];
  const int first = first_window_of(a, scan.sequence) - a.first_window;
  const int end = first + (scan.token_count + kChunkTokens - 1) / kChunkTokens;
  scan.begin = first > 0 ? first : 0;
  scan.end = end < a.window_count ? end : a.window_count;
  scan.first_chunk = scan.begin - first;
  const bool is_routed = scan.list < a.routed_lists;
  const std::int64_t matrix = static_cast<std::int64_t>(a.key_dim) * a.value_dim;
  const std::int64_t head = (is_routed ? scan.list : 0) * static_cast<std::int64_t>(a.value_heads) + scan.h;
  scan.state = (is_routed ? a.routed.states : a.shared.states)[scan.sequence] + head * matrix;
  return scan;
}

/// The windows in which the list has tokens, in order, to shared.place. Returns how many. All threads of the block.
template <class Shared>
__device__ __forceinline__ int find_chunks(const DeltaChunkArgs& a, const ChunkScan& scan, Shared& shared) {
  const int windows = scan.end - scan.begin, thread = static_cast<int>(threadIdx.x),
            threads = static_cast<int>(blockDim.x);
  for (int i = thread; i < windows; i += threads)
    shared.count[i] = chunk_place(a, scan.begin + i, scan.list, scan.sequence).count;
  __syncthreads();
  int found = 0;
  for (int i = 0; i < windows; ++i) {
    if (i % threads == thread && shared.count[i])
      shared.place[found] = chunk_place(a, scan.begin + i, scan.list, scan.sequence);
    found += shared.count[i] != 0;
  }
  __syncthreads();
  return found;
}

/// Copies `rows` (a multiple of 16) of 64 rows of KD elements that lie together, zeros behind if kFills, to rows of
/// KD + 8. Each of kLoaderLanes lanes has a column of 16-byte pieces, so that all its addresses are constants apart.
template <int KD, bool kFills = true>
__device__ __forceinline__ void copy_rows(std::uint16_t (*to)[KD + 8], const std::uint16_t* from, int rows, int lane) {
  constexpr int kPieces = KD / 8, kAtOnce = kLoaderLanes / kPieces;
  const int first = lane / kPieces, piece = lane % kPieces * 8;
  if (first >= kAtOnce) return;
  std::uint16_t* const target = &to[first][piece];
  const std::uint16_t* const source = from + first * KD + piece;
#pragma unroll
  for (int row = 0; row < kChunkTokens; row += kAtOnce) {
    if (kChunkTokens % kAtOnce != 0 && row + first >= kChunkTokens) continue;
    if (!kFills && row >= rows) break;
    const bool is_inside = row + first < rows;
    copy_16_async(target + row * (KD + 8), is_inside ? source + row * KD : from, is_inside);
  }
}
/// The same for the blocks on and below the diagonal of a tile [64, 64].
template <bool kFills = true>
__device__ __forceinline__ void copy_lower_blocks(std::uint16_t (*to)[kChunkStride], const std::uint16_t* from,
                                                  int rows, int lane) {
  constexpr int kAtOnce = kLoaderLanes / 8;
  const int first = lane / 8, piece = lane % 8 * 8;
  std::uint16_t* const target = &to[first][piece];
  const std::uint16_t* const source = from + first * kChunkTokens + piece;
#pragma unroll
  for (int row = 0; row < kChunkTokens; row += kAtOnce) {
    if (!kFills && row >= rows) break;
    if (piece >= (row / kBlockTokens + 1) * kBlockTokens) continue;
    const bool is_inside = row + first < rows;
    copy_16_async(target + row * kChunkStride, is_inside ? source + row * kChunkTokens : from, is_inside);
  }
}
/// The slice's columns of v or w; zeros for rows past `count` (without kFills only up to a multiple of 16) and columns
/// past V.
template <int kWidth, bool kFills = true>
__device__ __forceinline__ void copy_values(const DeltaChunkArgs& a, const ChunkScan& scan, const ChunkPlace& place,
                                            const ConstRows& rows, std::uint16_t (*to)[kWidth + 8], int lane) {
  constexpr int kPieces = kWidth / 8, kAtOnce = kLoaderLanes / kPieces;
  static_assert(kFills || kBlockTokens % kAtOnce == 0);
  const auto* const data = static_cast<const std::uint16_t*>(rows.data);
  const int column = scan.first_column + lane % kPieces * 8;
  std::int64_t token[kChunkTokens / kAtOnce];
#pragma unroll
  for (int i = 0; i < kChunkTokens / kAtOnce; ++i) {
    const int row = i * kAtOnce + lane / kPieces;
    token[i] = row < place.count ? chunk_member(a, place, scan.list, row).token : -1;
  }
#pragma unroll
  for (int i = 0; i < kChunkTokens / kAtOnce; ++i) {
    if (!kFills && i * kAtOnce / kBlockTokens * kBlockTokens >= place.count) break;
    const bool is_inside = token[i] >= 0 && column < a.value_dim;
    const std::uint16_t* from = data;
    if (is_inside) from += token[i] * rows.stride + static_cast<std::int64_t>(scan.h) * a.value_dim + column;
    std::uint16_t* const piece = &to[i * kAtOnce + lane / kPieces][lane % kPieces * 8];
    if (a.has_value_pieces) {
      copy_16_async(piece, from, is_inside);
    } else {
#pragma unroll 1
      for (int j = 0; j < 8; ++j) piece[j] = is_inside && column + j < a.value_dim ? from[j] : 0;
    }
  }
}

/// Sums [16 x 16 n] as left operands, two of 8 columns each.
__device__ __forceinline__ void pack_left(std::uint32_t (&left)[4], const float (&first)[4], const float (&second)[4]) {
  left[0] = pack_bf16(first[0], first[1]), left[1] = pack_bf16(first[2], first[3]);
  left[2] = pack_bf16(second[0], second[1]), left[3] = pack_bf16(second[2], second[3]);
}

/// S^T of one group: value columns first .. first + 15, sums s[j] of key rows 8 j ..
template <int KD>
struct ChainState {
  float s[KD / 8][4];

  /// Calls visit(sum, row of S, column of S) for what lies inside.
  template <class Visit>
  __device__ __forceinline__ void for_each(const DeltaChunkArgs& a, int first, Visit visit) {
    const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes;
#pragma unroll
    for (int j = 0; j < KD / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int k = 8 * j + lane % 4 * 2 + e % 2, v = first + lane / 4 + e / 2 * 8;
        if (k < a.key_dim && v < a.value_dim) visit(s[j][e], static_cast<std::int64_t>(k) * a.value_dim + v);
      }
    }
  }
};

}  // namespace cairn::gpu
