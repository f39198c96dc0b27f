// sse_lists: before the chunks of a segment, each window's tokens by partition; after them, the sum of their outputs.
//   A window has up to 64 tokens: partition p's list are those that chose it, in time order. Lists of more than 32
//   tokens take four blocks of 16 rows, of more than 16 two, and the longest come first, so that each begins at a
//   multiple of what it takes. Sums run over the k choices in their order, then the shared partition: the same for any
//   batch.
//   Traffic   of the sum: (k + 1) HV 4 bytes in and HV 2 out a token
//   Measured  the whole prefill (H200, GLA, 4 partitions, top 1, shared, 16 heads of 128 x 128), us a layer: 32K tokens
//             2,893 to 2,946, 128K 11,757; before, with a block of delta_chunk_intra for each list and one scan for all
//             rules, 4,239 and 17,044. A segment of 8K: route 4, lists 12, intra 313, sum 46, the rest gla_chunk_scan
#pragma once

#include "backends/gpu/kernels/delta_chunk_plan.cuh"

namespace cairn::gpu {

inline constexpr int kMaxListedPartitions = 64, kListThreads = 128, kSumThreads = 128, kSumTokens = 16;

struct SseListArgs {
  DeltaChunkArgs chunks;
  const std::int32_t* chosen;  ///< [T, k]
  const float* weight;         ///< [T, k]
  ChunkMember* members;        ///< as chunks.lists, to be written
  std::int32_t *first, *block;
  ChunkBlock* blocks;
  std::int32_t* row;  ///< [windows * 64, k]: of the choice's output in list_out
  std::int32_t top_k;
  bool has_shared, gate_write, gate_read, weighs_erase;  ///< weighs_erase: the key is e k in both places (kGdn)
};

/// Tokens [first, first + count) of a window.
struct WindowTokens {
  int first, count;
};
__device__ inline WindowTokens window_tokens(const DeltaChunkArgs& a, int window) {
  const int sequence = sequence_of_window(a, a.first_window + window);
  const int first = a.offsets[sequence] + (a.first_window + window - first_window_of(a, sequence)) * kChunkTokens;
  const int left = a.offsets[sequence + 1] - first;
  return {first, left < 0 ? 0 : left < kChunkTokens ? left : kChunkTokens};
}

/// Blocks that a list of `count` tokens takes.
__device__ inline int list_blocks(int count) { return count == 0 ? 0 : count <= 16 ? 1 : count <= 32 ? 2 : 4; }

/// Grid: windows; dynamic shared memory 64 k integers.
__global__ void sse_list_kernel(SseListArgs a) {
  __shared__ int first[kMaxListedPartitions + 1], block[kMaxListedPartitions + 1], count[kMaxListedPartitions];
  auto* const chosen = reinterpret_cast<std::int32_t*>(dynamic_shared());
  const int window = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x),
            lists = a.chunks.routed_lists;
  const WindowTokens tokens = window_tokens(a.chunks, window);
  const int choices = tokens.count * a.top_k;
  for (int i = thread; i < choices; i += kListThreads)
    chosen[i] = a.chosen[static_cast<std::int64_t>(tokens.first) * a.top_k + i];
  __syncthreads();
  if (thread < lists) {
    int found = 0;
    for (int i = 0; i < choices; ++i) found += chosen[i] == thread;
    count[thread] = found;
  }
  __syncthreads();
  if (thread == 0) {
    int members = 0, blocks = 0;
    for (int p = 0; p < lists; ++p) first[p] = members, block[p] = 0, members += count[p];
    first[lists] = members;
    for (int size = kChunkBlocks; size > 0; size /= 2) {
      for (int p = 0; p < lists; ++p) {
        if (list_blocks(count[p]) == size) block[p] = blocks, blocks += size;
      }
    }
    block[lists] = a.chunks.lists.routed_quads * kChunkBlocks;
  }
  __syncthreads();
  for (int p = thread; p <= lists; p += kListThreads) {
    a.first[window * (lists + 1) + p] = first[p];
    a.block[window * (lists + 1) + p] = block[p];
  }
  ChunkBlock* const of_window = a.blocks + static_cast<std::int64_t>(window) * a.chunks.blocks_per_window;
  for (int i = thread; i < a.chunks.blocks_per_window; i += kListThreads) {
    ChunkBlock of_block{-1, i % kChunkBlocks, 0, 0};
    for (int p = 0; p < lists; ++p) {
      if (count[p] > 0 && block[p] <= i && i < block[p] + list_blocks(count[p]))
        of_block = {p, block[p] % kChunkBlocks, first[p], count[p]};
    }
    if (i >= block[lists]) of_block = {lists, 0, tokens.first, tokens.count};
    of_window[i] = of_block;
  }
  if (thread >= lists) return;
  int found = 0;
  for (int i = 0; i < choices; ++i) {
    if (chosen[i] != thread) continue;
    const int t = tokens.first + i / a.top_k;
    const float weight = a.weight[static_cast<std::int64_t>(tokens.first) * a.top_k + i];
    const float write = a.gate_write ? weight : 1.0f;
    a.members[static_cast<std::int64_t>(window) * a.chunks.lists.member_capacity + first[thread] + found] = {
        t, a.weighs_erase ? write : 1.0f, write, a.gate_read ? weight : 1.0f};
    a.row[static_cast<std::int64_t>(window) * kChunkTokens * a.top_k + i] =
        (window * a.chunks.blocks_per_window + block[thread]) * kBlockTokens + found;
    ++found;
  }
}

