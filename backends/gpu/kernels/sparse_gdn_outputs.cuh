// Stage 5: outputs of a pair of chunks (2r, 2r + 1), both from the state that enters the even one; a skipped even chunk
// still reaches its neighbour through U'.
//   Launch   grid (ceil(C / 2), HV), 256 threads; shared: a slice of queries and of keys, scores [64, 64],
//            decays
#pragma once

#include "backends/gpu/kernels/sparse_gdn_plan.cuh"

namespace cairn::gpu {

inline constexpr std::size_t kOutputSharedBytes = (2 * kSliceFloats + kChunk * kChunk + 2 * kChunk) * sizeof(float);

struct OutputTiles {
  float *queries, *keys, *scores, *decay, *key_decay;
};

/// scores[i, j] = <q_i, k_j> 2^(decay_i + shift - key_decay_j) of queries of chunk c and keys of chunk `source`; j <= i
/// where they are one.
__device__ inline void fill_scores(const SparseGdnStage& stage, const OutputTiles& tiles, int c, int source, int group,
                                   float shift) {
  const DeltaRuleArgs& d = stage.call.delta;
  const auto for_each_pair = [&](const auto& visit) {
    for (int n = static_cast<int>(threadIdx.x); n < kChunk * kChunk; n += static_cast<int>(blockDim.x)) {
      const int i = n / kChunk, j = n % kChunk;
      if (source != c || j <= i) visit(i, j, tiles.scores[n]);
    }
  };
  for_each_slice(d.key_dim, [&](int first, int count) {
    __syncthreads();
    load_slice(stage, d.q, c, group, first, count, tiles.queries);
    load_slice(stage, d.k, source, group, first, count, tiles.keys);
    __syncthreads();
    for_each_pair([&](int i, int j, float& score) {
      float sum = first == 0 ? 0.0f : score;
      for (int k = 0; k < count; ++k) sum += tiles.queries[i * kSliceStride + k] * tiles.keys[j * kSliceStride + k];
      score = sum;
    });
  });
  for_each_pair([&](int i, int j, float& score) { score *= exp2f(tiles.decay[i] + shift - tiles.key_decay[j]); });
}

/// The first `count` scores of row i, times U' of chunk c, for column v.
__device__ inline float mix(const SparseGdnStage& stage, const float* scores, int c, int head, int i, int count,
                            int v) {
  const DeltaRuleArgs& d = stage.call.delta;
  float sum = 0;
  for (int j = 0; j < count; ++j) {
    sum += scores[i * kChunk + j] *
           stage.scratch.u[(static_cast<std::int64_t>(c * kChunk + j) * d.value_heads + head) * d.value_dim + v];
  }
  return sum;
}

__global__ void pair_outputs_kernel(SparseGdnStage stage) {
  const DeltaRuleArgs& d = stage.call.delta;
  const SparseGdnScratch& s = stage.scratch;
  const int pair = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), group = head / stage.per_group(),
            even = 2 * pair;
  const int thread = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x), heads = d.value_heads;
  const std::int64_t matrix = static_cast<std::int64_t>(d.key_dim) * d.value_dim;
  const std::int64_t key_column = static_cast<std::int64_t>(group) * d.key_dim;
  OutputTiles tiles;
  tiles.queries = reinterpret_cast<float*>(dynamic_shared());
  tiles.keys = tiles.queries + kSliceFloats;
  tiles.scores = tiles.keys + kSliceFloats;
  tiles.decay = tiles.scores + kChunk * kChunk;
  tiles.key_decay = tiles.decay + kChunk;
  const int entry = s.entry_event[static_cast<std::int64_t>(group) * stage.pairs() + pair];
  const int snapshot = s.entry_snapshot[static_cast<std::int64_t>(group) * stage.pairs() + pair];
  const float* state = snapshot < 0
                           ? s.initial + head * matrix
                           : s.snapshots + (static_cast<std::int64_t>(head) * stage.pairs() + snapshot) * matrix;
  float gap = 0;
  for (int c = entry + 1; c < even; ++c) gap += s.gamma[static_cast<std::int64_t>(c) * heads + head];
  const float even_gamma =
      s.cumulative[(static_cast<std::int64_t>(even) * heads + head) * kChunk + kChunk - 1];  // clamped, as its parts
  for (int c = even; c < even + 2 && c < stage.chunk_count; ++c) {
    const float before = c == even ? 0.0f : even_gamma;
    for (int source = even; source <= c; ++source) {
      __syncthreads();
      if (thread < kChunk) {
        tiles.decay[thread] = s.cumulative[(static_cast<std::int64_t>(c) * heads + head) * kChunk + thread];
        tiles.key_decay[thread] = s.cumulative[(static_cast<std::int64_t>(source) * heads + head) * kChunk + thread];
      }
      fill_scores(stage, tiles, c, source, group, source == c ? 0.0f : before);
      __syncthreads();
      for (int n = thread; n < kChunk * d.value_dim; n += step) {
        const int i = n / d.value_dim, v = n % d.value_dim, t = c * kChunk + i;
        if (t >= stage.token_count) continue;
        const std::int64_t token = stage.first_token + t, column = static_cast<std::int64_t>(head) * d.value_dim + v;
        float* kept = s.output + (static_cast<std::int64_t>(t) * heads + head) * d.value_dim + v;
        float sum = mix(stage, tiles.scores, source, head, i, source == c ? i + 1 : kChunk, v);
        if (source == even) {
          float read = 0;
          for (int k = 0; k < d.key_dim; ++k)
            read += load(d.q, d.dtype, token, key_column + k) * state[static_cast<std::int64_t>(k) * d.value_dim + v];
          sum += exp2f(tiles.decay[i] + before) * exp2f(gap) * read;
        } else {
          sum += *kept;
        }
        if (source == c) {
          store(d.out, d.dtype, token, column, d.scale * sum);
        } else {
          *kept = sum;
        }
      }
    }
  }
}

}  // namespace cairn::gpu
