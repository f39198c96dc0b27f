// Attention of a tile of query rows over one block of 64 positions, with the online softmax.
//   Shapes    queries [R, K], keys [64] -> [K], values [64] -> [V], sums [R, V]; f32
//   Traffic   keys and values once for four rows; scores and weights stay in the L1 cache
//   Numerics  f32; a row's sums run over positions in order and do not depend on the other rows of its tile
#include "backends/cpu/attention_kernels.h"
#include "backends/cpu/lane_loops.inc.h"

namespace cairn::cpu::CAIRN_ISA {
namespace {

constexpr int kValueVectors = kLanes == 16 ? 4 : 2;

/// scores [kRows, kAttentionBlock]: queries times keys [p, p + kKeys).
template <int kRows, int kKeys>
inline void score_keys(const float* const* queries, const float* const* keys, std::int32_t key_dim, float* scores) {
  Lanes total[kRows][4];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < 4; ++c) total[r][c] = broadcast(0.0f);
  }
  for_lanes(key_dim, [&](std::int32_t k, int n) {
    Lanes key[kKeys];
    for (int c = 0; c < kKeys; ++c) key[c] = read(keys[c] + k, n);
    for (int r = 0; r < kRows; ++r) {
      const Lanes q = read(queries[r] + k, n);
      for (int c = 0; c < kKeys; ++c) total[r][c] = fma(q, key[c], total[r][c]);
    }
  });
  if constexpr (kKeys == 4 && kRows == 4) {
    sum16(total, scores, kAttentionBlock);
  } else if constexpr (kKeys == 4) {
    for (int r = 0; r < kRows; ++r)
      sum4(total[r][0], total[r][1], total[r][2], total[r][3], scores + r * kAttentionBlock);
  } else {
    for (int r = 0; r < kRows; ++r) scores[r * kAttentionBlock] = sum(total[r][0]);
  }
}

template <int kRows>
void score_block(const float* const* queries, const AttentionBlock& block, std::int32_t key_dim, float* scores) {
  std::int32_t p = 0;
  for (; p + 4 <= block.count; p += 4) score_keys<kRows, 4>(queries, block.keys + p, key_dim, scores + p);
  for (; p < block.count; ++p) score_keys<kRows, 1>(queries, block.keys + p, key_dim, scores + p);
}

/// kRows rows, kVectors vectors of their sums: += weights times values, in order.
template <int kRows, int kVectors>
inline void weigh_columns(const float* weights, std::int64_t weight_stride, const float* const* values,
                          std::int32_t count, float* sums, std::int64_t sum_stride, std::int32_t column, int last) {
  Lanes total[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) total[r][v] = read(sums + r * sum_stride + column + v * kLanes, last);
  }
  for (std::int32_t p = 0; p < count; ++p) {
    Lanes value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = read(values[p] + column + v * kLanes, last);
    for (int r = 0; r < kRows; ++r) {
      const Lanes weight = broadcast(weights[r * weight_stride + p]);
      for (int v = 0; v < kVectors; ++v) total[r][v] = fma(weight, value[v], total[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) write(sums + r * sum_stride + column + v * kLanes, last, total[r][v]);
  }
}

template <int kRows>
void weigh_rows(const float* weights, std::int64_t weight_stride, const float* const* values, std::int32_t count,
                float* sums, std::int64_t sum_stride, std::int32_t width) {
  std::int32_t column = 0;
  for (; column + kValueVectors * kLanes <= width; column += kValueVectors * kLanes) {
    weigh_columns<kRows, kValueVectors>(weights, weight_stride, values, count, sums, sum_stride, column, kLanes);
  }
  for (; column < width; column += kLanes) {
    const int last = width - column < kLanes ? width - column : kLanes;
    weigh_columns<kRows, 1>(weights, weight_stride, values, count, sums, sum_stride, column, last);
  }
}

void weigh(std::int32_t rows, const float* weights, std::int64_t weight_stride, const float* const* values,
           std::int32_t count, float* sums, std::int64_t sum_stride, std::int32_t width) {
  std::int32_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    weigh_rows<4>(weights + r * weight_stride, weight_stride, values, count, sums + r * sum_stride, sum_stride, width);
  }
  for (; r < rows; ++r) {
    weigh_rows<1>(weights + r * weight_stride, weight_stride, values, count, sums + r * sum_stride, sum_stride, width);
  }
}

/// Positions of the block that a row sees: [begin, end), relative to the block.
struct Seen {
  std::int32_t begin, end;
};

