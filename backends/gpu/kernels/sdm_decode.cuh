// sdm_decode: one token for each sequence: rows are claimed, predicted from, updated and read in one pass.
//   Computes  as sdm_reference.cpp, from the addresses of sdm_address.cuh
//   Shapes    v, out, residual [B, H, V]; rows f32, V wide; M0 read where it lies
//   Launch    grid (column tiles, H, B); groups of 32 lanes, each a tile of 4 column_lanes columns; a lane holds kRows
//   write
//             rows and kRows read rows of 4 columns in registers
//   Claims    a slot in need takes row first_free + (rows taken by the heads before) + (its rank in the head), which
//   every
//             block finds alone from the scratch; the blocks of the first tile write the table, which nobody reads
//             here. A new row is read from M0 or the shared row and written to its own place: no copy.
//   Traffic   H (W (row in + 4 V) + R (row in)) bytes for a token; a row that is written and read moves once
//   Numerics  f32; the rows of a lane in order, then lanes by halves: bits do not depend on the batch
#pragma once

#include "backends/gpu/kernels/sdm_address.cuh"

namespace cairn::gpu {

struct SdmDecodeArgs {
  SdmArgs call;
  SdmScratch scratch;
  std::int32_t column_lanes;
};

struct SdmDecodeShared {
  SdmSource write_source[kSdmMaxCount], write_target[kSdmMaxCount], read_source[kSdmMaxCount];
  std::int32_t write_slot[kSdmMaxCount], new_row[kSdmMaxCount];  ///< new_row -1: not claimed
  float write_weight[kSdmMaxCount], write_decay[kSdmMaxCount], write_read[kSdmMaxCount], read_weight[kSdmMaxCount];
};

/// Sources of the write rows: the loads of rows wait for these only.
__device__ inline void list_write_sources(const SdmDecodeArgs& args, const SdmTable& table, std::int64_t t,
                                          std::int64_t head, SdmDecodeShared& shared) {
  const SdmArgs& call = args.call;
  const std::int64_t slot_count = static_cast<std::int64_t>(call.side) * call.side, pair = t * call.head_count + head;
  const int writes = sdm_kept(call.write_count, call.side);
  const float g = call.log_decay[pair];
  for (int i = static_cast<int>(threadIdx.x); i < writes; i += static_cast<int>(blockDim.x)) {
    const std::int32_t slot = args.scratch.write_slots[pair * writes + i];
    const float weight = args.scratch.write_weights[pair * writes + i];
    shared.write_slot[i] = slot;
    shared.write_source[i] =
        sdm_source(call, table, args.scratch.write_rows[pair * writes + i], head * slot_count + slot);
    shared.write_weight[i] = weight;
    shared.write_decay[i] = expf(call.key_weighted_decay ? g * weight : g);
    shared.write_read[i] = 0;
  }
}

/// Sources of the read rows; one that is also written is read from the registers that hold its new values.
__device__ inline void list_read_sources(const SdmDecodeArgs& args, const SdmTable& table, std::int64_t t,
                                         std::int64_t head, SdmDecodeShared& shared) {
  const SdmArgs& call = args.call;
  const std::int64_t slot_count = static_cast<std::int64_t>(call.side) * call.side, pair = t * call.head_count + head;
  const int writes = sdm_kept(call.write_count, call.side), reads = sdm_kept(call.read_count, call.side);
  for (int i = static_cast<int>(threadIdx.x); i < reads; i += static_cast<int>(blockDim.x)) {
    const std::int32_t slot = args.scratch.read_slots[pair * reads + i];
    const float weight = args.scratch.read_weights[pair * reads + i];
    int written = -1;
    for (int j = 0; j < writes; ++j) written = shared.write_slot[j] == slot ? j : written;
    if (written >= 0) shared.write_read[written] = weight;
    shared.read_weight[i] = written >= 0 ? 0.0f : weight;
    shared.read_source[i] =
        written >= 0 ? 0 : sdm_source(call, table, args.scratch.read_rows[pair * reads + i], head * slot_count + slot);
  }
}

/// Where the write rows go.
__device__ inline void list_targets(const SdmDecodeArgs& args, const SdmTable& table, int b, std::int64_t t,
                                    std::int64_t head, SdmDecodeShared& shared) {
  const SdmArgs& call = args.call;
  const std::int64_t pair = t * call.head_count + head;
  const int writes = sdm_kept(call.write_count, call.side);
  std::int32_t next = args.scratch.first_free[b];
  for (std::int64_t h = 0; h < head; ++h) next += args.scratch.claims[t * call.head_count + h];
  for (int i = static_cast<int>(threadIdx.x); i < writes; i += static_cast<int>(blockDim.x)) {
    const std::int32_t rank = args.scratch.write_ranks[pair * writes + i];
    const std::int32_t row = rank >= 0 ? next + rank : args.scratch.write_rows[pair * writes + i];
    shared.new_row[i] = rank >= 0 ? row : -1;
    shared.write_target[i] = reinterpret_cast<SdmSource>(sdm_row(call, table, row));
  }
}

__device__ inline void commit_claims(const SdmDecodeArgs& args, const SdmTable& table, int b, std::int64_t t,
                                     std::int64_t head, const SdmDecodeShared& shared) {
  const SdmArgs& call = args.call;
  std::int32_t* row_of_slot = table.row_of_slot + head * call.side * call.side;
  const int writes = sdm_kept(call.write_count, call.side);
  for (int i = static_cast<int>(threadIdx.x); i < writes; i += static_cast<int>(blockDim.x)) {
    if (shared.new_row[i] >= 0) row_of_slot[shared.write_slot[i]] = shared.new_row[i];
  }
  if (head != call.head_count - 1 || threadIdx.x != 0) return;
  std::int32_t next = args.scratch.first_free[b];
  for (std::int64_t h = 0; h < call.head_count; ++h) next += args.scratch.claims[t * call.head_count + h];
  table.control[0] = next;
}

template <int kRows, int kColumns>
__global__ void sdm_decode_kernel(SdmDecodeArgs args) {
  __shared__ SdmDecodeShared shared;
  const SdmArgs& call = args.call;
  const int b = static_cast<int>(blockIdx.z);
  const std::int64_t head = blockIdx.y;
  let_next_kernel_start();
  wait_for_previous_kernel();
  const std::int64_t t = call.batch.offsets[b];
  if (call.batch.offsets[b + 1] == t) return;
  const std::int64_t pair = t * call.head_count + head;
  const SdmTable table = call.tables[b];
  const int writes = sdm_kept(call.write_count, call.side), reads = sdm_kept(call.read_count, call.side);
  const SdmLane lane(args.column_lanes, kColumns);
  const bool is_inside = lane.column < call.value_dim;

  list_write_sources(args, table, t, head, shared);
  float value[kColumns] = {};
  if (is_inside) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) value[c] = load(call.v, call.dtype, t, head * call.value_dim + lane.column + c);
  }
  const float beta = call.beta[pair];
  __syncthreads();
  float written[kRows][kColumns] = {}, read[kRows][kColumns] = {};
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const int i = lane.row + k * lane.row_lanes;
    if (is_inside && i < writes && shared.write_source[i]) {
      load_columns(shared.write_source[i], call.initial_dtype, lane.column, written[k]);
    }
  }
  list_read_sources(args, table, t, head, shared);
  list_targets(args, table, b, t, head, shared);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const int i = lane.row + k * lane.row_lanes;
    if (is_inside && i < reads && shared.read_source[i]) {
      load_columns(shared.read_source[i], call.initial_dtype, lane.column, read[k]);
    }
  }

  float residual[kColumns] = {};
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const int i = lane.row + k * lane.row_lanes;
    if (i >= writes) continue;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      written[k][c] *= shared.write_decay[i];
      residual[c] += shared.write_weight[i] * written[k][c];
    }
  }
  sum_rows(residual, args.column_lanes);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) residual[c] = value[c] - residual[c];
  float out[kColumns] = {};
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const int i = lane.row + k * lane.row_lanes;
    if (i >= writes) continue;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      written[k][c] += beta * shared.write_weight[i] * (call.slot_residual ? value[c] - written[k][c] : residual[c]);
      out[c] += shared.write_read[i] * written[k][c];
    }
    if (is_inside) store_columns(shared.write_target[i], lane.column, written[k]);
  }
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const int i = lane.row + k * lane.row_lanes;
    if (i >= reads) continue;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) out[c] += shared.read_weight[i] * read[k][c];
  }
  sum_rows(out, args.column_lanes);
  if (is_inside && lane.row == 0) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const std::int64_t column = head * call.value_dim + lane.column + c;
      store(call.out, call.dtype, t, column, out[c]);
      if (call.residual.data) store(call.residual, call.dtype, t, column, residual[c]);
    }
  }
  if (blockIdx.x == 0) commit_claims(args, table, b, t, head, shared);
}

}  // namespace cairn::gpu
