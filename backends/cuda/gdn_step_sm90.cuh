// gdn_step: a GDN decode from its projections to its gated output, one token of each sequence; K = V = 128, bf16.
//   Computes  delta_inputs, gdn_decode and gated_rms_norm, with their sums in their order and roundings: their bits
//   Shapes    x [B, q | k | v], gate, out [B, HV, 128]; in place, f32: tails [B] -> [3, channels], states [B] ->
//             [HV, 128, 128]
//   Launch    grid (2 HV / HK, HK, B), 256 threads, early; the blocks of a key head are a cluster. A block has 64
//             columns of one value head, as two of gdn_decode. Every block convolves q and k: two channels a thread of
//             the first 128, one of v for the last 64, the gates in a warp that has neither
//   Traffic   as gdn_decode, and 14 KB of tails, weights and x a block from the L2. The lines of states and tails are
//             asked for before the previous kernel has ended
//   Orders    the blocks of a head send each other their sums of squares, and wait for 64 bytes. The first block of a
//             cluster stores the tails of q and k, at the end, when all have long read them
//   Measured  (us between the in_proj and the out of a layer, both included, cold states, B = 1 / 2 / 4 / 8 / 16 / 32,
//             HV 32, H200) 30.3 / 32.2 / 35.9 / 42.5 / 74.4 / 98.6; the parts 33.6 / 34.7 / 39.1 / 43.9 / 75.7 / 94.9;
//             nothing between 24.4 / 24.3 / 24.3 / 24.3 / 48.9 / 49.0. Of the 4 us that it takes, 2 go by before x and
//             the states arrive: the next product fills its rings with weights meanwhile
//   Tried     blocks of 32 columns (a fifth warp for v and the gates) 30.2 / 32.6 / 36.7 / 42.5 / 74.9 / 98.8; of 128,
//             with no exchange, 33.0 at B = 1; states as read once 30.6 / 32.2 / 36.3 / 44.6 / 79.1 / 106. With states
//             in the L2, 32 columns, B = 1: arrivals at the cluster's barrier that release (a fence of all memory)
//             31.3, relaxed 29.9; a first pass without memory while the previous kernel runs 30.0 (8 sequences: 44.0)
#pragma once

#include "backends/cuda/gdn_decode_sm90.cuh"
#include "backends/gpu/kernels/gate_values.cuh"

namespace cairn::gpu::sm90 {

inline constexpr int kStepTaps = 4, kStepMostHeads = 4, kStepSlices = 2, kStepThreads = kStepSlices * kDecodeThreads;
inline constexpr int kStepColumns = kStepSlices * kDecodeColumns, kHeadBlocks = kDim / kStepColumns;

struct GdnStepArgs {
  const unsigned short *x, *decay_in, *beta_in, *gate;  ///< bf16; x: q | k | v before the convolution
  unsigned short* out;
  float* const* tails;
  float* const* states;
  const float *conv_weight, *conv_bias, *a_log, *dt_bias, *norm_weight, *norm_bias;  ///< biases and a_log may be null
  std::int64_t x_stride, decay_stride, beta_stride, gate_stride, out_stride;
  int key_heads, channels;
  float scale, eps, decay_parameter, beta_scale, beta_out_scale;
  DecayKind decay_kind;
  FeatureMap beta_map;
  GateKind gate_kind;
};

struct StepShared {
  uint4 keys[2 * kDim / 8];          ///< q | k after the convolution, bf16
  float4 squares[kDim / 32];         ///< of the head's outputs: sums of 8 columns
  float2 tail[kStepTaps - 1][kDim];  ///< of q | k: what the next step wants
  float4 partial[kStepSlices][kDecodeWarps][2 * kDecodeColumns / 4 + 1];
  float4 values[kStepColumns / 4];
  float decay, beta;
  alignas(8) std::uint64_t arrived;
};

__device__ __forceinline__ float convolve(const float4& weight, float bias, float oldest, float older, float old,
                                          float x) {
  float y = bias;
  y += weight.x * oldest;
  y += weight.y * older;
  y += weight.z * old;
  y += weight.w * x;
  return silu(y);
}

/// This thread's rows of q and k, each divided by its length and rounded; `keys`: q | k.
__device__ __forceinline__ void normalise_rows(const uint4* keys, int lane, int group,
                                               std::uint32_t (&query)[kDecodeRows / 2],
                                               std::uint32_t (&key)[kDecodeRows / 2]) {
  const auto eights = [&](int piece) { return RowEights(reinterpret_cast<const unsigned short*>(keys + piece)); };
  const RowEights mine = eights(lane), raw_query = eights(group), raw_key = eights(kDim / 8 + group);
  float squares = 0;  // the lower 16 lanes have q's sum, the upper k's
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += mine[i] * mine[i];
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, distance);
  const float factor = 1 / sqrtf(squares + 1e-6f);
  const float query_factor = __shfl_sync(0xffffffffu, factor, 0), key_factor = __shfl_sync(0xffffffffu, factor, 16);
#pragma unroll
  for (int i = 0; i < kDecodeRows; i += 2) {
    query[i / 2] = pack_bf16(raw_query[i] * query_factor, raw_query[i + 1] * query_factor);
    key[i / 2] = pack_bf16(raw_key[i] * key_factor, raw_key[i + 1] * key_factor);
  }
}

