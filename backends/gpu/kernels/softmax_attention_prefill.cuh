// softmax_attention prefill, bf16, by matrix products: keys in tiles of 64, running maximum and sum in registers.
//   Computes  as softmax_attention_reference.cpp, but weights are rounded to bf16 before they meet the values
//   Source    FlashAttention, arXiv 2205.14135 and 2307.08691 (the order of the loops)
//   Shapes    q [T, HQ, K], k [T, HKV, K], v [T, HKV, V], out [T, HQ, V] bf16; K, V <= kDim, in eights; caches f32
//   Launch    a block for 128 queries of one head; late queries, which see most keys, first. Up to 128 dims a group of
//             32 lanes has 32 queries and two blocks fit a multiprocessor; at 256 it has 16
//             kHasCached: some sequence has keys in its cache. Without, the loop is free of their loads and registers
//   Memory    two stages of keys and values: the next tile comes while this one is computed. Pieces of 16 bytes change
//             places by their row, so that fragments are read without bank conflicts
//   Numerics  products of bf16, sums f32, exponentials base 2. Tiles lie at absolute multiples of 64, and a tile that a
//             query does not see leaves its sums as they are: bits depend neither on how a prompt is cut nor on the
//             batch
//   Measured  H200, one sequence, graph replay, medians; TFLOP/s of what is seen (matrix peak: 790)
//               heads      T = 2048      T = 16384       the same, window 1024   8192 after 8192 in the cache
//             16/4 x 256   151 us 228    7.60 ms 290     1.10 ms 242             9.09 ms 182
//             32/8 x 128   135 us 254    6.47 ms 340     1.01 ms 264             8.40 ms 196
//             16/16 x 64    79 us 109    2.34 ms 235     0.37 ms 180             2.87 ms 144
#pragma once

#include "backends/gpu/kernels/any_element.cuh"
#include "backends/gpu/platform/gpu_matrix.h"

