// What the stages of a SparseGDN prefill share: one sequence's sizes, its rows, and the scratch between stages.
#pragma once

#include "backends/gpu/kernels/sparse_gdn_selection.cuh"

namespace cairn::gpu {

inline constexpr int kBlock = 16, kBlockCount = 7;

/// Between the stages; C chunks, n groups, R = ceil(C / 2) pairs of chunks.
struct SparseGdnScratch : SparseSelection {
  float* inverse;     ///< [C, HV, 7, 16, 16], or [C, HV, 64, 64] with the full inverse
  float* cumulative;  ///< [C, HV, 64] inclusive log2-decays
  float* u;           ///< [T, HV, V]: U, then U' where events were
  float* output;      ///< [T, HV, V]: an odd chunk's output between its two sources
  float* initial;     ///< [HV, K, V]: the state before the call
  float* snapshots;   ///< [HV, R, K, V]: only the first snapshot_count of a head are used
  std::size_t size_bytes;
};

/// One sequence on its way through the stages.
struct SparseGdnStage {
  SparseGdnArgs call;
  SparseGdnScratch scratch;
  int sequence, first_token, token_count, chunk_count;

  __host__ __device__ int groups() const { return call.delta.key_heads; }
  __host__ __device__ int per_group() const { return call.delta.value_heads / call.delta.key_heads; }
  __host__ __device__ int pairs() const { return (chunk_count + 1) / 2; }
  __host__ __device__ std::int64_t inverse_size() const {
    return call.full_inverse ? kChunk * kChunk : kBlockCount * kBlock * kBlock;
  }
};

inline SparseGdnScratch carve_sparse_gdn(const SparseGdnArgs& args, std::int32_t token_count, void* scratch) {
  const DeltaRuleArgs& d = args.delta;
  const auto chunks = static_cast<std::size_t>((token_count + kChunk - 1) / kChunk), pairs = (chunks + 1) / 2;
  const auto heads = static_cast<std::size_t>(d.value_heads);
  const auto matrix = static_cast<std::size_t>(d.key_dim) * static_cast<std::size_t>(d.value_dim);
  ScratchLayout layout(scratch);
  SparseGdnScratch s{};
  static_cast<SparseSelection&>(s) = carve_sparse_selection(d.key_heads, d.value_heads, 1, chunks, layout);
  s.inverse =
      layout.take<float>(chunks * heads * (args.full_inverse ? kChunk * kChunk : kBlockCount * kBlock * kBlock));
  s.cumulative = layout.take<float>(chunks * heads * kChunk);
  s.u = layout.take<float>(static_cast<std::size_t>(token_count) * heads * static_cast<std::size_t>(d.value_dim));
  s.output = layout.take<float>(static_cast<std::size_t>(token_count) * heads * static_cast<std::size_t>(d.value_dim));
  s.initial = layout.take<float>(heads * matrix);
  s.snapshots = layout.take<float>(heads * pairs * matrix);
  s.size_bytes = layout.size_bytes();
  return s;
}

/// Element (i, j) of the kept part of a chunk's inverse; 0 where a block was dropped.
__device__ inline float inverse_at(const SparseGdnStage& stage, const float* inverse, int i, int j) {
  if (stage.call.full_inverse) return inverse[i * kChunk + j];
  const int row = i / kBlock, column = j / kBlock;
  if (column != row && column != row - 1) return 0;
  const int block = row == 0 ? 0 : 2 * row - (column == row ? 0 : 1);  // order 00 10 11 21 22 32 33
  return inverse[(block * kBlock + i % kBlock) * kBlock + j % kBlock];
}

/// First column of row i that the inverse keeps.
__device__ inline int first_kept(const SparseGdnStage& stage, int i) {
  return stage.call.full_inverse || i < 2 * kBlock ? 0 : (i / kBlock - 1) * kBlock;
}

/// Keys and queries go through shared memory in slices of this many columns, rows a bank apart: the stages then take
/// less than 64 KB at any K, which is all that some chips have.
inline constexpr int kKeySlice = 32, kSliceStride = kKeySlice + 1, kSliceFloats = kChunk * kSliceStride;

/// Calls visit(first column, columns) for the slices of K, in order.
template <class Visit>
__device__ inline void for_each_slice(int key_dim, const Visit& visit) {
  for (int first = 0; first < key_dim; first += kKeySlice)
    visit(first, key_dim - first < kKeySlice ? key_dim - first : kKeySlice);
}

/// Columns [first, first + count) of chunk c's rows of one head, to [64, kSliceStride]; zeros past the sequence's end.
__device__ inline void load_slice(const SparseGdnStage& stage, const ConstRows& rows, int c, int head, int first,
                                  int count, float* to) {
  const std::int64_t column = static_cast<std::int64_t>(head) * stage.call.delta.key_dim + first;
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kKeySlice; i += static_cast<int>(blockDim.x)) {
    const int row = i / kKeySlice, k = i % kKeySlice, t = c * kChunk + row;
    if (k >= count) continue;
    to[row * kSliceStride + k] =
        t < stage.token_count ? load(rows, stage.call.delta.dtype, stage.first_token + t, column + k) : 0.0f;
  }
}

__device__ inline float beta_at(const SparseGdnStage& stage, int t, int head) {
  return t < stage.token_count
             ? stage.call.delta
                   .beta[static_cast<std::int64_t>(stage.first_token + t) * stage.call.delta.value_heads + head]
             : 0.0f;
}

}  // namespace cairn::gpu
