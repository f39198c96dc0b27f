// softmax_attention decode: one new token for each sequence; its keys are split over blocks, their sums are combined.
//   Computes  as softmax_attention_reference.cpp, f32 throughout; the new key and value are stored on the way
//   Source    the split of keys: Flash-Decoding (2023); the running maximum: arXiv 1805.02867
//   Shapes    q [B, HQ, K], k [B, HKV, K], v [B, HKV, V], out [B, HQ, V]; caches f32; K in fours, V in fours
//   Launch    grid (slots, HKV * head groups, B): a block has up to kHeads query heads of one key head, and the chunks
//   of
//             128 or 256 keys with chunk % slots = its slot. A second kernel joins the slots that hold something.
//             Chunks and slots depend on the dims and the window: bits do not depend on the batch or how far its others
//             are
//   Memory    each group of 32 lanes has its own keys, three stages of them on their way, and its own running maximum;
//             groups meet at the end only. A lane owns up to kColumns times 4 columns of the values
//   Traffic   keys and values once for each group of heads; V + 2 floats for each head and slot
//   Measured  H200, bf16, one layer, graph replay, medians; TB/s of keys and values (a copy: 4.3)
//               heads     4K: B=1        B=8           B=64          64K: B=1       B=8            B=64
//             16/4 x 256   31 us 1.09   117 us 2.30   772 us 2.78    159 us 3.38   1165 us 3.69   9004 us 3.82
//             32/8 x 128   28 us 1.20   112 us 2.40   774 us 2.77    179 us 3.00   1320 us 3.25  10161 us 3.38
//             16/16 x 64   18 us 1.84    84 us 3.19   550 us 3.90    135 us 3.97    963 us 4.46   7503 us 4.58
#pragma once

#include "backends/gpu/kernels/any_element.cuh"
#include "backends/gpu/platform/gpu_matrix.h"

namespace cairn::gpu {

inline constexpr int kDecodeGroups = 4, kDecodeThreads = kDecodeGroups * kMatrixLanes, kDecodeStages = 3,
                     kMaxSlots = 64;

struct DecodeAttentionArgs {
  SoftmaxAttentionArgs call;
  int first_sequence;  ///< blocks in z begin there
  int slot_count, head_groups;
  int chunk_log2;    ///< of the keys of a chunk
  bool is_stored;    ///< the new keys and values lie in the caches already
  bool has_values;   ///< false: a value is the first V floats of its key
  int keys_at_once;  ///< of a group: a power of two, at most a chunk's divided by kDecodeGroups
  float* sums;       ///< [B of this launch, HQ, slots, V]: weighted values
  float* totals;     ///< [B of this launch, HQ, slots, 2]: largest score in powers of 2, sum of weights
};

/// Chunks of positions that a token sees.
struct SeenChunks {
  std::int64_t position, oldest, first, last;
};

__device__ inline SeenChunks seen_chunks(const DecodeAttentionArgs& args, int b) {
  const std::int64_t position = args.call.starts[b], window = args.call.window;
  const std::int64_t oldest = window > 0 && position >= window ? position - window + 1 : 0;
  return {position, oldest, oldest >> args.chunk_log2, position >> args.chunk_log2};
}

/// Where a block's floats lie in shared memory. Rows of keys are padded, so that neighbouring keys use different banks.
struct DecodeLayout {
  int key_stride, stage, weights, queries, running, total;

  __host__ __device__ DecodeLayout(int heads, int keys, int key_dim, int value_dim, bool has_values) {
    key_stride = key_dim + kMatrixLanes / keys * 4;
    stage = keys * (has_values ? key_stride + value_dim : key_stride);
    const int stages = kDecodeGroups * kDecodeStages * stage,
              joined = kDecodeThreads * heads * ((value_dim + 127) / 128) * 4;
    weights = stages > joined ? stages : joined;
    queries = weights + kDecodeGroups * keys * heads;
    running = queries + heads * key_dim;
    total = running + 2 * kDecodeGroups * heads;
  }
};

/// How 32 lanes share rows of `dim` floats: lane's first row and column, and how many rows they reach at once.
struct RowLanes {
  int row, column, rows_at_once;