/// Grid (ceil(HV V / (4 kSumThreads)), windows, 64 / kSumTokens): a thread sums 4 columns.
__global__ void sse_sum_kernel(SseListArgs a) {
  const int window = static_cast<int>(blockIdx.y), width = a.chunks.value_heads * a.chunks.value_dim;
  const int column = (static_cast<int>(blockIdx.x) * kSumThreads + static_cast<int>(threadIdx.x)) * 4;
  const WindowTokens tokens = window_tokens(a.chunks, window);
  if (column >= width) return;
  const int begin = static_cast<int>(blockIdx.z) * kSumTokens;
  const int end = begin + kSumTokens < tokens.count ? begin + kSumTokens : tokens.count;
  const int shared_row =
      (window * a.chunks.blocks_per_window + a.block[window * (a.chunks.routed_lists + 1) + a.chunks.routed_lists]) *
      kBlockTokens;
  const bool is_whole = width % 4 == 0;
  const auto add = [&](float(&sum)[4], int row) {
    const float* from = a.chunks.list_out + static_cast<std::int64_t>(row) * width + column;
    float x[4] = {};
    if (is_whole) {
      load_four(from, x);
    } else {
      for (int c = 0; c < 4 && column + c < width; ++c) x[c] = from[c];
    }
    for (int c = 0; c < 4; ++c) sum[c] += x[c];
  };
#pragma unroll 4
  for (int i = begin; i < end; ++i) {
    float sum[4] = {};
    for (int k = 0; k < a.top_k; ++k)
      add(sum, a.row[(static_cast<std::int64_t>(window) * kChunkTokens + i) * a.top_k + k]);
    if (a.has_shared) add(sum, shared_row + i);
    Bf16* to = row_of<Bf16>(a.chunks.out, tokens.first + i) + column;
    if (is_whole && a.chunks.has_out_words) {
      reinterpret_cast<std::uint32_t*>(to)[0] = pack_bf16(sum[0], sum[1]);
      reinterpret_cast<std::uint32_t*>(to)[1] = pack_bf16(sum[2], sum[3]);
    } else {
      for (int c = 0; c < 4 && column + c < width; ++c) store_element(to + c, sum[c]);
    }
  }
}

}  // namespace cairn::gpu
