// What surrounds the two halves of gdn_heads: the segments of a block, its loads, scores, factors and stores.
#pragma once

#include "backends/cuda/gdn_scan_sm90.cuh"
#include "backends/cuda/gdn_scores_sm90.cuh"

namespace cairn::gpu::sm90 {

/// What the copies bring for a chunk.
struct HeadsStage {
  unsigned char kq[2][2][kTileBytes];  ///< 64 columns of K and of Q, then the other 64: one operand of 128 rows
  unsigned char v[2][kTileBytes];
  LowerOperand inverse;
};

inline constexpr int kHeadsStages = 3;

struct HeadsShared {
  HeadsStage stages[kHeadsStages];
  unsigned char scores[2][kTileBytes];                     ///< A' of two chunks; zero above the diagonal blocks
  unsigned char out[2][2][kTileBytes];                     ///< of two chunks, two halves
  float g[kHeadsStages][kChunk], h[kHeadsStages][kChunk];  ///< g as gdn_intra wrote it
  ChunkFactors factors[kHeadsStages];
  std::uint64_t gates[kHeadsStages], full[kHeadsStages], empty[kHeadsStages];
  std::uint64_t scores_ready[2], chunk_done[2], out_free[2];
  int block;  ///< this one's number
};
static_assert(sizeof(HeadsStage) % 1024 == 0, "tiles are aligned");
static_assert(sizeof(HeadsShared) <= 232448, "one block for each multiprocessor");

/// Chunks [from, to) of a head of a sequence, which one block walks without a break.
struct HeadsSegment {
  ScanPlace place;  ///< of half 0
  int from, to;
};

/// Value heads of a key head: so many blocks walk them side by side, so that what they share is in L2.
__device__ __forceinline__ int heads_side_by_side(const GdnPrefillArgs& a) { return a.value_heads / a.key_heads; }

/// Calls visit(segment) for what a block does, in order. Blocks have their numbers in the order in which they began.
/// The key heads of all sequences lie one behind the other on a line of chunks, which is cut into windows of one
/// length; later blocks have earlier windows. A head that goes over the end of a window is begun by the block of the
/// next window, as the first thing that it does, and finished by the block of this one, as its last. A window is no
/// shorter than a head, so the state is there by then, and who leaves one waits for nobody. So blocks are equally busy,
/// however many heads there are.
template <class Visit>
__device__ __forceinline__ void for_each_segment(const GdnPrefillArgs& a, int block, const Visit& visit) {
  const int side = heads_side_by_side(a), total = a.chunk_begin[a.sequence_count] * a.key_heads;
  int at = (gridDim.x - 1 - block) / side * a.heads_window;
  const int end = min(at + a.heads_window, total);
  while (at < end) {
    const int b = find_sequence(a.chunk_begin, a.sequence_count, at / a.key_heads);
    const int begin = a.chunk_begin[b], count = a.chunk_begin[b + 1] - begin, along = at - begin * a.key_heads;
    const int key_head = along / count, skipped = along - key_head * count;
    const int length = min(count - skipped, end - at), from = begin + (skipped > 0 ? 0 : count - length);
    const int head = key_head * side + block % side;
    visit(HeadsSegment{
        {b, head, key_head, 0, begin, begin + count, a.token_begin[b], a.token_begin[b + 1]}, from, from + length});
    at += length;
  }
}
/// Set once the half of the first head of a block has left its state.
__device__ __forceinline__ int* state_left(const GdnPrefillArgs& a, int block, int half) {
  return a.work.ready + 2 * block + half;
}

/// Walks the stages of a ring.
template <int kCount>
struct RingPlace {
  int index = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++index == kCount) index = 0, parity ^= 1;
  }
};

/// Operands of a stage.
struct HeadsOperands {
  std::uint32_t place;  ///< in units of 16 bytes

  __device__ __forceinline__ explicit HeadsOperands(const HeadsStage& stage) : place(shared_address(&stage) >> 4) {}
  /// Columns 16 i to 16 i + 15 of K and, 64 rows on, of Q.
  __device__ __forceinline__ std::uint64_t keys(int i) const {
    return operand_at(place + ((1u << 16) + (i / 4 * 2 * kTileBytes + i % 4 * 32) / 16), kRowsOf128);
  }
  /// Of Q alone.
  __device__ __forceinline__ std::uint64_t queries(int i) const {
    return operand_at(place + ((1u << 16) + ((i / 4 * 2 + 1) * kTileBytes + i % 4 * 32) / 16), kRowsOf128);
  }
  /// Tokens 16 i to 16 i + 15 of K.
  __device__ __forceinline__ std::uint64_t transposed_keys(int i) const {
    return operand_at(place + ((2 * kTileBytes / 16 << 16) + 2048 * i / 16), kRowsOf128);
  }
  /// T', for lower_columns and upper_columns.
  __device__ __forceinline__ std::uint32_t inverse() const { return place + offsetof(HeadsStage, inverse) / 16; }
};
/// Columns 16 i to 16 i + 15 of a tile.
__device__ __forceinline__ std::uint64_t tile_columns(const unsigned char* tile, int i) {
  return operand_at((shared_address(tile) >> 4) + ((1u << 16) + 2 * i), kRowsOf128);
}