  __device__ RowLanes(int lane, int dim) {
    const int pieces = dim / 4 < kMatrixLanes ? dim / 4 : kMatrixLanes;
    row = lane / pieces, column = lane % pieces * 4, rows_at_once = kMatrixLanes / pieces;
  }
};

/// A group's walk over its keys: a quarter of every slot_count-th chunk.
struct KeyWalk {
  std::int64_t chunk;
  int key, end;  ///< of the chunk

  __device__ std::int64_t first(int chunk_log2) const { return (chunk << chunk_log2) + key; }
  __device__ void advance(const DecodeAttentionArgs& args) {
    key += args.keys_at_once;
    if (key < end) return;
    key -= (1 << args.chunk_log2) / kDecodeGroups;
    chunk += args.slot_count;
  }
};

/// The cached keys or values of one head, and the new one where it is not among them.
struct RowSource {
  float* cached;  ///< of ring row 0
  std::int64_t row_stride;
  ConstRows fresh;
  std::int64_t fresh_column;
  int dim, capacity;
  DType type;
  bool has_fresh;
  bool stores;  ///< this block, and no other, puts the new row into the cache
};

/// Keys of one step of a group. Plain: cached one after the other, seen, and not the new one.
struct StepKeys {
  std::int64_t first;  ///< position
  int count, ring_first;
  bool is_plain;
};

/// A step's rows to shared memory: plain ones, and up to 128 * kPieces columns.
template <int kPieces>
__device__ void copy_plain_rows(const RowSource& source, const StepKeys& step, const RowLanes& lanes, int to_stride,
                                float* to) {
  const float* from = source.cached + (step.ring_first + lanes.row) * source.row_stride + lanes.column;
  to += lanes.row * to_stride + lanes.column;
  const std::int64_t from_step = source.row_stride * lanes.rows_at_once;
#pragma unroll 4
  for (int row = lanes.row; row < step.count; row += lanes.rows_at_once) {
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      if (lanes.column + c * kMatrixLanes * 4 < source.dim)
        copy_16_async(to + c * kMatrixLanes * 4, from + c * kMatrixLanes * 4, true);
    }
    from += from_step, to += to_stride * lanes.rows_at_once;
  }
}

/// Any rows; zeros where the token does not see.
__device__ inline void copy_any_rows(const RowSource& source, const SeenChunks& seen, int b, const StepKeys& step,
                                     const RowLanes& lanes, int to_stride, float* to) {
  for (int row = lanes.row; row < step.count; row += lanes.rows_at_once) {
    const std::int64_t position = step.first + row;
    float* cached = source.cached + (step.ring_first + row) % source.capacity * source.row_stride;
    const bool is_new = position == seen.position && source.has_fresh;
    for (int i = lanes.column; i < source.dim; i += kMatrixLanes * 4) {
      if (is_new) {
        float x[4];
        for (int j = 0; j < 4; ++j) x[j] = load(source.fresh, source.type, b, source.fresh_column + i + j);
        store_four(to + row * to_stride + i, x);
        if (source.stores) store_four(cached + i, x);
      } else {
        copy_16_async(to + row * to_stride + i, cached + i, position >= seen.oldest && position <= seen.position);
      }
    }
  }
}

template <int kPieces>
__device__ void copy_rows(const RowSource& source, const SeenChunks& seen, int b, const StepKeys& step,
                          const RowLanes& lanes, int to_stride, float* to) {
  if (lanes.row >= lanes.rows_at_once) return;
  if (step.is_plain) return copy_plain_rows<kPieces>(source, step, lanes, to_stride, to);
  copy_any_rows(source, seen, b, step, lanes, to_stride, to);
}

/// What a group has gathered.
template <int kHeads, int kColumns>
struct DecodeSums {
  float largest[kHeads];  ///< score in powers of 2
  float total[kHeads];    ///< over this lane's keys
  float values[kHeads][kColumns][4];
};

