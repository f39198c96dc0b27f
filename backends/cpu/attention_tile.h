// Runs a tile of query rows over all positions that its rows see, block by block.
#pragma once

#include <algorithm>
#include <cmath>

#include "backends/cpu/attention_kernels.h"

namespace cairn::cpu {

inline void start_tile(AttentionTile& tile) {
  std::fill_n(tile.largest, tile.row_count, -INFINITY);
  std::fill_n(tile.total, tile.row_count, 0.0f);
  std::fill_n(tile.sums, static_cast<std::size_t>(tile.row_count) * static_cast<std::size_t>(tile.value_dim), 0.0f);
}

/// place(position, &key, &value) tells where a position's key and value lie.
template <class Place>
void run_tile(const AttentionKernels& kernels, AttentionTile& tile, const Place& place) {
  const std::int64_t first = *std::min_element(tile.first_seen, tile.first_seen + tile.row_count);
  const std::int64_t end = *std::max_element(tile.end_seen, tile.end_seen + tile.row_count);
  start_tile(tile);
  AttentionBlock block;
  for (block.begin = first / kAttentionBlock * kAttentionBlock; block.begin < end; block.begin += kAttentionBlock) {
    // Positions of the block that no row sees may have no memory any more: they borrow a neighbour's, and weigh
    // nothing.
    block.count = static_cast<std::int32_t>(std::min<std::int64_t>(kAttentionBlock, end - block.begin));
    for (std::int32_t p = 0; p < block.count; ++p) {
      place(std::max(block.begin + p, first), &block.keys[p], &block.values[p]);
    }
    kernels.attend(tile, block);
  }
}

}  // namespace cairn::cpu
