// Softmax attention over one block of positions for a tile of query rows: one table per instruction set.
#pragma once

#include "backends/cpu/cpu_features.h"
#include "backends/interface/op_args.h"

namespace cairn::cpu {

/// Blocks begin at absolute positions that are multiples of this, so that a row's sums are the same however a prompt is
/// split.
constexpr std::int32_t kAttentionBlock = 64;
constexpr std::int32_t kAttentionRows = 16;  ///< of a tile, at most

/// Query rows that share keys and values, and what each has gathered so far (online softmax):
/// out = sums / total, with all weights relative to exp(largest).
struct AttentionTile {
  std::int32_t row_count, key_dim, value_dim;
  float scale;
  const float* queries[kAttentionRows];
  std::int64_t first_seen[kAttentionRows], end_seen[kAttentionRows];  ///< positions [first_seen, end_seen)
  float largest[kAttentionRows], total[kAttentionRows];
  float* sums;  ///< [row_count, value_dim]
};

/// Positions [begin, begin + count) of one block.
struct AttentionBlock {
  std::int64_t begin;
  std::int32_t count;
  const float* keys[kAttentionBlock];
  const float* values[kAttentionBlock];
};

struct AttentionKernels {
  void (*attend)(AttentionTile&, const AttentionBlock&);
  /// out [width] = sums / total of one row.
  void (*finish)(const AttentionTile&, std::int32_t row, float* out);
  /// sums [rows, width] (+)= weights [rows, count] times values [count] -> [width].
  void (*weigh)(std::int32_t rows, const float* weights, std::int64_t weight_stride, const float* const* values,
                std::int32_t count, float* sums, std::int64_t sum_stride, std::int32_t width);
};

const AttentionKernels& attention_kernels(Isa isa);

namespace baseline {
extern const AttentionKernels kAttentionKernels;
}
namespace avx2 {
extern const AttentionKernels kAttentionKernels;
}
namespace avx512 {
extern const AttentionKernels kAttentionKernels;
}

}  // namespace cairn::cpu
