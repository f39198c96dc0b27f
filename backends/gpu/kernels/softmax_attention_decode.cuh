// softmax_attention decode: one new token for each sequence; its keys are split over blocks, their sums are combined.
//   Computes  as softmax_attention_reference.cpp, f32 throughout; the new key and value are stored on the way
//   Source    the split of keys: Flash-Decoding (2023); the running maximum: arXiv 1805.02867
//   Shapes    q [B, HQ, K], k [B, HKV, K], v [B, HKV, V], out [B, HQ, V]; caches f32; K in fours, V in fours
//   Launch    grid (slots, HKV * head groups, B): a block has up to kHeads query heads of one key head, and the chunks
//             with chunk % slots = its slot. A second kernel joins the slots that hold something. A sequence's chunks
//             grow with its keys, from one step of a block to 128 or 256 keys: the blocks of short contexts are many.
//             They depend on the heads, the dims, the window and its own position: never on the batch
//   Memory    each group of 32 lanes has its own keys, three stages of them on their way, and its own running maximum;
//             groups meet at the end only. A lane owns up to kColumns times 4 columns of the values
//   Traffic   keys and values once for each group of heads; V + 2 floats for each head and slot
//   Measured  H200, bf16, one layer with combine_slots, graph replay, medians, us; at last TB/s (a copy: 4.3)
//             keys           64    130    512   1024   4096  16384  65536
//             16/4 x 256    6.8    7.0    9.7   14.3   18.2   41.2  133.2  4.03   B = 64:  28  38   83  143  521  1992
//             32/8 x 128    6.9    7.4    8.2   10.6   16.7   43.9  134.3  4.00            31  56   98  150  512  2005
//             16/16 x 64    5.8    6.3    7.0    9.2   14.0   40.5  129.2  4.15            26  50   80  132  489  1931
//   Tried     (16/4 x 256) dims of run time: 9.9, 10.0, 12.2, 16.9, 24.3, 46.3, 148; those and chunks of 128 keys for
//             all: 33, 22, 25, 27, 30, 56, 158, B = 64: 41, 55, 113, 210, 772, 2575; at 512 keys up to 16 short
//             chunks 8.2 and 99 with B = 64, up to 4: 13.4 and 80
#pragma once

#include "backends/gpu/kernels/softmax_attention_copy.cuh"

namespace cairn::gpu {

inline constexpr int kDecodeGroups = 4, kDecodeThreads = kDecodeGroups * kMatrixLanes, kDecodeStages = 3;

/// Where a block's floats lie in shared memory. Rows of keys are padded, so that neighbouring keys use different banks.
struct DecodeLayout {
  int key_stride, stage, weights, queries, running, total;

  __host__ __device__ DecodeLayout(int heads, int keys, int key_dim, int value_dim) {
    key_stride = key_dim + kMatrixLanes / keys * 4;
    stage = keys * (key_stride + value_dim);
    const int stages = kDecodeGroups * kDecodeStages * stage,
              joined = kDecodeThreads * heads * ((value_dim + 127) / 128) * 4;
    weights = stages > joined ? stages : joined;
    queries = weights + kDecodeGroups * keys * heads;
    running = queries + heads * key_dim;
    total = running + 2 * kDecodeGroups * heads;
  }
};

/// Keys that a group reads at once where keys and values have kDim columns and a stage has 8 KB.
constexpr int keys_of_step(int dim) { return dim >= 256 ? 4 : dim >= 128 ? 8 : 16; }

/// A group's walk over its keys: a quarter of every slot_count-th chunk.
struct KeyWalk {
  std::int64_t chunk;
  int key, end;  ///< of the chunk
  int log2;      ///< of its keys

  __device__ std::int64_t first() const { return (chunk << log2) + key; }
  __device__ void advance(int keys, int slots) {
    key += keys;
    if (key < end) return;
    key -= (1 << log2) / kDecodeGroups;
    chunk += slots;
  }
};

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
__device__ void join_groups(const DecodeAttentionArgs& args, const DecodeLayout& layout, int value_dim,
                            int lanes_per_key, int head_count, std::int64_t first_row,
                            DecodeSums<kHeads, kColumns>& sums) {
  const int thread = static_cast<int>(threadIdx.x), group = thread / kMatrixLanes, lane = thread % kMatrixLanes;
  const int slots = args.slot_count;
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

/// A block's queries, 16 bytes at a time: on their way while the first keys are asked for.
template <int kHeads>
struct HeldQueries {
  static constexpr int kPieces = (kHeads * 256 / 8 + kDecodeThreads - 1) / kDecodeThreads;
  float x[kPieces][8];

  __device__ static int first(int p) { return (static_cast<int>(threadIdx.x) + p * kDecodeThreads) * 8; }
  __device__ void load(const SoftmaxAttentionArgs& call, int b, std::int64_t column, int count) {
    const std::int64_t from = b * call.q.stride + column;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      for (int j = 0; j < 8; ++j) x[p][j] = 0;
      if (first(p) < count) load_eight(call.q.data, call.dtype, from + first(p), x[p]);
    }
  }
  __device__ void store(int key_dim, float scale, float* queries) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      for (int j = 0; j < 8; ++j) x[p][j] *= scale;
      if (first(p) < kHeads * key_dim) store_eight(queries, DType::kF32, first(p), x[p]);
    }
  }
};

