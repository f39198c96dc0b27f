// Stage 4: the walk over a head's events. The state decays over gaps; at an event U' = U - inverse (beta 2^g K S) and
// S = 2^gamma S + K^T (U' 2^(gamma - g)). W is never stored.
//   Launch   grid (ceil(V / 32), HV), 256 threads; shared: S [K, 32], a slice of the keys, two [64, 32]
//            tiles
#pragma once

#include "backends/gpu/kernels/sparse_gdn_plan.cuh"

namespace cairn::gpu {

inline constexpr int kEventColumns = 32;

inline std::size_t event_shared_bytes(int key_dim) {
  return (static_cast<std::size_t>(key_dim) * kEventColumns + kSliceFloats + 2 * kChunk * kEventColumns + 2 * kChunk) *
         sizeof(float);
}

__global__ void walk_events_kernel(SparseGdnStage stage) {
  const DeltaRuleArgs& d = stage.call.delta;
  const SparseGdnScratch& s = stage.scratch;
  const int head = static_cast<int>(blockIdx.y), group = head / stage.per_group(),
            first_v = static_cast<int>(blockIdx.x) * kEventColumns;
  const int thread = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x), heads = d.value_heads;
  const std::int64_t matrix = static_cast<std::int64_t>(d.key_dim) * d.value_dim;
  float* state = reinterpret_cast<float*>(dynamic_shared());
  float* keys = state + d.key_dim * kEventColumns;
  float* recalled = keys + kSliceFloats;
  float* write = recalled + kChunk * kEventColumns;
  float* decay = write + kChunk * kEventColumns;
  float* beta = decay + kChunk;
  const auto has_column = [&](int i) { return first_v + i % kEventColumns < d.value_dim; };
  for (int i = thread; i < d.key_dim * kEventColumns; i += step) {
    state[i] = has_column(i) ? s.initial[head * matrix + static_cast<std::int64_t>(i / kEventColumns) * d.value_dim +
                                         first_v + i % kEventColumns]
                             : 0.0f;
  }
  int row = 0;
  while (s.row_group[row] != group) ++row;
  int at = 0;  // `state` is the state that enters this chunk
  for (int event = s.row_ptr[row]; event <= s.row_ptr[row + 1]; ++event) {
    const int c = event < s.row_ptr[row + 1] ? s.event_chunk[event] : stage.chunk_count;
    float gap = 0;
    for (; at < c; ++at) gap += s.gamma[static_cast<std::int64_t>(at) * heads + head];
    __syncthreads();
    for (int i = thread; i < d.key_dim * kEventColumns; i += step) state[i] *= exp2f(gap);
    if (c == stage.chunk_count) break;
    const std::int64_t cell = static_cast<std::int64_t>(c) * heads + head;
    if (thread < kChunk) {
      decay[thread] = s.cumulative[cell * kChunk + thread];
      beta[thread] = beta_at(stage, c * kChunk + thread, head);
    }
    for_each_slice(d.key_dim, [&](int first, int count) {
      __syncthreads();
      load_slice(stage, d.k, c, group, first, count, keys);
      __syncthreads();
      for (int i = thread; i < kChunk * kEventColumns; i += step) {
        const float* key = keys + i / kEventColumns * kSliceStride;
        float sum = first == 0 ? 0.0f : recalled[i];
        for (int k = 0; k < count; ++k) sum += key[k] * state[(first + k) * kEventColumns + i % kEventColumns];
        recalled[i] = sum;
      }
    });
    for (int i = thread; i < kChunk * kEventColumns; i += step) {
      const int t = i / kEventColumns;
      recalled[i] = beta[t] * exp2f(decay[t]) * recalled[i];
    }
    __syncthreads();
    const float* inverse = s.inverse + cell * stage.inverse_size();
    for (int i = thread; i < kChunk * kEventColumns; i += step) {
      const int t = i / kEventColumns, token = c * kChunk + t;
      float u = 0;
      if (token < stage.token_count && has_column(i)) {
        float& stored =
            s.u[(static_cast<std::int64_t>(token) * heads + head) * d.value_dim + first_v + i % kEventColumns];
        float sum = 0;
        for (int j = first_kept(stage, t); j <= t; ++j)
          sum += inverse_at(stage, inverse, t, j) * recalled[j * kEventColumns + i % kEventColumns];
        u = stored -= sum;
      }
      write[i] = u * exp2f(decay[kChunk - 1] - decay[t]);
    }
    const float keep = exp2f(decay[kChunk - 1]);
    const std::int32_t snapshot = s.event_snapshot[event];
    for_each_slice(d.key_dim, [&](int first, int count) {
      __syncthreads();
      load_slice(stage, d.k, c, group, first, count, keys);
      __syncthreads();
      for (int i = thread; i < count * kEventColumns; i += step) {
        const int k = i / kEventColumns, column = i % kEventColumns;
        float sum = keep * state[first * kEventColumns + i];
        for (int t = 0; t < kChunk; ++t) sum += keys[t * kSliceStride + k] * write[t * kEventColumns + column];
        state[first * kEventColumns + i] = sum;
        if (snapshot >= 0 && has_column(i)) {
          s.snapshots[(static_cast<std::int64_t>(head) * stage.pairs() + snapshot) * matrix +
                      static_cast<std::int64_t>(first + k) * d.value_dim + first_v + column] = sum;
        }
      }
    });
    at = c + 1;
  }
  for (int i = thread; i < d.key_dim * kEventColumns; i += step) {
    if (has_column(i))
      d.states[stage.sequence][head * matrix + static_cast<std::int64_t>(i / kEventColumns) * d.value_dim + first_v +
                               i % kEventColumns] = state[i];
  }
}

}  // namespace cairn::gpu
