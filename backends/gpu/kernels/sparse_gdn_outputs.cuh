// Stage 5: outputs of a pair of chunks (2r, 2r + 1), both from the state that enters the even one; a skipped even chunk
// still reaches its neighbour through U'.
//   Launch   grid (ceil(C / 2), HV), 256 threads; shared: queries and keys [64, K] each, scores [64, 64], decays
#pragma once

#include "backends/gpu/kernels/sparse_gdn_plan.cuh"

namespace cairn::gpu {

inline std::size_t output_shared_bytes(int key_dim) {
  return (2 * static_cast<std::size_t>(kChunk) * static_cast<std::size_t>(key_dim) + kChunk * kChunk + 2 * kChunk) * sizeof(float);
}

struct OutputTiles {
  float *queries, *keys, *scores, *decay, *key_decay;
};

/// scores[i, j] = <q_i, k_j> 2^(decay_i + shift - key_decay_j), j <= i in the chunk's own case.
__device__ inline void fill_scores(const SparseGdnStage& stage, const OutputTiles& tiles, float shift, bool is_own) {
  const int dim = stage.call.delta.key_dim;
  for (int n = static_cast<int>(threadIdx.x); n < kChunk * kChunk; n += static_cast<int>(blockDim.x)) {
    const int i = n / kChunk, j = n % kChunk;
    float sum = 0;
    if (!is_own || j <= i) {
      for (int k = 0; k < dim; ++k) sum += tiles.queries[i * dim + k] * tiles.keys[j * dim + k];
      sum *= exp2f(tiles.decay[i] + shift - tiles.key_decay[j]);
    }
    tiles.scores[n] = sum;
  }
}

/// The first `count` scores of row i, times U' of chunk c, for column v.
__device__ inline float mix(const SparseGdnStage& stage, const float* scores, int c, int head, int i, int count, int v) {
  const DeltaRuleArgs& d = stage.call.delta;
  float sum = 0;
  for (int j = 0; j < count; ++j) {
    sum += scores[i * kChunk + j] * stage.scratch.u[(static_cast<std::int64_t>(c * kChunk + j) * d.value_heads + head) * d.value_dim + v];
  }
  return sum;
}

__global__ void pair_outputs_kernel(SparseGdnStage stage) {
  const DeltaRuleArgs& d = stage.call.delta;
  const SparseGdnScratch& s = stage.scratch;
  const int pair = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), group = head / stage.per_group(), even = 2 * pair;
  const int thread = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x), heads = d.value_heads;
  const std::int64_t matrix = static_cast<std::int64_t>(d.key_dim) * d.value_dim;
  OutputTiles tiles;
  tiles.queries = reinterpret_cast<float*>(dynamic_shared());
  tiles.keys = tiles.queries + kChunk * d.key_dim;
  tiles.scores = tiles.keys + kChunk * d.key_dim;
  tiles.decay = tiles.scores + kChunk * kChunk;
  tiles.key_decay = tiles.decay + kChunk;
  const int entry = s.entry_event[static_cast<std::int64_t>(group) * stage.pairs() + pair];
  const int snapshot = s.entry_snapshot[static_cast<std::int64_t>(group) * stage.pairs() + pair];
  const float* state = snapshot < 0 ? s.initial + head * matrix : s.snapshots + (static_cast<std::int64_t>(head) * stage.pairs() + snapshot) * matrix;
  float gap = 0;
  for (int c = entry + 1; c < even; ++c) gap += s.gamma[static_cast<std::int64_t>(c) * heads + head];
  const float even_gamma = s.cumulative[(static_cast<std::int64_t>(even) * heads + head) * kChunk + kChunk - 1];  // clamped, as its parts
  for (int c = even; c < even + 2 && c < stage.chunk_count; ++c) {
    const float before = c == even ? 0.0f : even_gamma;
    __syncthreads();
    load_chunk(stage, d.q, c, group, d.key_dim, tiles.queries);
    if (thread < kChunk) tiles.decay[thread] = s.cumulative[(static_cast<std::int64_t>(c) * heads + head) * kChunk + thread];
    for (int source = even; source <= c; ++source) {
      __syncthreads();
      load_chunk(stage, d.k, source, group, d.key_dim, tiles.keys);
      if (thread < kChunk) tiles.key_decay[thread] = s.cumulative[(static_cast<std::int64_t>(source) * heads + head) * kChunk + thread];
      __syncthreads();
      fill_scores(stage, tiles, source == c ? 0.0f : before, source == c);
      __syncthreads();
      for (int n = thread; n < kChunk * d.value_dim; n += step) {
        const int i = n / d.value_dim, v = n % d.value_dim, t = c * kChunk + i;
        if (t >= stage.token_count) continue;
        const std::int64_t token = stage.first_token + t, column = static_cast<std::int64_t>(head) * d.value_dim + v;
        float* kept = s.output + (static_cast<std::int64_t>(t) * heads + head) * d.value_dim + v;
        float sum = mix(stage, tiles.scores, source, head, i, source == c ? i + 1 : kChunk, v);
        if (source == even) {
          float read = 0;
          for (int k = 0; k < d.key_dim; ++k) read += tiles.queries[i * d.key_dim + k] * state[static_cast<std::int64_t>(k) * d.value_dim + v];
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