namespace cairn::gpu {

inline constexpr int kTileKeys = 64, kTileQueries = 128;
inline constexpr float kLog2E = 1.44269504088896340736f;

/// Blocks' tiles of queries: sequence b owns those from offsets[b] / 128 + b, which is enough for its tokens; some are
/// empty.
__host__ __device__ inline int first_query_tile(std::int32_t offset, int b) { return offset / kTileQueries + b; }

/// What one block computes, and what it may read. Kept in shared memory: sums need the registers.
struct QueryTile {
  int head, kv_head, query_count;  ///< no query: nothing to do
  KvCache cache;
  std::int64_t start;        ///< position of the sequence's first token in this call
  std::int64_t first_row;    ///< row of that token minus its position
  std::int64_t begin;        ///< position of the first query
  std::int64_t oldest, end;  ///< positions [oldest, end) are seen by some query
};

template <int kDim>
struct PrefillShape {
  static constexpr int kGroups = kDim <= 128 ? 4 : 8;  // of 32 lanes
  static constexpr int kThreads = kGroups * kMatrixLanes;
  static constexpr int kGroupQueries = kTileQueries / kGroups, kRowBlocks = kGroupQueries / 16;
  static constexpr int kTileElements = kTileKeys * kDim;
  static constexpr std::size_t kSharedBytes =
      (kTileQueries * kDim + 4 * kTileElements) * sizeof(std::uint16_t) + sizeof(QueryTile);
};

__device__ inline void find_query_tile(const SoftmaxAttentionArgs& args, QueryTile* tile) {
  const int heads = args.query_heads,
            index = static_cast<int>((gridDim.x - 1 - blockIdx.x) / static_cast<unsigned>(heads));
  int b = 0, above = args.batch.sequence_count;
  while (above - b > 1) {
    const int middle = (b + above) / 2;
    (first_query_tile(args.batch.offsets[middle], middle) <= index ? b : above) = middle;
  }
  const std::int32_t token = args.batch.offsets[b], length = args.batch.offsets[b + 1] - token;
  const int first = (index - first_query_tile(token, b)) * kTileQueries;
  tile->head = static_cast<int>(blockIdx.x % static_cast<unsigned>(heads));
  tile->kv_head = tile->head / (heads / args.kv_heads);
  tile->query_count = length - first < kTileQueries ? length - first : kTileQueries;
  tile->cache = args.caches[b];
  tile->start = args.starts[b];
  tile->first_row = token - tile->start;
  tile->begin = tile->start + first;
  tile->end = tile->begin + tile->query_count;
  tile->oldest = args.window > 0 && tile->begin >= args.window ? tile->begin - args.window + 1 : 0;
}

/// Element (row, column) of a tile [rows, kDim] in shared memory: pieces of 8 change places within 64 columns.
template <int kDim>
__device__ inline std::uint16_t* in_tile(std::uint16_t* tile, int row, int column) {
  return tile + row * kDim + (column & ~63) + ((column & 56) ^ (row & 7) << 3) + (column & 7);
}

/// The same for a fragment: (row, column) within its 16 x 16 elements, which begin at constants. Few addresses differ.
template <int kDim>
__device__ inline std::uint16_t* in_fragment(std::uint16_t* tile, int first_row, int first_column, int row,
                                             int column) {
  const int place = row * kDim + (column ^ (row & 7) << 3);
  return tile + (place ^ (first_column & 56)) + (first_column & ~63) + first_row * kDim;
}

/// The rows' 128 queries; zeros where there is none.
template <int kDim>
__device__ void copy_queries(const SoftmaxAttentionArgs& args, const QueryTile& tile, std::uint16_t* to) {
  const std::int64_t row = tile.first_row + tile.begin;
  const auto* from = static_cast<const std::uint16_t*>(args.q.data) + row * args.q.stride + tile.head * args.key_dim;
  for (int i = static_cast<int>(threadIdx.x); i < kTileQueries * kDim / 8; i += PrefillShape<kDim>::kThreads) {
    const int query = i / (kDim / 8), column = i % (kDim / 8) * 8;
    copy_16_async(in_tile<kDim>(to, query, column), from + query * args.q.stride + column,
                  query < tile.query_count && column < args.key_dim);
  }
}

struct alignas(16) EightBf16 {
  std::uint32_t pair[4];
};

__device__ inline EightBf16 rounded(const float (&x)[2][4]) {
  return {{pack_bf16(x[0][0], x[0][1]), pack_bf16(x[0][2], x[0][3]), pack_bf16(x[1][0], x[1][1]),
           pack_bf16(x[1][2], x[1][3])}};
}

/// 64 keys or values from position `first` on; zeros where no query of the block sees.
template <int kDim, bool kHasCached>
__device__ void copy_tile(const ConstRows& rows, const float* cached, int dim, const QueryTile& tile,
                          std::int64_t first, int kv_heads, std::uint16_t* to) {
  constexpr int kRowThreads = kDim / 8, kRowsAtOnce = PrefillShape<kDim>::kThreads / kRowThreads;
  const int column = static_cast<int>(threadIdx.x) % kRowThreads * 8,
            first_row = static_cast<int>(threadIdx.x) / kRowThreads;
  const int begin = static_cast<int>(tile.oldest > first ? tile.oldest - first : 0);
  const int end = column >= dim ? 0 : static_cast<int>(tile.end - first < kTileKeys ? tile.end - first : kTileKeys);
  const int first_column = tile.kv_head * dim + column;
  const auto* fresh =
      static_cast<const std::uint16_t*>(rows.data) + (tile.first_row + first) * rows.stride + first_column;
  if (!kHasCached || first >= tile.start) {
#pragma unroll
    for (int row = first_row; row < kTileKeys; row += kRowsAtOnce) {
      copy_16_async(in_tile<kDim>(to, row, column), fresh + row * rows.stride, row >= begin && row < end);
    }
    return;
  }
  const int cached_end = tile.start - first < end ? static_cast<int>(tile.start - first) : end;
  const auto capacity = static_cast<std::uint32_t>(tile.cache.capacity);
  const auto ring_row = static_cast<std::uint32_t>(first % capacity);
  constexpr int kLoads = 8;  // on their way together
  for (int from = first_row; from < kTileKeys; from += kLoads * kRowsAtOnce) {
    float eight[kLoads][2][4] = {};
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = from + i * kRowsAtOnce;
      if (row < begin || row >= cached_end) continue;
      const auto at = static_cast<std::int64_t>((ring_row + static_cast<std::uint32_t>(row)) % capacity);
      load_four(cached + at * kv_heads * dim + first_column, eight[i][0]);
      load_four(cached + at * kv_heads * dim + first_column + 4, eight[i][1]);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = from + i * kRowsAtOnce;
      if (row >= kTileKeys) break;
      if (row >= cached_end && row < end) {
        copy_16_async(in_tile<kDim>(to, row, column), fresh + row * rows.stride, true);
      } else {
        *reinterpret_cast<EightBf16*>(in_tile<kDim>(to, row, column)) = rounded(eight[i]);
      }
    }
  }
}

/// What a lane gathers of its queries: rows lane / 4 and lane / 4 + 8 of each block of 16.
template <int kDim>
struct QuerySums {
  static constexpr int kRowBlocks = PrefillShape<kDim>::kRowBlocks;
  float values[kRowBlocks][kDim / 8][4];
  float largest[kRowBlocks][2];  ///< score before the scale
  float total[kRowBlocks][2];    ///< over this lane's keys
};