/// kDim: of keys and of values, whose steps then fill 8 KB; 0: as the arguments say.
template <int kHeads, int kColumns, int kDim>
__global__ void __launch_bounds__(kDecodeThreads, 2) softmax_attention_decode_kernel(DecodeAttentionArgs args) {
  let_next_kernel_start();
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
  const KvCache cache = call.caches[b];
  wait_for_previous_kernel();  // positions and caches are no kernel's work
  if (chunk > seen.last) return;

  const int keys = kDim > 0 ? keys_of_step(kDim) : args.keys_at_once, lanes_per_key = kMatrixLanes / keys;
  const int key_dim = kDim > 0 ? kDim : call.key_dim, value_dim = kDim > 0 ? kDim : call.value_dim;
  const DecodeLayout layout(kHeads, keys, key_dim, value_dim);
  const int first_value = keys * layout.key_stride;  // of a stage
  float* shared = reinterpret_cast<float*>(dynamic_shared());
  float* stages = shared + group * kDecodeStages * layout.stage;
  float* weights = shared + layout.weights + group * keys * kHeads;
  float* queries = shared + layout.queries;
  HeldQueries<kHeads> held;
  if (args.in_eights) held.load(call, b, static_cast<std::int64_t>(first_head) * key_dim, head_count * key_dim);
  const auto source = [&](float* cached, const ConstRows& fresh, int dim) {
    return RowSource{cached + kv_head * dim,
                     static_cast<std::int64_t>(call.kv_heads) * dim,
                     fresh,
                     static_cast<std::int64_t>(kv_head) * dim,
                     dim,
                     cache.capacity,
                     call.dtype,
                     args.in_eights,
                     head_group == 0};
  };
  const RowSource key_source = source(cache.keys, call.k, key_dim),
                  value_source = source(cache.values, call.v, value_dim);
  constexpr int kPieces = kColumns <= 2 ? kColumns : 2 * kColumns;  // of a key
  const RowLanes key_lanes(lane, key_dim), value_lanes(lane, value_dim);
  const int quarter = (1 << seen.log2) / kDecodeGroups;
  KeyWalk copied = {chunk, group * quarter, (group + 1) * quarter, seen.log2}, walk = copied;
  int copy_stage = 0;
  const auto copy_step = [&] {
    const std::int64_t first = copied.first();
    if (first - group * quarter <= seen.position) {
      float* stage = stages + copy_stage * layout.stage;
      const auto ring_first = static_cast<int>(first < cache.capacity ? first : first % cache.capacity);
      const bool is_plain = first >= seen.oldest && first + keys <= seen.position &&
                            ring_first + keys <= cache.capacity;
      const StepKeys step = {first, keys, ring_first, is_plain};
      copy_rows<kPieces>(key_source, seen, b, step, key_lanes, layout.key_stride, stage);
      copy_rows<kPieces>(value_source, seen, b, step, value_lanes, value_dim, stage + first_value);
    }
    commit_copies();
    copied.advance(keys, args.slot_count);
    copy_stage = copy_stage + 1 < kDecodeStages ? copy_stage + 1 : 0;
  };
  for (int step = 0; step < kDecodeStages - 1; ++step) copy_step();
  const float scale = call.scale * 1.44269504088896340736f;
  if (args.in_eights) held.store(key_dim, scale, queries);
  for (int i = thread; i < kHeads * key_dim && !args.in_eights; i += kDecodeThreads) {
    const std::int64_t column = static_cast<std::int64_t>(first_head) * key_dim + i;
    queries[i] = i < head_count * key_dim ? load(call.q, call.dtype, b, column) * scale : 0.0f;
  }
  __syncthreads();
  DecodeSums<kHeads, kColumns> sums = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) sums.largest[h] = -INFINITY;
  // All groups take the same number of steps.
  for (int stage_index = 0; walk.first() - group * quarter <= seen.position; walk.advance(keys, args.slot_count)) {
    wait_for_copies<kDecodeStages - 2>();
    warp_barrier();
    copy_step();
    const float* stage = stages + stage_index * layout.stage;
    const std::int64_t position = walk.first() + lane / lanes_per_key;
    weigh_own_keys(queries, stage, layout, key_dim, lanes_per_key, position >= seen.oldest && position <= seen.position,
                   weights, sums);
    warp_barrier();
    add_own_values(stage + first_value, value_dim, value_dim, keys, value_lanes, weights, sums);
    stage_index = stage_index + 1 < kDecodeStages ? stage_index + 1 : 0;
  }
  const std::int64_t first_row = (static_cast<std::int64_t>(blockIdx.z) * call.query_heads + first_head) * slots + slot;
  join_groups(args, layout, value_dim, lanes_per_key, head_count, first_row, sums);
}

}  // namespace cairn::gpu