/// Sum of eight outputs' squares, of this thread's four columns and its neighbour's before them: for odd quads.
__device__ __forceinline__ float sum_of_eight_squares(const float4& out) {
  float squares = 0;
#pragma unroll
  for (int c = 0; c < 4; ++c) squares += (&out.x)[c] * (&out.x)[c];
  squares = __shfl_xor_sync(0xffffffffu, squares, 1);
#pragma unroll
  for (int c = 0; c < 4; ++c) squares += (&out.x)[c] * (&out.x)[c];
  return squares;
}
/// The head's: in pairs at distances of 8, 4, 2 and 1.
__device__ __forceinline__ float sum_of_squares(const float4* squares) {
  const float4 a = squares[0], b = squares[1], c = squares[2], d = squares[3];
  return (((a.x + c.x) + (b.x + d.x)) + ((a.z + c.z) + (b.z + d.z))) +
         (((a.y + c.y) + (b.y + d.y)) + ((a.w + c.w) + (b.w + d.w)));
}

__global__ void __launch_bounds__(kStepThreads, 2) gdn_step_kernel(const __grid_constant__ GdnStepArgs a) {
  __shared__ StepShared shared;
  let_next_kernel_start();
  const int thread = threadIdx.x, rank = blockIdx.x, key_head = blockIdx.y, b = blockIdx.z, lane = thread % 32;
  const int h = key_head * (gridDim.x / kHeadBlocks) + rank / kHeadBlocks,
            first_column = rank % kHeadBlocks * kStepColumns;
  const int slice = thread / kDecodeThreads, warp = thread % kDecodeThreads / 32, group = thread % kDecodeThreads / 8;
  const int quad = thread % 8, first_row = group * kDecodeRows,
            column = first_column + slice * kDecodeColumns + 4 * quad;
  const bool has_pair = thread < kDim, has_gates = thread == kDim, has_value = thread >= kStepThreads - kStepColumns;
  const int pair = (thread / (kDim / 2) * a.key_heads + key_head) * kDim + 2 * (thread % (kDim / 2));
  const int place = thread - (kStepThreads - kStepColumns), value = (2 * a.key_heads + h) * kDim + first_column + place;
  const int mine = column + lane / 8;  // the column of the output that a lane of a slice's first warp has
  float* const tails = a.tails[b];
  float* const state = a.states[b] + (h * kDim + first_row) * kDim + column;
  const float4* const weights = reinterpret_cast<const float4*>(a.conv_weight);
  float4 pair_weight[2], value_weight;
  float2 pair_bias = {};
  float value_bias = 0, a_log = 0, dt_bias = 0, norm_weight = 0, norm_bias = 0;
  if (has_pair) pair_weight[0] = weights[pair], pair_weight[1] = weights[pair + 1];
  if (has_value) value_weight = weights[value];
  if (has_pair && a.conv_bias) pair_bias = make_float2(a.conv_bias[pair], a.conv_bias[pair + 1]);
  if (has_value && a.conv_bias) value_bias = a.conv_bias[value];
  if (has_gates && a.a_log) a_log = a.a_log[h];
  if (has_gates && a.dt_bias) dt_bias = a.dt_bias[h];
  if (warp == 0) norm_weight = a.norm_weight[mine];
  if (warp == 0 && a.norm_bias) norm_bias = a.norm_bias[mine];
  prefetch_line(a.states[b] + (h * kDim + thread % kDim) * kDim + first_column + slice * kDecodeColumns);
#pragma unroll
  for (int j = 0; j < kStepTaps - 1; ++j) {
    if (has_pair) prefetch_line(tails + j * a.channels + pair);
    if (has_value) prefetch_line(tails + j * a.channels + value);
  }
  const std::uint32_t arrived = shared_address(&shared.arrived);
  if (thread == 0) {
    barrier_init(arrived, 1);
    fence_barrier_init();
    barrier_expect(arrived, sizeof shared.squares);
  }
  __syncwarp();
  cluster_arrive(), cluster_wait();  // nobody sends before the barriers are there
  wait_for_previous_kernel();

  const unsigned short* const x = a.x + b * a.x_stride;
  std::uint32_t pair_x = 0, value_x = 0, gate = 0, decay_in = 0, beta_in = 0;
  float2 pair_tail[kStepTaps - 1] = {};
  float value_tail[kStepTaps - 1] = {};
  if (has_pair) {
    pair_x = *reinterpret_cast<const std::uint32_t*>(x + pair);
#pragma unroll
    for (int j = 0; j < kStepTaps - 1; ++j)
      pair_tail[j] = *reinterpret_cast<const float2*>(tails + j * a.channels + pair);
  }
  if (has_value) {
    value_x = x[value];
#pragma unroll
    for (int j = 0; j < kStepTaps - 1; ++j) value_tail[j] = tails[j * a.channels + value];
  }
  if (has_gates) decay_in = a.decay_in[b * a.decay_stride + h], beta_in = a.beta_in[b * a.beta_stride + h];
  float4 s[kDecodeRows];
#pragma unroll
  for (int i = 0; i < kDecodeRows; ++i) s[i] = *reinterpret_cast<const float4*>(state + i * kDim);
  if (warp == 0 && a.gate_kind != GateKind::kNone) gate = a.gate[b * a.gate_stride + h * kDim + mine];

  if (has_gates) {
    shared.decay = expf(log_decay(a.decay_kind, a.decay_parameter, low_bf16(decay_in) + dt_bias, a_log));
    shared.beta = map_element(a.beta_map, low_bf16(beta_in) * a.beta_scale) * a.beta_out_scale;
  }
  if (has_pair) {
    const float2 now = make_float2(low_bf16(pair_x), high_bf16(pair_x));
    const float low = convolve(pair_weight[0], pair_bias.x, pair_tail[0].x, pair_tail[1].x, pair_tail[2].x, now.x);
    const float high = convolve(pair_weight[1], pair_bias.y, pair_tail[0].y, pair_tail[1].y, pair_tail[2].y, now.y);
    reinterpret_cast<std::uint32_t*>(shared.keys)[thread] = pack_bf16(low, high);
    if (rank == 0)
      shared.tail[0][thread] = pair_tail[1], shared.tail[1][thread] = pair_tail[2], shared.tail[2][thread] = now;
  }
  if (has_value) {
    const float now = low_bf16(value_x);
    const float y = convolve(value_weight, value_bias, value_tail[0], value_tail[1], value_tail[2], now);
    reinterpret_cast<float*>(shared.values)[place] = low_bf16(pack_bf16(y, 0));
    tails[value] = value_tail[1], tails[a.channels + value] = value_tail[2], tails[2 * a.channels + value] = now;
  }
  __syncthreads();
  cluster_arrive();  // this block has read the tails of q and k

  std::uint32_t key[kDecodeRows / 2], query[kDecodeRows / 2];
  normalise_rows(shared.keys, lane, group, query, key);
  const auto element = [](const std::uint32_t(&pairs)[kDecodeRows / 2], int i) {
    return i % 2 ? high_bf16(pairs[i / 2]) : low_bf16(pairs[i / 2]);
  };
  auto& partial = shared.partial[slice];
  const float decay = shared.decay, beta = shared.beta;
  float qk = 0;
  float4 recalled = {}, out = {};
#pragma unroll
  for (int i = 0; i < kDecodeRows; ++i) {
    qk += element(query, i) * element(key, i);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float& cell = (&s[i].x)[c];
      cell *= decay;
      (&recalled.x)[c] += cell * element(key, i);
      (&out.x)[c] += cell * element(query, i);
    }
  }
  qk = sum_row_groups(qk);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    (&recalled.x)[c] = sum_row_groups((&recalled.x)[c]), (&out.x)[c] = sum_row_groups((&out.x)[c]);
  }
  if (lane < 8) partial[warp][quad] = recalled, partial[warp][kDecodeColumns / 4 + quad] = out;
  if (lane == 0) partial[warp][2 * kDecodeColumns / 4].x = qk;
  warpgroup_barrier(1 + slice);
  qk = 0;
  float4 sum = {}, read = {};
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) {
    const float4 some = partial[w][quad], more = partial[w][kDecodeColumns / 4 + quad];
    qk += partial[w][2 * kDecodeColumns / 4].x;
    sum.x += some.x, sum.y += some.y, sum.z += some.z, sum.w += some.w;
    read.x += more.x, read.y += more.y, read.z += more.z, read.w += more.w;
  }
  const float4 values = shared.values[slice * kDecodeColumns / 4 + quad];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float write = beta * ((&values.x)[c] - (&sum.x)[c]);
