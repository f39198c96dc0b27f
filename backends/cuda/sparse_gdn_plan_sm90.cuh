// What the kernels of the sm_90a SparseGDN prefill share: sizes, arguments, where a chunk lies, their matrix products.
#pragma once

#include "backends/cuda/sm90_instructions.cuh"
#include "backends/gpu/kernels/sparse_gdn_selection.cuh"

namespace cairn::gpu::sm90::sparse {

inline constexpr int kDim = 128, kMaxHeadsPerKey = 4;
inline constexpr int kInverseBlocks = 7, kInverseBytes = kInverseBlocks * 32 * 16;  ///< T' of one chunk and head
inline constexpr int kDecayBytes = kChunk * 4, kSnapshotBytes = 4 * kTileBytes;

/// Intermediate tensors. Chunks of all sequences lie one after another.
struct SparseWork {
  uint4*
      inverse;  ///< [chunk, HV, 7, 32 lanes]: blocks 00 10 11 21 22 32 33 of T' = inverse diag(beta), bf16, each a left
                ///< operand of 16 x 16
  float* decay;  ///< [chunk, HV, 64]: inclusive cumulative log2-decay
  unsigned char*
      snapshots;   ///< [place, heads of a group]: S^T [128 columns x 128 rows] bf16 as 2 x 2 tiles, key halves outside
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

/// Rows of the batch that a chunk covers: tokens [first, first + count), count <= 64.
struct ChunkRows {
  int first, count;
};

__device__ __forceinline__ ChunkRows chunk_rows(const SparsePrefillArgs& a, int sequence, int chunk) {
  const int first = a.select.token_begin[sequence] + (chunk - a.select.chunk_begin[sequence]) * kChunk;
  return {first, min(kChunk, a.select.token_begin[sequence + 1] - first)};
}

/// The b with begin[b] <= i < begin[b + 1].
__device__ __forceinline__ int find_sequence(const int* begin, int count, int i) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (begin[middle] <= i)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/// Address of the 8 x 8 pieces of a warp's 16 rows for store_matrices, at two neighbouring 16-byte columns.
__device__ __forceinline__ std::uint32_t fragment_address(int warp, int lane, int first_piece) {
  return swizzled(16 * warp + lane / 8 % 2 * 8 + lane % 8, first_piece + lane / 16);
}

/// The words of a left operand of columns 16 i to 16 i + 15 from the sums of a product.
template <int kCount>
__device__ __forceinline__ void round_sums(const float (&d)[kCount], int i, std::uint32_t (&words)[4]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) words[n] = pack_bf16(d[8 * i + 2 * n], d[8 * i + 2 * n + 1]);
}

/// Rows from `count` on of `tiles` tiles of 64 rows that lie one after another: a neighbour's numbers must not meet
/// even a
/// zero of ours. 128 threads.
__device__ __forceinline__ void clear_rows(unsigned char* tile, int tiles, int count, int thread) {
  const int pieces = (kChunk - count) * 8;
  for (int i = thread; i < tiles * pieces; i += 128) {
    *reinterpret_cast<uint4*>(tile + i / pieces * kTileBytes + count * 128 + i % pieces * 16) = make_uint4(0, 0, 0, 0);
  }
}

/// Computed here, not between the products that take them.
__device__ __forceinline__ void pin(std::uint32_t (&words)[4]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) asm volatile("" : "+r"(words[n])::"memory");
}
using sm90::pin;

/// d[64 x 128] (+)= a[64 x 16] b[128 x 16]^T, both from shared memory.
__device__ __forceinline__ void multiply_64x128(float (&d)[64], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, "
      "0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " CAIRN_NAMES64 ", %64, %65, add, 1, 1, 0, 0;\n}"
      : CAIRN_D64(d)
      : "l"(a), "l"(b), "r"(add));
}
/// d[64 x 128] (+)= a[64 x 16] b[16 x 128], a from registers, b contiguous along its 128 columns.
__device__ __forceinline__ void multiply_64x128_rows(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b,
                                                     int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %69, "
      "0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " CAIRN_NAMES64
      ", {%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}"
      : CAIRN_D64(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
/// d[64 x 64] (+)= a[16 x 64]^T b[64 x 16]^T, both from shared memory, a contiguous along its 64 columns.
__device__ __forceinline__ void multiply_columns_64x64(float (&d)[32], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %34, "
      "0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " CAIRN_NAMES32 ", %32, %33, add, 1, 1, 1, 0;\n}"
      : CAIRN_D32(d)
      : "l"(a), "l"(b), "r"(add));
}

/// Transposed 8 x 8 matrices: what load_transposed reads.
__device__ __forceinline__ void store_transposed(std::uint32_t address, const std::uint32_t (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m[0]),
               "r"(m[1]), "r"(m[2]), "r"(m[3])
               : "memory");
}

// Copies from shared memory to global memory by the engine, in groups of one thread.
__device__ __forceinline__ void store_tile(const CUtensorMap* map, int column, int row, std::uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column),
               "r"(row), "r"(from)
               : "memory");
}
__device__ __forceinline__ void store_bytes(void* to, std::uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until the shared memory of all groups but the last kPending has been read, or until they are written.
template <int kPending>
__device__ __forceinline__ void stores_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
template <int kPending>
__device__ __forceinline__ void stores_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void publish_count(int* count, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(count), "r"(value) : "memory");
}
__device__ __forceinline__ int published_count(const int* count) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(count) : "memory");
  return value;
}

}  // namespace cairn::gpu::sm90::sparse