/// One thread: loads a chunk.
__device__ __forceinline__ void load_stage(const GdnPrefillArgs& a, const ScanPlace& place, HeadsShared& shared,
                                           int chunk, int stage) {
  HeadsStage& to = shared.stages[stage];
  const std::uint32_t full = shared_address(&shared.full[stage]), gates = shared_address(&shared.gates[stage]);
  const int row = place.rows(chunk).first;
  const std::int64_t index = work_index(a, place, chunk);
  barrier_expect(gates, sizeof(float[kChunk]));
  load_bytes(shared_address(shared.g[stage]), a.work.factors + index * kChunk, sizeof(float[kChunk]), gates);
  barrier_expect(full, sizeof(HeadsStage) - kLowerOperandZeros);
#pragma unroll
  for (int i = 0; i < 2; ++i) load_tile(shared_address(to.kq[i][0]), &a.k, place.key_head * kDim + 64 * i, row, full);
  load_lower(to.inverse, a.work.inverses + index, full);
#pragma unroll
  for (int i = 0; i < 2; ++i) load_tile(shared_address(to.v[i]), &a.v, place.head * kDim + 64 * i, row, full);
#pragma unroll
  for (int i = 0; i < 2; ++i) load_tile(shared_address(to.kq[i][1]), &a.q, place.key_head * kDim + 64 * i, row, full);
}

/// One warpgroup: A' of every chunk. Rows past the end of a sequence may be cleared meanwhile: they reach columns of A'
/// that the mask or a zero block hides, and rows that nobody stores.
__device__ __forceinline__ void run_scores(const GdnPrefillArgs& a, HeadsShared& shared, int block, int thread) {
  const int warp = uniform_warp() % 4, lane = thread % 32;
  RingPlace<kHeadsStages> at;
  RingPlace<2> to;
  std::uint32_t mask[4];
  diagonal_mask(mask, lane);
#pragma unroll
  for (int column = 1; column < 4; ++column) {
    if (column <= warp) continue;
    const std::uint32_t zeros[4] = {};
    for (int i = 0; i < 2; ++i)
      store_matrices(shared_address(shared.scores[i]) + fragment_address(warp, lane, 2 * column), zeros);
  }
  for_each_segment(a, block, [&](const HeadsSegment& segment) {
#pragma unroll 1
    for (int chunk = segment.from; chunk < segment.to; ++chunk, at.advance(), to.advance()) {
      const std::uint32_t tile = shared_address(shared.scores[to.index]) + fragment_address(warp, lane, 0);
      float qk[32];
      barrier_wait(shared_address(&shared.full[at.index]), at.parity);
      products_begin();
      const HeadsOperands operands(shared.stages[at.index]);
#pragma unroll
      for (int i = 0; i < 8; ++i) multiply_64x64(qk, operands.queries(i), operands.keys(i), i > 0);
      products_commit();
      products_wait<0>();
      pin(qk);
      // Both halves have done with the chunk before the last one.
      barrier_wait(shared_address(&shared.chunk_done[to.index]), to.parity ^ 1);
      store_scores(qk, shared.g[at.index], shared.h[at.index], a.log2_scale, mask, warp, lane,
                   [&](int column) { return tile ^ (column << 5); });
      fence_engines();
      warp_arrive(shared_address(&shared.scores_ready[to.index]), lane);
      warp_arrive(shared_address(&shared.empty[at.index]), lane);
    }
  });
}

/// One thread: loads every chunk.
__device__ __forceinline__ void load_chunks(const GdnPrefillArgs& a, HeadsShared& shared, int block) {
  RingPlace<kHeadsStages> at;
  for_each_segment(a, block, [&](const HeadsSegment& segment) {
#pragma unroll 1
    for (int chunk = segment.from; chunk < segment.to; ++chunk, at.advance()) {
      barrier_wait(shared_address(&shared.empty[at.index]), at.parity ^ 1);  // the first round waits for nothing
      load_stage(a, segment.place, shared, chunk, at.index);
    }
  });
}

/// A chunk's factors from g; one warp.
__device__ __forceinline__ void complete_factors(const float* g, float* h, ChunkFactors& f, float scale, int lane) {
  const float2 mine = reinterpret_cast<const float2*>(g)[lane];
  const float2 in = make_float2(exp2_fast(mine.x), exp2_fast(mine.y));
  const float gamma = g[kChunk - 1];
  reinterpret_cast<float2*>(h)[lane] = make_float2(frame_of(mine.x, gamma), frame_of(mine.y, gamma));
  reinterpret_cast<float2*>(f.in)[lane] = in;
  reinterpret_cast<float2*>(f.read)[lane] = make_float2(scale * in.x, scale * in.y);
}

/// One warp: the factors of every chunk; its stage is full when they are there as well.
__device__ __forceinline__ void form_factors(const GdnPrefillArgs& a, HeadsShared& shared, int block, int lane) {
  RingPlace<kHeadsStages> at;
  for_each_segment(a, block, [&](const HeadsSegment& segment) {
#pragma unroll 1
    for (int chunk = segment.from; chunk < segment.to; ++chunk, at.advance()) {
      barrier_wait(shared_address(&shared.gates[at.index]), at.parity);
      complete_factors(shared.g[at.index], shared.h[at.index], shared.factors[at.index], a.scale, lane);
      warp_arrive(shared_address(&shared.full[at.index]), lane);
    }
  });
}

/// One thread: stores the outputs of whole chunks.
__device__ __forceinline__ void store_chunks(const GdnPrefillArgs& a, HeadsShared& shared, int block) {
  RingPlace<2> at;
  for_each_segment(a, block, [&](const HeadsSegment& segment) {
#pragma unroll 1
    for (int chunk = segment.from; chunk < segment.to; ++chunk, at.advance()) {
      const ChunkRows rows = segment.place.rows(chunk);
      barrier_wait(shared_address(&shared.chunk_done[at.index]), at.parity);
      if (rows.count == kChunk) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          store_tile(&a.out_tiles, segment.place.head * kDim + 64 * half, rows.first,
                     shared_address(shared.out[at.index][half]));
        stores_commit();
        stores_wait_read<0>();
      }
      barrier_arrive(shared_address(&shared.out_free[at.index]));
    }
  });
  stores_wait<0>();
}

}  // namespace cairn::gpu::sm90
