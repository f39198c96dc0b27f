// softmax_attention decode: one new token for each sequence; its keys are split over blocks, their sums are combined.
//   Computes  as softmax_attention_reference.cpp, f32 throughout; the new key and value are stored on the way
//   Source    the split of keys: Flash-Decoding (2023); the running maximum: arXiv 1805.02867
//   Shapes    q [B, HQ, K], k [B, HKV, K], v [B, HKV, V], out [B, HQ, V]; caches f32; K, V in fours, K + V <= 1024
//   Launch    grid (slots, HKV * head groups, B): a block has up to 8 query heads of one key head, and the chunks of
//             128 keys with chunk % slots = its slot. A second kernel joins the slots of a head that hold something.
//             Slots depend on the window alone: bits do not depend on the batch or on how far its others have come
//   Memory    three stages of keys and values on their way (32 KB each); the lanes that copy a key score it
//   Traffic   keys and values once for each group of 8 query heads; V + 2 floats for each head and slot
#pragma once

#include "backends/gpu/kernels/any_element.cuh"
#include "backends/gpu/platform/gpu_matrix.h"

namespace cairn::gpu {

inline constexpr int kDecodeThreads = 256, kDecodeStages = 3, kChunkKeys = 128, kMaxSlots = 64, kMaxKeysAtOnce = 64;

struct DecodeAttentionArgs {
  SoftmaxAttentionArgs call;
  int first_sequence;  ///< blocks in z begin there
  int slot_count, keys_at_once, head_groups;
  float* sums;    ///< [B of this launch, HQ, slots, V]: weighted values
  float* totals;  ///< [B of this launch, HQ, slots, 2]: largest score in powers of 2, sum of weights
};

/// Chunks of 128 positions that a token sees.
struct SeenChunks {
  std::int64_t position, oldest, first, last;
};

__device__ inline SeenChunks seen_chunks(const SoftmaxAttentionArgs& args, int b) {
  const std::int64_t position = args.starts[b];
  const std::int64_t oldest = args.window > 0 && position >= args.window ? position - args.window + 1 : 0;
  return {position, oldest, oldest / kChunkKeys, position / kChunkKeys};
}

/// Floats of shared memory: stages, queries [kHeads, K], scores and weights [64 keys, kHeads], three numbers a head.
template <int kHeads>
__host__ __device__ int decode_shared_floats(int keys_at_once, int key_dim, int value_dim) {
  const int stages = kDecodeStages * keys_at_once * (key_dim + value_dim), joined = kDecodeThreads * kHeads * 4;
  return (stages > joined ? stages : joined) + kHeads * (key_dim + 2 * kMaxKeysAtOnce + 3);
}

/// The keys and values of one sequence and head, as a block reads them.
struct KeySource {
  const SoftmaxAttentionArgs* args;
  KvCache cache;
  SeenChunks seen;
  int b, kv_head;
  bool stores;  ///< this block, and no other, puts the new key and value into the cache
};

/// A row of keys or values to shared memory by `lanes` lanes; the new one also to the cache.
__device__ inline void copy_row(const KeySource& source, std::int64_t position, bool is_value, int lane, int lanes,
                                float* to) {
  const SoftmaxAttentionArgs& args = *source.args;
  const int dim = is_value ? args.value_dim : args.key_dim;
  const std::int64_t ring_row = position % source.cache.capacity;
  float* cached =
      (is_value ? source.cache.values : source.cache.keys) + (ring_row * args.kv_heads + source.kv_head) * dim;
  if (position == source.seen.position) {
    for (int i = lane; i < dim; i += lanes) {
      to[i] =
          load(is_value ? args.v : args.k, args.dtype, source.b, static_cast<std::int64_t>(source.kv_head) * dim + i);
      if (source.stores) cached[i] = to[i];
    }
    return;
  }
  const bool is_seen = position >= source.seen.oldest && position < source.seen.position;
  for (int i = lane * 4; i < dim; i += lanes * 4) copy_16_async(to + i, cached + i, is_seen);
}

/// scores [kHeads, keys] of the queries with one key, by `lanes` neighbouring lanes.
template <int kHeads>
__device__ void score_key(const float* queries, const float* key, int key_dim, bool is_seen, int lane, int lanes,
                          int stride, float* scores) {
  float sums[kHeads] = {};
  for (int i = lane * 4; i < key_dim; i += lanes * 4) {
    float k[4];
    load_four(key + i, k);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float q[4];
      load_four(queries + h * key_dim + i, q);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[h] = fmaf(q[j], k[j], sums[h]);
    }
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) sums[h] += shuffle_xor(sums[h], distance);
  }
  if (lane > 0) return;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) scores[h * stride] = is_seen ? sums[h] : -INFINITY;
}