template <int kDim, int kRowBlocks = PrefillShape<kDim>::kRowBlocks>
__device__ void score_keys(std::uint16_t* queries, std::uint16_t* keys, float (&scores)[kRowBlocks][kTileKeys / 8][4]) {
#pragma unroll
  for (int k = 0; k < kDim; k += 16) {
    std::uint32_t left[kRowBlocks][4];
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
      load_left(left[r], [&](int row, int column) { return in_fragment<kDim>(queries, r * 16, k, row, column); });
    }
#pragma unroll
    for (int n = 0; n < kTileKeys / 16; ++n) {
      std::uint32_t right[4];
      load_right(right, [&](int row, int column) { return in_fragment<kDim>(keys, n * 16, k, row, column); });
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r) {
        multiply_16x8(scores[r][2 * n], left[r], right[0], right[1]);
        multiply_16x8(scores[r][2 * n + 1], left[r], right[2], right[3]);
      }
    }
  }
}

/// -inf where a query does not see a key. `age`: position of the group's first query minus that of the tile's first
/// key.
template <int kRowBlocks>
__device__ void hide_keys(int age, int window, float (&scores)[kRowBlocks][kTileKeys / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes, first = age + lane / 4 - lane % 4 * 2;
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
    for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int newest = first + r * 16 + i / 2 * 8, key = n * 8 + i % 2;
        if (key > newest || (window > 0 && key <= newest - window)) scores[r][n][i] = -INFINITY;
      }
    }
  }
}

/// Scores become weights relative to the largest; earlier sums shrink with it. `scale`: of scores, to powers of 2.
template <int kDim, int kRowBlocks = PrefillShape<kDim>::kRowBlocks>
__device__ void weigh_keys(float scale, float (&scores)[kRowBlocks][kTileKeys / 8][4], QuerySums<kDim>& sums) {
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = sums.largest[r][half];
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n) {
        largest = fmaxf(largest, fmaxf(scores[r][n][2 * half], scores[r][n][2 * half + 1]));
      }
      largest = fmaxf(largest, shuffle_xor(largest, 1));
      largest = fmaxf(largest, shuffle_xor(largest, 2));
      const float base = largest == -INFINITY ? 0.0f : largest * scale;
      const float shrink = exp2f(fmaf(sums.largest[r][half], scale, -base));
      sums.largest[r][half] = largest;
      float total = sums.total[r][half] * shrink;
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i)
          total += scores[r][n][i] = exp2f(fmaf(scores[r][n][i], scale, -base));
      }
      sums.total[r][half] = total;
      if (shrink == 1.0f) continue;
#pragma unroll
      for (int c = 0; c < kDim / 8; ++c)
        sums.values[r][c][2 * half] *= shrink, sums.values[r][c][2 * half + 1] *= shrink;
    }
  }
}

template <int kDim>
using Scores = float[PrefillShape<kDim>::kRowBlocks][kTileKeys / 8][4];
/// Fragments are loaded three steps of 16 keys and 16 columns ahead of their products.
template <int kDim>
__device__ void add_values(std::uint16_t* values, const Scores<kDim>& weights, QuerySums<kDim>& sums) {
  constexpr int kRowBlocks = PrefillShape<kDim>::kRowBlocks, kBlocks = kTileKeys / 16;
  constexpr int kColumnBlocks = kDim / 16, kSteps = kBlocks * kColumnBlocks, kAhead = 3;
  std::uint32_t left[kRowBlocks][4], right[kAhead + 1][4];
  const auto load_step = [&](int step) {
    load_right_transposed(right[step % (kAhead + 1)], [&](int row, int column) {
      return in_fragment<kDim>(values, step / kColumnBlocks * 16, step % kColumnBlocks * 16, row, column);
    });
  };
#pragma unroll
  for (int step = 0; step < kAhead; ++step) load_step(step);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step + kAhead < kSteps) load_step(step + kAhead);
    const int j = step / kColumnBlocks, c = step % kColumnBlocks;
#pragma unroll
    for (int i = 0; i < kRowBlocks * 4; ++i) {
      if (c > 0) break;
      const float* pair = weights[i / 4][2 * j + i % 4 / 2] + i % 2 * 2;
      left[i / 4][i % 4] = pack_bf16(pair[0], pair[1]);
    }
    const std::uint32_t(&values_of)[4] = right[step % (kAhead + 1)];
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
      multiply_16x8(sums.values[r][2 * c], left[r], values_of[0], values_of[1]);
      multiply_16x8(sums.values[r][2 * c + 1], left[r], values_of[2], values_of[3]);
    }
  }
}