/// Scores of the group's keys, `lanes` neighbouring lanes for each; then their weights, to shared memory [keys,
/// kHeads].
template <int kHeads, int kColumns>
__device__ void weigh_own_keys(const float* queries, const float* keys, const DecodeLayout& layout, int key_dim,
                               int lanes, bool is_seen, float* weights, DecodeSums<kHeads, kColumns>& sums) {
  const int in_group = static_cast<int>(threadIdx.x) % kMatrixLanes, key = in_group / lanes, lane = in_group % lanes;
  float scores[kHeads] = {};
#pragma unroll 4
  for (int i = lane * 4; i < key_dim; i += lanes * 4) {
    float k[4];
    load_four(keys + key * layout.key_stride + i, k);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float q[4];
      load_four(queries + h * key_dim + i, q);
#pragma unroll
      for (int j = 0; j < 4; ++j) scores[h] = fmaf(q[j], k[j], scores[h]);
    }
  }
  for (int distance = 1; distance < lanes; distance *= 2) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) scores[h] += shuffle_xor(scores[h], distance);
  }
  float largest[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) largest[h] = scores[h] = is_seen ? scores[h] : -INFINITY;
  for (int distance = lanes; distance < kMatrixLanes; distance *= 2) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) largest[h] = fmaxf(largest[h], shuffle_xor(largest[h], distance));
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    largest[h] = fmaxf(largest[h], sums.largest[h]);
    const float base = largest[h] == -INFINITY ? 0.0f : largest[h];
    const float shrink = exp2f(sums.largest[h] - base), weight = exp2f(scores[h] - base);
    sums.largest[h] = largest[h];
    sums.total[h] = sums.total[h] * shrink + weight;
    if (lane == 0) weights[key * kHeads + h] = weight;
    if (shrink == 1.0f) continue;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums.values[h][c][j] *= shrink;
    }
  }
}

template <int kHeads, int kColumns>
__device__ void add_own_values(const float* values, int stride, int value_dim, int keys, const RowLanes& lanes,
                               const float* weights, DecodeSums<kHeads, kColumns>& sums) {
  if (lanes.row >= lanes.rows_at_once) return;
#pragma unroll 4
  for (int row = lanes.row; row < keys; row += lanes.rows_at_once) {
    float weight[kHeads];
    if constexpr (kHeads % 4 == 0) {
#pragma unroll
      for (int h = 0; h < kHeads; h += 4) {
        float four[4];
        load_four(weights + row * kHeads + h, four);
#pragma unroll
        for (int j = 0; j < 4; ++j) weight[h + j] = four[j];
      }
    } else {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) weight[h] = weights[row * kHeads + h];
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (lanes.column + c * kMatrixLanes * 4 >= value_dim) continue;
      float v[4];
      load_four(values + row * stride + lanes.column + c * kMatrixLanes * 4, v);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums.values[h][c][j] = fmaf(weight[h], v[j], sums.values[h][c][j]);
      }
    }
  }
}

/// The groups' sums, relative to the block's largest scores, become this slot's.
template <int kHeads, int kColumns>
__device__ void join_groups(const DecodeAttentionArgs& args, const DecodeLayout& layout, int lanes_per_key,
                            int head_count, std::int64_t first_row, DecodeSums<kHeads, kColumns>& sums) {
  const int thread = static_cast<int>(threadIdx.x), group = thread / kMatrixLanes, lane = thread % kMatrixLanes;
  const int value_dim = args.call.value_dim, slots = args.slot_count;
  float* joined = reinterpret_cast<float*>(dynamic_shared());
  float* largest_of = joined + layout.running;  // [groups, kHeads]
  float* total_of = largest_of + kDecodeGroups * kHeads;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float total = sums.total[h];
    for (int distance = lanes_per_key; distance < kMatrixLanes; distance *= 2) total += shuffle_xor(total, distance);
    if (lane == 0) largest_of[group * kHeads + h] = sums.largest[h], total_of[group * kHeads + h] = total;
  }
  wait_for_copies<0>();
  __syncthreads();
  const RowLanes lanes(lane, value_dim);
  const int rows = kDecodeGroups * lanes.rows_at_once, row = group * lanes.rows_at_once + lanes.row;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float largest = largest_of[h];
    for (int g = 1; g < kDecodeGroups; ++g) largest = fmaxf(largest, largest_of[g * kHeads + h]);
    const float share = exp2f(sums.largest[h] - largest);
    if (thread == 0 && h < head_count) {
      float total = 0;
      for (int g = 0; g < kDecodeGroups; ++g)
        total += exp2f(largest_of[g * kHeads + h] - largest) * total_of[g * kHeads + h];
      args.totals[(first_row + h * slots) * 2] = largest;
      args.totals[(first_row + h * slots) * 2 + 1] = total;
    }
    if (lanes.row >= lanes.rows_at_once) continue;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = lanes.column + c * kMatrixLanes * 4;
      if (column >= value_dim) break;