/// One head's scores become weights [keys, kHeads]; a warp each. `running`: largest, total, shrink, of all heads.
template <int kHeads>
__device__ void weigh_scores(const float* scores, int keys, int head, float* weights, float (*running)[kHeads]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size();
  const float before = running[0][head];
  float largest = before;
  for (int key = lane; key < keys; key += warp_size()) largest = fmaxf(largest, scores[key]);
  largest = warp_max(largest);
  const float base = largest == -INFINITY ? 0.0f : largest;
  float total = 0;
  for (int key = lane; key < keys; key += warp_size()) {
    const float weight = exp2f(scores[key] - base);
    weights[key * kHeads + head] = weight;
    total += weight;
  }
  total = warp_sum(total);
  if (lane > 0) return;
  const float shrink = exp2f(before - base);
  running[0][head] = largest;
  running[1][head] = running[1][head] * shrink + total;
  running[2][head] = shrink;
}

/// sums [kHeads, 4 columns] of a thread += weights times the rows row, row + rows_at_once, ...
template <int kHeads>
__device__ void add_weighted(const float* values, int value_dim, int keys, int row, int rows_at_once,
                             const float* weights, const float* shrink, float (&sums)[kHeads][4]) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[h][j] *= shrink[h];
  }
  for (; row < keys; row += rows_at_once) {
    float v[4];
    load_four(values + row * value_dim, v);
    float of_heads[4] = {weights[row * kHeads]};
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (kHeads >= 4 && h % 4 == 0) load_four(weights + row * kHeads + h, of_heads);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[h][j] = fmaf(of_heads[h % 4], v[j], sums[h][j]);
    }
  }
}

template <int kHeads>
__global__ void __launch_bounds__(kDecodeThreads, 2) softmax_attention_decode_kernel(DecodeAttentionArgs args) {
  const SoftmaxAttentionArgs& call = args.call;
  const int thread = static_cast<int>(threadIdx.x), slot = static_cast<int>(blockIdx.x), slots = args.slot_count;
  const int kv_head = static_cast<int>(blockIdx.y) / args.head_groups,
            group = static_cast<int>(blockIdx.y) % args.head_groups;
  const int shared_heads = call.query_heads / call.kv_heads, first_head = kv_head * shared_heads + group * kHeads;
  const int head_count = shared_heads - group * kHeads < kHeads ? shared_heads - group * kHeads : kHeads;
  const int b = args.first_sequence + static_cast<int>(blockIdx.z), key_dim = call.key_dim, value_dim = call.value_dim;
  const KeySource source = {&call, call.caches[b], seen_chunks(call, b), b, kv_head, group == 0};
  const SeenChunks& seen = source.seen;
  const std::int64_t chunk = seen.first + (slot - seen.first % slots + slots) % slots;
  if (chunk > seen.last) return;

  const int keys = args.keys_at_once, steps_per_chunk = kChunkKeys / keys, stage_floats = keys * (key_dim + value_dim);
  float* stages = reinterpret_cast<float*>(dynamic_shared());
  float* queries =
      stages + decode_shared_floats<kHeads>(keys, key_dim, value_dim) - kHeads * (key_dim + 2 * kMaxKeysAtOnce + 3);
  float* scores = queries + kHeads * key_dim;
  float* weights = scores + kHeads * kMaxKeysAtOnce;
  auto* running = reinterpret_cast<float(*)[kHeads]>(weights + kHeads * kMaxKeysAtOnce);
  const int chunk_count = static_cast<int>((seen.last - chunk) / slots) + 1;
  const bool has_last = chunk + (chunk_count - 1) * slots == seen.last;
  const int steps = chunk_count * steps_per_chunk -
                    (has_last ? steps_per_chunk - 1 - static_cast<int>(seen.position % kChunkKeys) / keys : 0);
  const auto first_key = [&](int step) {
    return (chunk + step / steps_per_chunk * slots) * kChunkKeys + step % steps_per_chunk * keys;
  };
  const auto stage_of = [&](int step) { return stages + step % kDecodeStages * stage_floats; };
  const int lanes = kDecodeThreads / keys, key = thread / lanes, lane = thread % lanes;
  const auto copy_step = [&](int step) {
    if (step < steps) {
      copy_row(source, first_key(step) + key, false, lane, lanes, stage_of(step) + key * key_dim);
      copy_row(source, first_key(step) + key, true, lane, lanes, stage_of(step) + keys * key_dim + key * value_dim);
    }
    commit_copies();
  };
  for (int step = 0; step < kDecodeStages - 1; ++step) copy_step(step);
  for (int i = thread; i < kHeads * key_dim; i += kDecodeThreads) {
    const int head = i / key_dim;
    queries[i] = head < head_count ? load(call.q, call.dtype, b, static_cast<std::int64_t>(first_head) * key_dim + i) *
                                         (call.scale * 1.44269504088896340736f)
                                   : 0.0f;
  }
  if (thread < kHeads) running[0][thread] = -INFINITY, running[1][thread] = 0;

  const int row_threads = value_dim / 4, row = thread / row_threads, column = thread % row_threads * 4;
  const int rows_at_once = kDecodeThreads / row_threads;
  float sums[kHeads][4] = {};
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<kDecodeStages - 2>();
    __syncthreads();
    copy_step(step + kDecodeStages - 1);
    const float* stage = stage_of(step);
    const std::int64_t position = first_key(step) + key;
    score_key<kHeads>(queries, stage + key * key_dim, key_dim, position >= seen.oldest && position <= seen.position,
                      lane, lanes, kMaxKeysAtOnce, scores + key);
    __syncthreads();
    for (int h = thread / warp_size(); h < kHeads; h += kDecodeThreads / warp_size()) {
      weigh_scores<kHeads>(scores + h * kMaxKeysAtOnce, keys, h, weights, running);
    }
    __syncthreads();
    if (row < rows_at_once) {
      add_weighted<kHeads>(stage + keys * key_dim + column, value_dim, keys, row, rows_at_once, weights, running[2],
                           sums);
    }
  }
  // Rows of threads join their sums in order.
  wait_for_copies<0>();
  __syncthreads();
  if (row < rows_at_once) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) store_four(stages + (row * kHeads + h) * value_dim + column, sums[h]);
  }
  __syncthreads();
  const std::int64_t first_sum = (static_cast<std::int64_t>(blockIdx.z) * call.query_heads + first_head) * slots + slot;
  for (int i = thread; i < head_count * value_dim; i += kDecodeThreads) {
    const int head = i / value_dim, v = i % value_dim;
    float sum = 0;
    for (int r = 0; r < rows_at_once; ++r) sum += stages[(r * kHeads + head) * value_dim + v];
    args.sums[(first_sum + head * slots) * value_dim + v] = sum;
  }
  if (thread < head_count) {
    args.totals[(first_sum + thread * slots) * 2] = running[0][thread];
    args.totals[(first_sum + thread * slots) * 2 + 1] = running[1][thread];
  }
}

