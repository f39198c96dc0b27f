// sdm_walk: prefill of the slot tables, token by token, after sdm_claim.
//   Computes  as sdm_reference.cpp
//   Shapes    v, out, residual [T, H, V]; rows f32, V wide; M0 read where it lies
//   Launch    grid (column tiles, H, B); groups of 32 lanes walk alone over their columns: no block barrier
//   Per token a lane holds kRows write rows and kRows read rows of kColumns columns. Rows of the next token are on
//   their
//             way while this one is computed; those that this token writes come from shared memory instead (links).
//   Numerics  f32; the rows of a lane in order, then lanes by halves: bits do not depend on the batch or on splits
#pragma once

#include "backends/gpu/kernels/sdm_claim.cuh"

namespace cairn::gpu {

struct SdmWalkArgs {
  SdmArgs call;
  SdmScratch scratch;
  std::int32_t column_lanes;
};

/// What a lane needs to know of a token.
template <int kRows, int kColumns>
struct SdmStep {
  SdmSource write_source[kRows], write_target[kRows], read_source[kRows];
  std::int32_t write_link[kRows], read_link[kRows];
  float write_weight[kRows], write_read[kRows], read_weight[kRows];
  float value[kColumns], log_decay, beta;
};

/// Places beyond the sets, and columns beyond V, have no source, no target, no link and weight 0.
template <int kRows, int kColumns>
__device__ inline void load_step(const SdmWalkArgs& args, const SdmLane& lane, std::int64_t t, std::int64_t head,
                                 SdmStep<kRows, kColumns>& step) {
  const SdmArgs& call = args.call;
  const SdmScratch& scratch = args.scratch;
  const int writes = sdm_kept(call.write_count, call.side), reads = sdm_kept(call.read_count, call.side);
  const std::int64_t pair = t * call.head_count + head;
  const bool is_inside = lane.column < call.value_dim;
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const int i = lane.row + k * lane.row_lanes;
    const bool is_write = is_inside && i < writes, is_read = is_inside && i < reads;
    const std::int64_t w = pair * writes + i, r = pair * reads + i;
    step.write_source[k] = is_write ? scratch.write_sources[w] : 0;
    step.write_target[k] = is_write ? scratch.write_targets[w] : 0;
    step.write_link[k] = is_write ? scratch.write_links[w] : -1;
    step.write_weight[k] = is_write ? scratch.write_weights[w] : 0;
    step.write_read[k] = is_write ? scratch.write_reads[w] : 0;
    step.read_source[k] = is_read ? scratch.read_sources[r] : 0;
    step.read_link[k] = is_read ? scratch.read_links[r] : -1;
    step.read_weight[k] = is_read ? scratch.read_weights[r] : 0;
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    step.value[c] = is_inside ? load(call.v, call.dtype, t, head * call.value_dim + lane.column + c) : 0;
  }
  step.log_decay = call.log_decay[pair];
  step.beta = call.beta[pair];
}

/// Starts the loads of a token's rows that no link brings.
template <int kRows, int kColumns>
__device__ inline void load_rows(const SdmArgs& call, const SdmLane& lane, const SdmStep<kRows, kColumns>& step,
                                 float (&written)[kRows][kColumns], float (&read)[kRows][kColumns]) {
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) written[k][c] = read[k][c] = 0;
    if (step.write_source[k] && step.write_link[k] < 0) {
      load_columns(step.write_source[k], call.initial_dtype, lane.column, written[k]);
    }
    if (step.read_source[k]) load_columns(step.read_source[k], call.initial_dtype, lane.column, read[k]);
  }
}

template <int kColumns>
__device__ inline void load_tile(const float* tile, int place, int column_lanes, float (&x)[kColumns]) {
  const float* from = tile + (place * column_lanes + static_cast<int>(threadIdx.x) % column_lanes) * kColumns;
  if constexpr (kColumns == 4) {
    load_four(from, x);
  } else {
    x[0] = *from;
  }
}
template <int kColumns>
__device__ inline void store_tile(float* tile, int place, int column_lanes, const float (&x)[kColumns]) {
  store_columns(reinterpret_cast<SdmSource>(tile),
                (place * column_lanes + static_cast<int>(threadIdx.x) % column_lanes) * kColumns, x);
}

/// Predict, write, read: `written` becomes the new rows, which go to their places and to `tile`.
template <int kRows, int kColumns>
__device__ inline void run_step(const SdmWalkArgs& args, const SdmLane& lane, std::int64_t t, std::int64_t head,
                                const SdmStep<kRows, kColumns>& step, float (&written)[kRows][kColumns],
                                const float (&read)[kRows][kColumns], float* tile) {
  const SdmArgs& call = args.call;
  float residual[kColumns] = {}, out[kColumns] = {};
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const float decay = expf(call.key_weighted_decay ? step.log_decay * step.write_weight[k] : step.log_decay);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      written[k][c] *= decay;
      residual[c] += step.write_weight[k] * written[k][c];
    }
  }
  sum_rows(residual, args.column_lanes);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) residual[c] = step.value[c] - residual[c];
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      written[k][c] +=
          step.beta * step.write_weight[k] * (call.slot_residual ? step.value[c] - written[k][c] : residual[c]);
      out[c] += step.write_read[k] * written[k][c];
    }
    if (step.write_target[k]) {
      store_columns(step.write_target[k], lane.column, written[k]);
      store_tile(tile, lane.row + k * lane.row_lanes, args.column_lanes, written[k]);
    }
  }
  warp_barrier();
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) out[c] += step.read_weight[k] * read[k][c];
  }
  sum_rows(out, args.column_lanes);
  if (lane.row != 0 || lane.column >= call.value_dim) return;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const std::int64_t column = head * call.value_dim + lane.column + c;
    store(call.out, call.dtype, t, column, out[c]);
    if (call.residual.data) store(call.residual, call.dtype, t, column, residual[c]);
  }
}

template <int kRows, int kColumns>
__global__ void __launch_bounds__(128) sdm_walk_kernel(SdmWalkArgs args) {
  constexpr int kTile = kRows * kSdmGroup * kColumns;
  const SdmArgs& call = args.call;
  const int b = static_cast<int>(blockIdx.z);
  const std::int64_t head = blockIdx.y, begin = call.batch.offsets[b], end = call.batch.offsets[b + 1];
  const SdmLane lane(args.column_lanes, kColumns);
  float* tiles = reinterpret_cast<float*>(dynamic_shared()) + threadIdx.x / kSdmGroup * 2 * kTile;
  if (begin == end) return;
  SdmStep<kRows, kColumns> step, next;
  float written[kRows][kColumns], read[kRows][kColumns], next_written[kRows][kColumns], next_read[kRows][kColumns];
  load_step(args, lane, begin, head, next);
  load_rows(call, lane, next, next_written, next_read);
  for (std::int64_t t = begin; t < end; ++t) {
    step = next;
    const float* previous_tile = tiles + (t - begin + 1) % 2 * kTile;
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) written[k][c] = next_written[k][c], read[k][c] = next_read[k][c];
      if (step.write_link[k] >= 0) load_tile(previous_tile, step.write_link[k], args.column_lanes, written[k]);
      if (step.read_link[k] >= 0) load_tile(previous_tile, step.read_link[k], args.column_lanes, read[k]);
    }
    if (t + 1 < end) {
      load_step(args, lane, t + 1, head, next);
      load_rows(call, lane, next, next_written, next_read);
    }
    run_step(args, lane, t, head, step, written, read, tiles + (t - begin) % 2 * kTile);
  }
}

}  // namespace cairn::gpu