template <int kDim>
__device__ void store_outputs(const SoftmaxAttentionArgs& args, const QueryTile& tile, int first_query,
                              const QuerySums<kDim>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kMatrixLanes;
  const bool in_pairs = reinterpret_cast<std::uintptr_t>(args.out.data) % 4 == 0 && args.out.stride % 2 == 0;
#pragma unroll
  for (int r = 0; r < PrefillShape<kDim>::kRowBlocks; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = sums.total[r][half];
      total += shuffle_xor(total, 1);
      total += shuffle_xor(total, 2);
      const float inverse = 1.0f / total;
      const int query = first_query + r * 16 + half * 8 + lane / 4;
      if (query >= tile.query_count) continue;
      const std::int64_t row = tile.first_row + tile.begin + query;
      auto* to = static_cast<std::uint16_t*>(args.out.data) + row * args.out.stride + tile.head * args.value_dim;
#pragma unroll
      for (int c = 0; c < kDim / 8; ++c) {
        const int column = c * 8 + lane % 4 * 2;
        if (column >= args.value_dim) continue;
        const std::uint32_t pair =
            pack_bf16(sums.values[r][c][2 * half] * inverse, sums.values[r][c][2 * half + 1] * inverse);
        if (in_pairs) {
          *reinterpret_cast<std::uint32_t*>(to + column) = pair;
        } else {
          to[column] = static_cast<std::uint16_t>(pair), to[column + 1] = static_cast<std::uint16_t>(pair >> 16);
        }
      }
    }
  }
}

template <int kDim, bool kHasCached>
__global__ void __launch_bounds__(PrefillShape<kDim>::kThreads, kDim <= 128 ? 2 : 1)
    softmax_attention_prefill_kernel(SoftmaxAttentionArgs args) {
  using Shape = PrefillShape<kDim>;
  auto* queries = reinterpret_cast<std::uint16_t*>(dynamic_shared());
  std::uint16_t* keys = queries + kTileQueries * kDim;
  std::uint16_t* values = keys + 2 * Shape::kTileElements;
  QueryTile& tile = *reinterpret_cast<QueryTile*>(values + 2 * Shape::kTileElements);
  if (threadIdx.x == 0) find_query_tile(args, &tile);
  __syncthreads();
  if (tile.query_count <= 0) return;
  const auto copy_keys_values = [&](std::int64_t first_key, int stage) {
    copy_tile<kDim, kHasCached>(args.k, tile.cache.keys, args.key_dim, tile, first_key, args.kv_heads,
                                keys + stage * Shape::kTileElements);
    copy_tile<kDim, kHasCached>(args.v, tile.cache.values, args.value_dim, tile, first_key, args.kv_heads,
                                values + stage * Shape::kTileElements);
    commit_copies();
  };
  // Lanes of a warp stay together: they skip what none of them sees.
  const int warp_queries = warp_size() / kMatrixLanes * Shape::kGroupQueries;
  const int warp_first = static_cast<int>(threadIdx.x) / warp_size() * warp_queries;
  const int first_query = static_cast<int>(threadIdx.x) / kMatrixLanes * Shape::kGroupQueries;

  std::int64_t first = tile.oldest / kTileKeys * kTileKeys;
  copy_queries<kDim>(args, tile, queries);
  copy_keys_values(first, 0);
  QuerySums<kDim> sums = {};
#pragma unroll
  for (int r = 0; r < Shape::kRowBlocks; ++r) sums.largest[r][0] = sums.largest[r][1] = -INFINITY;
  for (int stage = 0; first < tile.end; first += kTileKeys, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();
    if (first + kTileKeys < tile.end) copy_keys_values(first + kTileKeys, stage ^ 1);
    const int warp_age = static_cast<int>(tile.begin - first) + warp_first, warp_newest = warp_age + warp_queries - 1;
    if (warp_first >= tile.query_count || warp_newest < 0 ||
        (args.window > 0 && warp_age - args.window >= kTileKeys - 1))
      continue;
    float scores[Shape::kRowBlocks][kTileKeys / 8][4] = {};
    score_keys<kDim>(queries + first_query * kDim, keys + stage * Shape::kTileElements, scores);
    if (warp_age < kTileKeys - 1 || (args.window > 0 && warp_newest >= args.window)) {
      hide_keys(static_cast<int>(tile.begin - first) + first_query, args.window, scores);
    }
    weigh_keys<kDim>(args.scale * kLog2E, scores, sums);
    add_values<kDim>(values + stage * Shape::kTileElements, scores, sums);
  }
  store_outputs<kDim>(args, tile, first_query, sums);
}

}  // namespace cairn::gpu