/// out of one head and sequence from its slots, oldest chunk first.
__global__ void __launch_bounds__(kDecodeThreads) combine_slots_kernel(DecodeAttentionArgs args) {
  __shared__ float largest_of[kMaxSlots], total_of[kMaxSlots], shares[kMaxSlots];
  float* joined = reinterpret_cast<float*>(dynamic_shared());  // [rows at once, V]
  const SoftmaxAttentionArgs& call = args.call;
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x), value_dim = call.value_dim;
  const int b = args.first_sequence + static_cast<int>(blockIdx.y), slots = args.slot_count;
  const SeenChunks seen = seen_chunks(call, b);
  const int used = seen.last - seen.first + 1 < slots ? static_cast<int>(seen.last - seen.first + 1) : slots;
  const std::int64_t first_row = (static_cast<std::int64_t>(blockIdx.y) * call.query_heads + head) * slots;
  const int first_slot = static_cast<int>(seen.first % slots);
  const auto row_of_slot = [&](int i) {
    return first_row + (first_slot + i < slots ? first_slot + i : first_slot + i - slots);
  };
  if (thread < used) {
    largest_of[thread] = args.totals[row_of_slot(thread) * 2];
    total_of[thread] = args.totals[row_of_slot(thread) * 2 + 1];
  }
  __syncthreads();
  float largest = -INFINITY, total = 0;
  for (int i = 0; i < used; ++i) largest = fmaxf(largest, largest_of[i]);
  if (thread < used) shares[thread] = exp2f(largest_of[thread] - largest);
  __syncthreads();
  for (int i = 0; i < used; ++i) total += shares[i] * total_of[i];
  const int row_threads = value_dim / 4, row = thread / row_threads, column = thread % row_threads * 4;
  const int rows_at_once = kDecodeThreads / row_threads;
  if (row < rows_at_once) {
    float sums[4] = {};
#pragma unroll 4
    for (int i = row; i < used; i += rows_at_once) {
      float v[4];
      load_four(args.sums + row_of_slot(i) * value_dim + column, v);
      for (int j = 0; j < 4; ++j) sums[j] = fmaf(shares[i], v[j], sums[j]);
    }
    store_four(joined + row * value_dim + column, sums);
  }
  __syncthreads();
  for (int v = thread; v < value_dim; v += kDecodeThreads) {
    float sum = 0;
    for (int r = 0; r < rows_at_once; ++r) sum += joined[r * value_dim + v];
    store(call.out, call.dtype, b, static_cast<std::int64_t>(head) * value_dim + v, sum / total);
  }
}

}  // namespace cairn::gpu
