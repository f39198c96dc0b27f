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
//             sdm_address and this one together; in brackets sdm_address alone, then the form before, which looked at
//             addresses and types in every tile (1,340 instructions a group and tile), in the same run
//               side 480, V 1920, W 64   B 1 12.5 (5.7; 14.1)   B 8 18.3 (6.0; 21.2)   B 64 75.1 (8.0; 89.9)
//               side 240, V  960, W 64                                                 B 64 41.7 (8.9; 52.5)
//               side  32, V  160, W 16   B 1  6.6 (2.6; 6.6)
//             B 64 varies with the run: the form before read 69.3 and 69.6 in two others. A copy's speed would be 37
//   Tried     B 64, the tiles ahead on their way to shared memory, 2 or 3 tiles, 8 or 12 groups a multiprocessor: in
//             the same run 66.2 to 69.6 in place of 75.1 at V 1920, 43.5 to 48.8 in place of 41.7 at V 960
#pragma once

#include "backends/gpu/kernels/sdm_address.cuh"

namespace cairn::gpu {

struct alignas(16) SdmDecodePlaces {
  SdmSource source, target;  ///< target 0: no such write
};
struct alignas(16) SdmDecodeWeights {
  float decay, weight;
  float step, read;  ///< beta times weight; the weight with which the token reads the slot as well
};
struct alignas(16) SdmDecodeRead {
  SdmSource source;
  float weight;
};

/// Places that a set does not have hold zeros.
struct SdmDecodeShared {
  SdmDecodePlaces write[kSdmMaxCount];
  SdmDecodeWeights weights[kSdmMaxCount];
  SdmDecodeRead read[kSdmMaxCount];
  alignas(16) std::int32_t write_slot[kSdmMaxCount];
  std::int32_t new_row[kSdmMaxCount], read_slot[kSdmMaxCount];  ///< new_row -1: not claimed
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
  const float g = call.log_decay[pair], beta = call.beta[pair];
  for (int i = static_cast<int>(threadIdx.x); i < kSdmMaxCount; i += step) {
    if (i >= reads) {
      shared.read[i] = {0, 0};
      continue;
    }
    const std::int64_t at = pair * reads + i;
    const std::int32_t slot = scratch.read_slots[at];
    shared.read_slot[i] = slot;
    shared.read[i] = {sdm_source(args, table, scratch.read_rows[at], first_slot + slot), scratch.read_weights[at]};
  }
  for (int i = static_cast<int>(threadIdx.x); i < kSdmMaxCount; i += step) {
    if (i >= writes) {
      shared.write_slot[i] = -1;
      shared.write[i] = {0, 0};
      shared.weights[i] = {0, 0, 0, 0};
      continue;
    }
    const std::int64_t at = pair * writes + i;
    const std::int32_t slot = scratch.write_slots[at], row = scratch.write_rows[at], rank = scratch.write_ranks[at];
    const float weight = scratch.write_weights[at];
    const SdmSource source = sdm_source(args, table, row, first_slot + slot);
    shared.write_slot[i] = slot;
    shared.new_row[i] = rank >= 0 ? first_row + rank : -1;
    shared.write[i] = {source, rank >= 0 ? sdm_source(args, table, first_row + rank, 0) : source};
    shared.weights[i] = {expf(call.key_weighted_decay ? g * weight : g), weight, beta * weight, 0};
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
    shared.weights[written].read = shared.read[i].weight;
    shared.read[i] = {0, 0};
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

/// Of a lane's rows, one bit each: those that have a source, and those whose values have 16 bits. They stay the same
/// from tile to tile, so that no tile looks at addresses.
struct SdmLaneRows {
  std::uint32_t there = 0, half = 0;

  __device__ void add(int k, SdmSource source) {
    there |= source ? 1u << k : 0;
    half |= source & 1 ? 1u << k : 0;
  }
  __device__ bool is_half(int k) const { return half >> k & 1; }
};

/// Starts the loads of a lane's rows; zeros where there is none. `source(k)` gives the lane's k-th.
template <int kRows, int kColumns, class Source>
__device__ inline void load_rows(const SdmLaneRows& rows, const Source& source, std::int64_t column, bool is_inside,
                                 float (&x)[kRows][kColumns]) {
  const std::uint32_t there = is_inside ? rows.there : 0;
  const std::int64_t offset = 4 * column,
                     half_offset = (kColumns == 4 ? 2 * column & ~std::int64_t{15} : 2 * column) - 1;
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) x[k][c] = 0;
    if (!(there >> k & 1)) continue;
    const SdmSource at = source(k) + static_cast<SdmSource>(rows.is_half(k) ? half_offset : offset);
    if constexpr (kColumns == 4) {
      load_four(reinterpret_cast<const float*>(at), x[k]);
    } else {
      x[k][0] = rows.is_half(k) ? bits_to_float(*reinterpret_cast<const std::uint16_t*>(at))
                                : *reinterpret_cast<const float*>(at);
    }
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
  const int tile_columns = static_cast<int>(blockDim.x) / kSdmGroup * kColumnLanes * kColumns;
  const std::int64_t tiles = (call.value_dim + tile_columns - 1) / tile_columns;
  std::int64_t column = Lanes::template column<kColumns>(blockIdx.x);
  bool is_inside = column < call.value_dim;
  float value[kColumns], written[kRows][kColumns], read[kRows][kColumns];

  list_rows(args, table, b, t, head, shared);
  load_token_values(call, t, head, column, is_inside, value);
  __syncthreads();
  const auto write_source = [&](int k) { return shared.write[Lanes::row() + k * Lanes::kRowLanes].source; };
  const auto read_source = [&](int k) { return shared.read[Lanes::row() + k * Lanes::kRowLanes].source; };
  SdmLaneRows write_rows, read_rows;
#pragma unroll
  for (int k = 0; k < kRows; ++k) write_rows.add(k, write_source(k));
  load_rows(write_rows, write_source, column, is_inside, written);
  match_reads(call, shared);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kRows; ++k) read_rows.add(k, read_source(k));
  for (std::int64_t tile = blockIdx.x;;) {
    load_rows(read_rows, read_source, column, is_inside, read);
    float residual[kColumns] = {}, out[kColumns] = {};
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const SdmDecodeWeights weights = shared.weights[Lanes::row() + k * Lanes::kRowLanes];
      if (write_rows.is_half(k)) unpack_half(call.initial_dtype, column, written[k]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        written[k][c] *= weights.decay;
        residual[c] += weights.weight * written[k][c];
      }
    }
    Lanes::sum_rows(residual);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      value[c] = raw_value(value[c], call.dtype);
      residual[c] = value[c] - residual[c];
    }
    // wanted(k, c): what the row is moved towards, less what it has.
    const auto update = [&](const auto& wanted) {
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const int i = Lanes::row() + k * Lanes::kRowLanes;
        const SdmDecodeWeights weights = shared.weights[i];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          written[k][c] += weights.step * wanted(k, c);
          out[c] += weights.read * written[k][c];
        }
        const SdmSource target = shared.write[i].target;
        if (is_inside && target) store_columns(target, column, written[k]);
      }
    };
    if (call.slot_residual) {
      update([&](int k, int c) { return value[c] - written[k][c]; });
    } else {
      update([&](int, int c) { return residual[c]; });
    }
    const std::int64_t own_column = column;
    const bool own_is_inside = is_inside, is_last = (tile += gridDim.x) >= tiles;
    if (!is_last) {  // the next rows are on their way before these outputs
      column = Lanes::template column<kColumns>(tile);
      is_inside = column < call.value_dim;
      load_token_values(call, t, head, column, is_inside, value);
      load_rows(write_rows, write_source, column, is_inside, written);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const float weight = shared.read[Lanes::row() + k * Lanes::kRowLanes].weight;
      if (read_rows.is_half(k)) unpack_half(call.initial_dtype, own_column, read[k]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[c] += weight * read[k][c];
    }
    Lanes::sum_rows(out);
    if (own_is_inside && Lanes::row() == 0) store_outputs(call, t, head, own_column, out, residual);
    if (is_last) break;
  }
  if (blockIdx.x == 0) commit_claims(args, table, b, t, head, shared);
}

}  // namespace cairn::gpu
