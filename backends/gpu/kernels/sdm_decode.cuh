// sdm_decode: one token for each sequence: rows are claimed, predicted from, updated and read in one pass.
//   Computes  as sdm_reference.cpp, from the addresses of sdm_address.cuh
//   Shapes    v, out, residual [B, H, V]; rows f32, V wide; M0 read where it lies
//   Launch    grid (blocks, H, B); groups of 32 lanes, each with kColumnLanes * kColumns columns; a lane holds kRows
//             write rows and kRows read rows of kColumns columns in registers; a block goes through tiles of columns
//   Claims    a slot in need takes row first_free + (rows taken by the heads before) + (its rank in the head), which
//             every block finds alone from the scratch; the blocks of the first tile write the table, which nobody
//             reads here. A new row is read from M0 or the shared row and written to its own place: no copy.
//   Traffic   H (W (row in + 4 V) + R (row in)) bytes for a token; a row that is written and read moves once
//   Numerics  f32; the rows of a lane in order, then lanes by halves: bits do not depend on the batch
//   Measured  one H200, bf16, H 2, M0 bf16, rows private after the first step, graph replay over rotating tables; us of
//             sdm_address and this one together, in brackets sdm_address alone
//               side 480, V 1920, W 64    B 1 14.0 (5.7)    B 8 19.7 (5.9)    B 64 69.6 (8.0), a copy's speed: 37
//               side 240, V  960, W 64                                        B 64 46.0 (8.9)
//               side  32, V  160, W 16    B 1  6.6 (2.5)
#pragma once

#include "backends/gpu/kernels/sdm_address.cuh"

namespace cairn::gpu {

struct SdmDecodeShared {
  SdmSource write_source[kSdmMaxCount], write_target[kSdmMaxCount], read_source[kSdmMaxCount];
  alignas(16) std::int32_t write_slot[kSdmMaxCount];
  std::int32_t new_row[kSdmMaxCount], read_slot[kSdmMaxCount];  ///< new_row -1: not claimed
  float write_weight[kSdmMaxCount], write_decay[kSdmMaxCount], write_read[kSdmMaxCount], read_weight[kSdmMaxCount];
};

/// Rows in use before this head of the token takes its own.
__device__ inline std::int32_t first_row_of_head(const SdmKernelArgs& args, int b, std::int64_t t, std::int64_t head) {
  std::int32_t row = args.scratch.first_free[b];
  for (std::int64_t h = 0; h < head; ++h) row += args.scratch.claims[t * args.call.head_count + h];
  return row;
}

/// Sources and targets of all rows of the token's head.
__device__ inline void list_rows(const SdmKernelArgs& args, const SdmTable& table, int b, std::int64_t t,
                                 std::int64_t head, SdmDecodeShared& shared) {
  const SdmArgs& call = args.call;
  const SdmScratch& scratch = args.scratch;
  const std::int64_t first_slot = head * call.side * call.side, pair = t * call.head_count + head;
  const int writes = sdm_kept(call.write_count, call.side), reads = sdm_kept(call.read_count, call.side);
  const int step = static_cast<int>(blockDim.x);
  const std::int32_t first_row = first_row_of_head(args, b, t, head);
  const float g = call.log_decay[pair];
  for (int i = static_cast<int>(threadIdx.x); i < reads; i += step) {
    const std::int32_t slot = scratch.read_slots[pair * reads + i];
    shared.read_slot[i] = slot;
    shared.read_weight[i] = scratch.read_weights[pair * reads + i];
    shared.read_source[i] = sdm_source(args, table, scratch.read_rows[pair * reads + i], first_slot + slot);
  }
  for (int i = static_cast<int>(threadIdx.x); i < kSdmMaxCount; i += step) {
    if (i >= writes) {
      shared.write_slot[i] = -1;
      continue;
    }
    const std::int64_t at = pair * writes + i;
    const std::int32_t slot = scratch.write_slots[at], row = scratch.write_rows[at], rank = scratch.write_ranks[at];
    const float weight = scratch.write_weights[at];
    const SdmSource source = sdm_source(args, table, row, first_slot + slot);
    shared.write_slot[i] = slot;
    shared.write_source[i] = source;
    shared.new_row[i] = rank >= 0 ? first_row + rank : -1;
    shared.write_target[i] = rank >= 0 ? sdm_source(args, table, first_row + rank, 0) : source;
    shared.write_weight[i] = weight;
    shared.write_decay[i] = expf(call.key_weighted_decay ? g * weight : g);
    shared.write_read[i] = 0;
  }
}

/// A slot that is also written is read from the registers that hold its new values.
__device__ inline void match_reads(const SdmArgs& call, SdmDecodeShared& shared) {
  const int reads = sdm_kept(call.read_count, call.side), writes = sdm_kept(call.write_count, call.side);
  for (int i = static_cast<int>(threadIdx.x); i < reads; i += static_cast<int>(blockDim.x)) {
    const std::uint32_t slot = static_cast<std::uint32_t>(shared.read_slot[i]);
    int written = -1;
    for (int j = 0; j < writes; j += 4) {  // places beyond the set hold -1
      const float4 four = *reinterpret_cast<const float4*>(shared.write_slot + j);
      written = float_to_bits(four.x) == slot ? j : float_to_bits(four.y) == slot ? j + 1 : written;
      written = float_to_bits(four.z) == slot ? j + 2 : float_to_bits(four.w) == slot ? j + 3 : written;
    }
    if (written < 0) continue;
    shared.write_read[written] = shared.read_weight[i];
    shared.read_weight[i] = 0;
    shared.read_source[i] = 0;
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
  if (head == call.head_count - 1 && threadIdx.x == 0) {
    table.control[0] = first_row_of_head(args, b, t, call.head_count);
  }
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
__device__ inline void load_token_values(const SdmArgs& call, std::int64_t t, std::int64_t head, std::int64_t column,
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

  list_rows(args, table, b, t, head, shared);
  load_token_values(call, t, head, column, is_inside, value);
  __syncthreads();
  load_rows<kColumnLanes>(shared.write_source, writes, column, is_inside, written);
  match_reads(call, shared);
  __syncthreads();
  for (std::int64_t tile = blockIdx.x;;) {
    load_rows<kColumnLanes>(shared.read_source, reads, column, is_inside, read);
    float residual[kColumns] = {}, out[kColumns] = {};
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int i = Lanes::row() + k * Lanes::kRowLanes;
      if (i >= writes) continue;
      unpack_columns(shared.write_source[i], call.initial_dtype, column, written[k]);
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
    const std::int64_t own_column = column;
    const bool own_is_inside = is_inside, is_last = (tile += gridDim.x) >= tiles;
    if (!is_last) {  // the next rows are on their way before these outputs
      column = Lanes::template column<kColumns>(tile);
      is_inside = column < call.value_dim;
      load_token_values(call, t, head, column, is_inside, value);
      load_rows<kColumnLanes>(shared.write_source, writes, column, is_inside, written);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int i = Lanes::row() + k * Lanes::kRowLanes;
      if (i >= reads) continue;
      unpack_columns(shared.read_source[i], call.initial_dtype, own_column, read[k]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[c] += shared.read_weight[i] * read[k][c];
    }
    Lanes::sum_rows(out);
    if (own_is_inside && Lanes::row() == 0) store_outputs(call, t, head, own_column, out, residual);
    if (is_last) break;
  }
  if (blockIdx.x == 0) commit_claims(args, table, b, t, head, shared);
}

}  // namespace cairn::gpu