#pragma unroll
    for (int i = 0; i < kDecodeRows; ++i) (&s[i].x)[c] += element(key, i) * write;
    (&out.x)[c] = a.scale * ((&read.x)[c] + qk * write);
  }
  const std::uint32_t pairs[2] = {pack_bf16(out.x, out.y), pack_bf16(out.z, out.w)};
  out = make_float4(low_bf16(pairs[0]), high_bf16(pairs[0]), low_bf16(pairs[1]), high_bf16(pairs[1]));
  if (warp == 0) {
    const float squares = sum_of_eight_squares(out);
    const int target = lane / 8;
    if (quad % 2 == 1 && target < kHeadBlocks) {
      const int to = rank / kHeadBlocks * kHeadBlocks + target;
      const std::uint32_t at = shared_address(&shared.squares[0].x + column / 8);
      send_to_block(address_in_block(at, to), squares, address_in_block(arrived, to));
    }
  }
#pragma unroll
  for (int i = 0; i < kDecodeRows; ++i) *reinterpret_cast<float4*>(state + i * kDim) = s[i];
  if (warp == 0) {
    const float factor = apply_gate(a.gate_kind, low_bf16(gate));
    const float o = lane < 8 ? out.x : lane < 16 ? out.y : lane < 24 ? out.z : out.w;
    barrier_wait_from_blocks(arrived, 0);
    const float scale = 1 / sqrtf(sum_of_squares(shared.squares) / static_cast<float>(kDim) + a.eps);
    const float y = (o * scale * norm_weight + norm_bias) * factor;
    a.out[b * a.out_stride + h * kDim + mine] = static_cast<unsigned short>(pack_bf16(y, 0));
  }
  __syncwarp();
  cluster_wait();
  if (rank == 0 && has_pair) {
#pragma unroll
    for (int j = 0; j < kStepTaps - 1; ++j)
      *reinterpret_cast<float2*>(tails + j * a.channels + pair) = shared.tail[j][thread];
  }
}

}  // namespace cairn::gpu::sm90