#pragma unroll
      for (int j = 0; j < 4; ++j) sums.values[h][c][j] *= share;
      store_four(joined + (row * kHeads + h) * value_dim + column, sums.values[h][c]);
    }
  }
  __syncthreads();
  for (int i = thread; i < head_count * value_dim; i += kDecodeThreads) {
    const int head = i / value_dim, v = i % value_dim;
    float sum = 0;
    for (int r = 0; r < rows; ++r) sum += joined[(r * kHeads + head) * value_dim + v];
    args.sums[(first_row + head * slots) * value_dim + v] = sum;
  }
}

template <int kHeads, int kColumns>
__global__ void __launch_bounds__(kDecodeThreads, 2) softmax_attention_decode_kernel(DecodeAttentionArgs args) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const SoftmaxAttentionArgs& call = args.call;
  const int thread = static_cast<int>(threadIdx.x), group = thread / kMatrixLanes, lane = thread % kMatrixLanes;
  const int kv_head = static_cast<int>(blockIdx.y) / args.head_groups, slots = args.slot_count;
  const int head_group = static_cast<int>(blockIdx.y) % args.head_groups,
            shared_heads = call.query_heads / call.kv_heads;
  const int first_head = kv_head * shared_heads + head_group * kHeads;
  const int head_count = shared_heads - head_group * kHeads < kHeads ? shared_heads - head_group * kHeads : kHeads;
  const int b = args.first_sequence + static_cast<int>(blockIdx.z), slot = static_cast<int>(blockIdx.x);
  const SeenChunks seen = seen_chunks(args, b);
  const int first_slot = static_cast<int>(static_cast<std::uint32_t>(seen.first) % static_cast<std::uint32_t>(slots));
  const std::int64_t chunk = seen.first + (slot < first_slot ? slot + slots - first_slot : slot - first_slot);
  if (chunk > seen.last) return;

  const int keys = args.keys_at_once, key_dim = call.key_dim, value_dim = call.value_dim,
            lanes_per_key = kMatrixLanes / keys;
  const DecodeLayout layout(kHeads, keys, key_dim, value_dim, args.has_values);
  const int first_value = args.has_values ? keys * layout.key_stride : 0;  // of a stage
  const int value_stride = args.has_values ? value_dim : layout.key_stride;
  float* shared = reinterpret_cast<float*>(dynamic_shared());
  float* stages = shared + group * kDecodeStages * layout.stage;
  float* weights = shared + layout.weights + group * keys * kHeads;
  float* queries = shared + layout.queries;
  const KvCache cache = call.caches[b];
  const auto source = [&](float* cached, const ConstRows& fresh, int dim) {
    return RowSource{cached + kv_head * dim,
                     static_cast<std::int64_t>(call.kv_heads) * dim,
                     fresh,
                     static_cast<std::int64_t>(kv_head) * dim,
                     dim,
                     cache.capacity,
                     call.dtype,
                     !args.is_stored,
                     head_group == 0};
  };
  const RowSource key_source = source(cache.keys, call.k, key_dim),
                  value_source = source(cache.values, call.v, value_dim);
  constexpr int kPieces = kColumns <= 2 ? kColumns : 2 * kColumns;  // of a key
  const RowLanes key_lanes(lane, key_dim), value_lanes(lane, value_dim);
  const int quarter = (1 << args.chunk_log2) / kDecodeGroups;
  KeyWalk copied = {chunk, group * quarter, (group + 1) * quarter}, walk = copied;
  int copy_stage = 0;
  const auto copy_step = [&] {
    const std::int64_t first = copied.first(args.chunk_log2);
    if (first - group * quarter <= seen.position) {
      float* stage = stages + copy_stage * layout.stage;
      const auto ring_first = static_cast<int>(first < cache.capacity ? first : first % cache.capacity);
      const bool is_plain = first >= seen.oldest && first + keys + (args.is_stored ? 0 : 1) <= seen.position + 1 &&
                            ring_first + keys <= cache.capacity;
      const StepKeys step = {first, keys, ring_first, is_plain};
      copy_rows<kPieces>(key_source, seen, b, step, key_lanes, layout.key_stride, stage);
      if (args.has_values)
        copy_rows<kPieces>(value_source, seen, b, step, value_lanes, value_stride, stage + first_value);
    }
    commit_copies();
    copied.advance(args);
    copy_stage = copy_stage + 1 < kDecodeStages ? copy_stage + 1 : 0;
  };
  for (int step = 0; step < kDecodeStages - 1; ++step) copy_step();
  for (int i = thread; i < kHeads * key_dim; i += kDecodeThreads) {
    const std::int64_t column = static_cast<std::int64_t>(first_head) * key_dim + i;
    queries[i] =
        i < head_count * key_dim ? load(call.q, call.dtype, b, column) * (call.scale * 1.44269504088896340736f) : 0.0f;
  }
  __syncthreads();
  DecodeSums<kHeads, kColumns> sums = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) sums.largest[h] = -INFINITY;
  // All groups take the same number of steps.
  for (int stage_index = 0; walk.first(args.chunk_log2) - group * quarter <= seen.position; walk.advance(args)) {
    wait_for_copies<kDecodeStages - 2>();
    warp_barrier();
    copy_step();
    const float* stage = stages + stage_index * layout.stage;
    const std::int64_t position = walk.first(args.chunk_log2) + lane / lanes_per_key;
    weigh_own_keys(queries, stage, layout, key_dim, lanes_per_key, position >= seen.oldest && position <= seen.position,
                   weights, sums);
    warp_barrier();
    add_own_values(stage + first_value, value_stride, value_dim, keys, value_lanes, weights, sums);
    stage_index = stage_index + 1 < kDecodeStages ? stage_index + 1 : 0;
  }
  const std::int64_t first_row = (static_cast<std::int64_t>(blockIdx.z) * call.query_heads + first_head) * slots + slot;
  join_groups(args, layout, lanes_per_key, head_count, first_row, sums);
}

