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

struct SdmDecodeShared {
  SdmSource write_source[kSdmMaxCount], write_target[kSdmMaxCount], read_source[kSdmMaxCount];
  std::int32_t write_slot[kSdmMaxCount], new_row[kSdmMaxCount];  ///< new_row -1: not claimed
  float write_weight[kSdmMaxCount], write_decay[kSdmMaxCount], write_read[kSdmMaxCount], read_weight[kSdmMaxCount];
};

/// Sources of the write rows: the loads of rows wait for these only.
__device__ inline void list_write_sources(const SdmKernelArgs& args, const SdmTable& table, std::int64_t t,
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
        sdm_source(args, table, args.scratch.write_rows[pair * writes + i], head * slot_count + slot);
    shared.write_weight[i] = weight;
    shared.write_decay[i] = expf(call.key_weighted_decay ? g * weight : g);
    shared.write_read[i] = 0;
  }
}

/// Sources of the read rows; one that is also written is read from the registers that hold its new values.
__device__ inline void list_read_sources(const SdmKernelArgs& args, const SdmTable& table, std::int64_t t,
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
        written >= 0 ? 0 : sdm_source(args, table, args.scratch.read_rows[pair * reads + i], head * slot_count + slot);
  }
}

/// Where the write rows go.
__device__ inline void list_targets(const SdmKernelArgs& args, const SdmTable& table, int b, std::int64_t t,
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
    shared.write_target[i] = reinterpret_cast<SdmSource>(sdm_row(args, table, row));
  }
}

__device__ inline void commit_claims(const SdmKernelArgs& args, const SdmTable& table, int b, std::int64_t t,
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

/// Starts the loads of the rows of places row(), row() + kRowLanes, ... that have a source; zeros else.
template <int kColumnLanes, int kRows, int kColumns>
__device__ inline void load_rows(const SdmSource* sources, int count, std::int64_t column, bool is_inside,
                                 float (&x)[kRows][kColumns]) {
  using Lanes = SdmLanes<kColumnLanes>;
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const int i = Lanes::row() + k * Lanes::kRowLanes;
    const SdmSource source = is_inside && i < count ? sources[i] : 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) x[k][c] = 0;
    if (source) load_columns(source, column, x[k]);
  }
}

template <int kColumns>
__device__ inline void load_values(const SdmArgs& call, std::int64_t t, std::int64_t head, std::int64_t column,
                                   bool is_inside, float (&value)[kColumns]) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    value[c] = is_inside ? load_raw(call.v, call.dtype, t, head * call.value_dim + column + c) : 0.0f;
  }
}

template <int kColumns>
__device__ inline void store_outputs(const SdmArgs& call, std::int64_t t, std::int64_t head, std::int64_t column,
                                     const float (&out)[kColumns], const float (&residual)[kColumns]) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const std::int64_t at = head * call.value_dim + column + c;
    store(call.out, call.dtype, t, at, out[c]);
    if (call.residual.data) store(call.residual, call.dtype, t, at, residual[c]);
  }
}

template <int kRows, int kColumnLanes, int kColumns>
__global__ void __launch_bounds__(256, 2) sdm_decode_kernel(SdmKernelArgs args) {
  using Lanes = SdmLanes<kColumnLanes>;
  __shared__ SdmDecodeShared shared;
  const SdmArgs& call = args.call;
  const int b = static_cast<int>(blockIdx.z);
  const std::int64_t head = blockIdx.y;
  let_next_kernel_start();
  const std::int64_t t = call.batch.offsets[b];
  const bool is_empty = call.batch.offsets[b + 1] == t;
  const SdmTable table = call.tables[b];
  wait_for_previous_kernel();
  if (is_empty) return;
  const int writes = sdm_kept(call.write_count, call.side), reads = sdm_kept(call.read_count, call.side);
  const int tile_columns = static_cast<int>(blockDim.x) / kSdmGroup * kColumnLanes * kColumns;
  const std::int64_t tiles = (call.value_dim + tile_columns - 1) / tile_columns;
  const float beta = call.beta[t * call.head_count + head];
  std::int64_t column = Lanes::template column<kColumns>(blockIdx.x);
  bool is_inside = column < call.value_dim;
  float value[kColumns], written[kRows][kColumns], read[kRows][kColumns];

  list_write_sources(args, table, t, head, shared);
  load_values(call, t, head, column, is_inside, value);
  __syncthreads();
  load_rows<kColumnLanes>(shared.write_source, writes, column, is_inside, written);
  list_read_sources(args, table, t, head, shared);
  list_targets(args, table, b, t, head, shared);
  __syncthreads();
  for (std::int64_t tile = blockIdx.x;;) {
    load_rows<kColumnLanes>(shared.read_source, reads, column, is_inside, read);
    float residual[kColumns] = {}, out[kColumns] = {};
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int i = Lanes::row() + k * Lanes::kRowLanes;
      if (i >= writes) continue;
      unpack_columns(shared.write_source[i], call.initial_dtype, written[k]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        written[k][c] *= shared.write_decay[i];
        residual[c] += shared.write_weight[i] * written[k][c];
      }
    }
    Lanes::sum_rows(residual);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      value[c] = raw_value(value[c], call.dtype);
      residual[c] = value[c] - residual[c];
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int i = Lanes::row() + k * Lanes::kRowLanes;
      if (i >= writes) continue;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        written[k][c] += beta * shared.write_weight[i] * (call.slot_residual ? value[c] - written[k][c] : residual[c]);
        out[c] += shared.write_read[i] * written[k][c];
      }
      if (is_inside) store_columns(shared.write_target[i], column, written[k]);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int i = Lanes::row() + k * Lanes::kRowLanes;
      if (i >= reads) continue;
      unpack_columns(shared.read_source[i], call.initial_dtype, read[k]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[c] += shared.read_weight[i] * read[k][c];
    }
    Lanes::sum_rows(out);
    if (is_inside && Lanes::row() == 0) store_outputs(call, t, head, column, out, residual);
    tile += gridDim.x;
    if (tile >= tiles) break;
    column = Lanes::template column<kColumns>(tile);
    is_inside = column < call.value_dim;
    load_values(call, t, head, column, is_inside, value);
    load_rows<kColumnLanes>(shared.write_source, writes, column, is_inside, written);
  }
  if (blockIdx.x == 0) commit_claims(args, table, b, t, head, shared);
}

}  // namespace cairn::gpu