inline Seen seen_in(const AttentionTile& tile, std::int32_t row, const AttentionBlock& block) {
  const std::int64_t first = tile.first_seen[row] - block.begin, end = tile.end_seen[row] - block.begin;
  const std::int32_t begin = first < 0 ? 0 : first > block.count ? block.count : static_cast<std::int32_t>(first);
  const std::int32_t stop = end < begin ? begin : end > block.count ? block.count : static_cast<std::int32_t>(end);
  return {begin, stop};
}

/// Scores of one row become weights (0 where not seen); its earlier sums are scaled to the new largest score.
void soften_row(AttentionTile& tile, std::int32_t row, Seen seen, float* scores) {
  if (seen.begin == seen.end) return;
  float largest = tile.largest[row];
  for (std::int32_t p = 0; p < kAttentionBlock; ++p) {
    if (p < seen.begin || p >= seen.end) {
      scores[p] = -__builtin_inff();
      continue;
    }
    scores[p] *= tile.scale;
    largest = scores[p] > largest ? scores[p] : largest;
  }
  float before[kLanes];
  store(before, exp(broadcast(tile.largest[row] - largest)));
  Lanes total = broadcast(0.0f);
  for (std::int32_t p = 0; p < kAttentionBlock; p += kLanes) {
    const Lanes weight = exp(load(scores + p) - broadcast(largest));
    store(scores + p, weight);
    total = total + weight;
  }
  tile.total[row] = tile.total[row] * before[0] + sum(total);
  if (before[0] != 1) {
    float* sums = tile.sums + static_cast<std::int64_t>(row) * tile.value_dim;
    for_lanes(tile.value_dim,
              [&](std::int32_t i, int n) { write(sums + i, n, read(sums + i, n) * broadcast(before[0])); });
  }
  tile.largest[row] = largest;
}

/// kRows rows from `row`: positions that all of them see together, the others row by row; each row's in order.
template <int kRows>
void weigh_block(AttentionTile& tile, std::int32_t row, const Seen* seen, const AttentionBlock& block,
                 const float* weights) {
  std::int32_t begin = 0, end = kAttentionBlock;
  for (int r = 0; r < kRows; ++r) {
    begin = seen[r].begin > begin ? seen[r].begin : begin;
    end = seen[r].end < end ? seen[r].end : end;
  }
  if (begin >= end) begin = end = kAttentionBlock;
  float* sums = tile.sums + static_cast<std::int64_t>(row) * tile.value_dim;
  const auto alone = [&](int r, std::int32_t from, std::int32_t to) {
    if (from >= to) return;
    weigh_rows<1>(weights + r * kAttentionBlock + from, 0, block.values + from, to - from, sums + r * tile.value_dim, 0,
                  tile.value_dim);
  };
  for (int r = 0; r < kRows; ++r) alone(r, seen[r].begin, seen[r].end < begin ? seen[r].end : begin);
  if (begin < end) {
    weigh_rows<kRows>(weights + begin, kAttentionBlock, block.values + begin, end - begin, sums, tile.value_dim,
                      tile.value_dim);
  }
  for (int r = 0; r < kRows; ++r) alone(r, seen[r].begin > end ? seen[r].begin : end, seen[r].end);
}

template <int kRows>
void attend_rows(AttentionTile& tile, std::int32_t row, const AttentionBlock& block) {
  alignas(64) float scores[kRows * kAttentionBlock];
  Seen seen[kRows];
  bool any = false;
  for (int r = 0; r < kRows; ++r) {
    seen[r] = seen_in(tile, row + r, block);
    any = any || seen[r].begin < seen[r].end;
  }
  if (!any) return;
  score_block<kRows>(tile.queries + row, block, tile.key_dim, scores);
  for (int r = 0; r < kRows; ++r) soften_row(tile, row + r, seen[r], scores + r * kAttentionBlock);
  weigh_block<kRows>(tile, row, seen, block, scores);
}

void attend(AttentionTile& tile, const AttentionBlock& block) {
  std::int32_t row = 0;
  for (; row + 4 <= tile.row_count; row += 4) attend_rows<4>(tile, row, block);
  for (; row < tile.row_count; ++row) attend_rows<1>(tile, row, block);
}

void finish(const AttentionTile& tile, std::int32_t row, float* out) {
  const float* sums = tile.sums + static_cast<std::int64_t>(row) * tile.value_dim;
  const Lanes total = broadcast(tile.total[row]);
  for_lanes(tile.value_dim, [&](std::int32_t i, int n) { write(out + i, n, read(sums + i, n) / total); });
}

}  // namespace

const AttentionKernels kAttentionKernels = {attend, finish, weigh};

}  // namespace cairn::cpu::CAIRN_ISA