/// out of one head and sequence from its slots, oldest chunk first.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) combine_slots_kernel(DecodeAttentionArgs args) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  __shared__ float largest_of[kMaxSlots], total_of[kMaxSlots], shares[kMaxSlots];
  float* joined = reinterpret_cast<float*>(dynamic_shared());  // [rows at once, V]
  const SoftmaxAttentionArgs& call = args.call;
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x), value_dim = call.value_dim;
  const int b = args.first_sequence + static_cast<int>(blockIdx.y), slots = args.slot_count;
  const SeenChunks seen = seen_chunks(args, b);
  const int used = seen.last - seen.first + 1 < slots ? static_cast<int>(seen.last - seen.first + 1) : slots;
  const std::int64_t first_row = (static_cast<std::int64_t>(blockIdx.y) * call.query_heads + head) * slots;
  const int first_slot = static_cast<int>(static_cast<std::uint32_t>(seen.first) % static_cast<std::uint32_t>(slots));
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
  const int rows_at_once = kThreads / row_threads;
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
  for (int v = thread; v < value_dim; v += kThreads) {
    float sum = 0;
    for (int r = 0; r < rows_at_once; ++r) sum += joined[r * value_dim + v];
    store(call.out, call.dtype, b, static_cast<std::int64_t>(head) * value_dim + v, sum / total);
  }
}

}  // namespace cairn::gpu
