// sdm_decode: one token for each sequence: rows are claimed, predicted from, updated and read in one pass.
//   Computes  as sdm_reference.cpp, from the addresses of sdm_address.cuh
//   Shapes    v, out, residual [B, H, V]; rows f32 or bf16, V wide; M0 read where it lies
//   Launch    grid (blocks, H, B); groups of kLanes lanes: a group has kRows of the rows that are written and kRows of
//             those that are read, a lane a piece of 16 bytes (kColumns columns) of each; a block goes through tiles of
//             columns
//   How       pieces come to shared memory beside the arithmetic, in three stages: the rows that a tile writes, those
//             that it reads, the next tile's. A tile is summed over the groups through shared memory.
//   Claims    a slot in need takes row first_free + (rows taken by the heads before) + (its rank in the head), which
//             every block finds alone from the scratch; the blocks of the first tile write the table, which nobody
//             reads here. A new row is read from M0 or the shared row and written to its own place: no copy.
//   Traffic   H (W (row in + row out) + R (row in)) bytes for a token; a row that is written and read moves once
//   Numerics  f32; the rows of a group in order, then groups by halves: bits do not depend on the batch. bf16 rows are
//             rounded where they are written, and read as they were rounded
//   Not here  f16 rows; M0 in f16 has instances of its own: its conversion in all of them made the code three times as
//             long, and 2 to 30 us slower
//   Measured  one H200, bf16, H 2, M0 bf16, rows private after the first step, graph replay over rotating tables, each
//             in turns with the form before, which held rows in registers (4,950 instructions where now 1,770); us of
//             sdm_address (in brackets, alone) and this one together: f32 rows, the form before; bf16 rows
//               side 480, V 1920, W 64   B 64  72.5, 87.3; 37.7 (8.1)     B 32  43.6, 47.6; 24.8
//                                        B  8  19.6, 20.3; 14.7 (5.9)     B  1  12.7, 12.8; 10.8 (5.7)
//               side 240, V  960, W 64   B 64  46.3, 50.3; 27.1 (9.1)     B  1  10.7, 11.2;  9.5 (4.9)
//               side  32, V  160, W 16                                    B  1   6.1,  6.8;  6.1 (2.6)
//             Bytes alone, bf16, V 1920, B 64: 29.2; with the arithmetic 29.2. Predicted 22 by bytes, 27 by rows.
//   Tried     everything unrolled: 1.5 to 3 us more for 1 sequence, whose time is that of the instructions' way to the
//             multiprocessor; two rows at a time: the same the other way. Tiles of 240 or 320 bytes a row: 55 and 45 us
//             where 480 take 35. sdm_address asks for the first tiles' rows (L2 prefetch): 0 to 2 us more
#pragma once

#include "backends/gpu/kernels/sdm_address.cuh"

namespace cairn::gpu {

/// How a row enters a sum, and what its source holds (SdmSource's kind; 0 also where there is none).
struct alignas(8) SdmDecodeTerm {
  float weight;
  std::uint32_t kind;
};
/// A written row becomes keep times its source and step times what is wanted; `read`: the weight with which the token
/// reads the slot as well.
struct alignas(16) SdmDecodeUpdate {
  float keep, step, read;
  std::uint32_t kind;
};

/// A token's rows of a head. Places that a set does not have hold zeros; write_target 0: no such write.
template <int kPlaces>
struct SdmDecodeLists {
  alignas(16) SdmDecodeUpdate update[kPlaces];
  SdmDecodeTerm predict[kPlaces], read[kPlaces];
  SdmSource write_source[kPlaces], write_target[kPlaces], read_source[kPlaces];
  alignas(16) std::int32_t write_slot[kPlaces];
  std::int32_t new_row[kPlaces], read_slot[kPlaces];  ///< new_row -1: not claimed
};

struct SdmDecodeArgs {
  SdmKernelArgs rows;
  std::int32_t block_columns, tile_columns;  ///< whole pieces of kColumns; a block goes through its tiles
};

/// Rows in use before this head of the token takes its own.
__device__ inline std::int32_t first_row_of_head(const SdmKernelArgs& args, int b, std::int64_t t, std::int64_t head) {
  std::int32_t row = args.scratch.first_free[b];
  for (std::int64_t h = 0; h < head; ++h) row += args.scratch.claims[t * args.call.head_count + h];
  return row;
}

/// Sources and targets of all rows of the token's head: a thread each for the writes, then for the reads.
template <int kPlaces>
__device__ inline void list_rows(const SdmKernelArgs& args, const SdmTable& table, int b, std::int64_t t,
                                 std::int64_t head, SdmDecodeLists<kPlaces>& lists) {
  const SdmArgs& call = args.call;
  const SdmScratch& scratch = args.scratch;
  const std::int64_t first_slot = head * call.side * call.side, pair = t * call.head_count + head;
  const int writes = sdm_kept(call.write_count, call.side), reads = sdm_kept(call.read_count, call.side);
  const int i = static_cast<int>(threadIdx.x) % kPlaces;
  if (static_cast<int>(threadIdx.x) >= 2 * kPlaces) return;
  if (static_cast<int>(threadIdx.x) >= kPlaces) {
    const std::int64_t at = pair * reads + i;
    lists.read_slot[i] = -2;
    lists.read_source[i] = 0;
    lists.read[i] = {0, 0};
    if (i >= reads) return;
    const std::int32_t slot = scratch.read_slots[at], row = scratch.read_rows[at];
    lists.read[i].weight = scratch.read_weights[at];
    const SdmSource source = sdm_source(args, table, row, first_slot + slot);
    lists.read_slot[i] = slot;
    lists.read_source[i] = source;
    lists.read[i].kind = sdm_kind(source);
    return;
  }
  lists.write_slot[i] = lists.new_row[i] = -1;
  lists.write_source[i] = lists.write_target[i] = 0;
  lists.predict[i] = {0, 0};
  lists.update[i] = {0, 0, 0, 0};
  if (i >= writes) return;
  const std::int64_t at = pair * writes + i;
  const std::int32_t slot = scratch.write_slots[at], row = scratch.write_rows[at], rank = scratch.write_ranks[at];
  const float weight = scratch.write_weights[at], g = call.log_decay[pair], beta = call.beta[pair];
  const std::int32_t new_row = rank < 0 ? -1 : first_row_of_head(args, b, t, head) + rank;
  const SdmSource source = sdm_source(args, table, row, first_slot + slot);
  lists.write_slot[i] = slot;
  lists.new_row[i] = new_row;
  lists.write_source[i] = source;
  lists.write_target[i] = new_row >= 0 ? sdm_row(args, table, new_row) : source;
  const float decay = expf(call.key_weighted_decay ? g * weight : g), step = beta * weight;
  lists.predict[i] = {decay * weight, sdm_kind(source)};
  lists.update[i] = {call.slot_residual ? decay * (1 - step) : decay, step, 0, sdm_kind(source)};
}

/// A slot that is also written is read as it was written. Each thread compares a read with a part of the writes.
template <int kPlaces>
__device__ inline void match_reads(SdmDecodeLists<kPlaces>& lists) {
  const int most = kPlaces / 4, threads = static_cast<int>(blockDim.x) / kPlaces,
            parts = threads < most ? threads : most;
  const int i = static_cast<int>(threadIdx.x) % kPlaces, part = static_cast<int>(threadIdx.x) / kPlaces;
  if (part >= parts) return;
  const int span = kPlaces / parts, first = part * span;
  const std::uint32_t slot = static_cast<std::uint32_t>(lists.read_slot[i]);
  int written = -1;
  for (int j = first; j < first + span; j += 4) {  // places beyond the sets hold -1 and -2
    const float4 four = *reinterpret_cast<const float4*>(lists.write_slot + j);
    written = float_to_bits(four.x) == slot ? j : float_to_bits(four.y) == slot ? j + 1 : written;
    written = float_to_bits(four.z) == slot ? j + 2 : float_to_bits(four.w) == slot ? j + 3 : written;
  }
  if (written < 0) return;
  lists.update[written].read = lists.read[i].weight;
  lists.read[i] = {0, 0};
  lists.read_source[i] = 0;
}

template <int kPlaces>
__device__ inline void commit_claims(const SdmKernelArgs& args, const SdmTable& table, int b, std::int64_t t,
                                     std::int64_t head, const SdmDecodeLists<kPlaces>& lists) {
  const SdmArgs& call = args.call;
  std::int32_t* row_of_slot = table.row_of_slot + head * call.side * call.side;
  const int i = static_cast<int>(threadIdx.x);
  if (i < kPlaces && lists.new_row[i] >= 0) row_of_slot[lists.write_slot[i]] = lists.new_row[i];
  if (head == call.head_count - 1 && i == 0) table.control[0] = first_row_of_head(args, b, t, call.head_count);
}

inline constexpr int kSdmDecodeStages = 3;  ///< in turns: the rows that a tile writes, those that it reads, ...

/// Shared memory of a block whose tiles have `lanes` pieces of kColumns. Of a stage a lane has one piece of 16 bytes of
/// each of its group's rows, and nobody else looks at it. Sums: each group's part of the prediction and of what is
/// read.
template <int kRows, int kGroups, int kColumns>
struct SdmDecodeMemory {
  static constexpr int kPlaces = kRows * kGroups;
  __host__ __device__ SdmDecodeMemory(unsigned char* memory, int lanes) : lanes(lanes) {
    lists = reinterpret_cast<SdmDecodeLists<kPlaces>*>(memory);
    stages = reinterpret_cast<float4*>(memory + sizeof *lists);
    predicted = reinterpret_cast<float*>(stages + kSdmDecodeStages * kPlaces * lanes);
    read = predicted + kGroups * lanes * kColumns;
    wanted = read + kGroups * lanes * kColumns;
  }
  __host__ static std::size_t size_bytes(int lanes) {
    return sizeof(SdmDecodeLists<kPlaces>) + sizeof(float4) * kSdmDecodeStages * kPlaces * lanes +
           sizeof(float) * (2 * kGroups + 1) * lanes * kColumns;
  }
  /// The lane's piece of row group + k * kGroups.
  __device__ float4& piece(int stage, int group, int k, int lane) const {
    return stages[((stage * kRows + k) * kGroups + group) * lanes + lane];
  }

  int lanes;
  SdmDecodeLists<kPlaces>* lists;
  float4* stages;
  float *predicted, *read, *wanted;  ///< [kGroups][lanes * kColumns], the same, [lanes * kColumns]
};

/// The sum over the groups of what they left of a column: by halves, whoever ran first.
template <int kGroups>
__device__ inline float sum_groups(const float* partial, int stride) {
  float x[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) x[g] = partial[g * stride];
#pragma unroll
  for (int distance = 1; distance < kGroups; distance *= 2) {
#pragma unroll
    for (int g = 0; g < kGroups; g += 2 * distance) x[g] += x[g + distance];
  }
  return x[0];
}

template <int kRows, int kGroups, int kLanes, int kColumns, bool kHasF16>
__global__ void __launch_bounds__(kGroups* kLanes, 512 / (kGroups * kLanes)) sdm_decode_kernel(SdmDecodeArgs args) {
  constexpr int kUnroll = kRows < 4 ? kRows : 4;  // more, and the instructions come late
  const SdmArgs& call = args.rows.call;
  const SdmDecodeMemory<kRows, kGroups, kColumns> shared(dynamic_shared(), args.tile_columns / kColumns);
  auto& lists = *shared.lists;
  const int b = static_cast<int>(blockIdx.z), thread = static_cast<int>(threadIdx.x);
  const int group = thread / kLanes, lane = thread % kLanes, lane_column = lane * kColumns;
  const std::int64_t head = blockIdx.y;
  let_next_kernel_start();
  const std::int64_t t = call.batch.offsets[b];
  const bool is_empty = call.batch.offsets[b + 1] == t;
  const SdmTable table = call.tables[b];
  wait_for_previous_kernel();
  if (is_empty) return;

  list_rows(args.rows, table, b, t, head, lists);
  const int begin = static_cast<int>(blockIdx.x) * args.block_columns, step = args.tile_columns;
  const int end = begin + args.block_columns < call.value_dim ? begin + args.block_columns : call.value_dim;
  const std::int64_t head_column = head * call.value_dim;
  const auto is_inside = [&](int tile, int column) { return column < step && tile + column < end; };
  const auto start = [&](const SdmSource* sources, int tile, int stage) {
    if (is_inside(tile, lane_column)) {
#pragma unroll kUnroll
      for (int k = 0; k < kRows; ++k) {
        start_columns<kColumns, kHasF16>(sources[group + k * kGroups], tile + lane_column,
                                         &shared.piece(stage, group, k, lane));
      }
    }
    commit_copies();
  };
  const auto unpack = [&](int stage, int k, std::uint32_t kind, int tile, float(&x)[kColumns]) {
    unpack_columns<kColumns, kHasF16>(kind, tile + lane_column, shared.piece(stage, group, k, lane), x);
  };
  // The thread sums a column of its own over the groups.
  const auto load_value = [&](int tile) {
    return is_inside(tile, thread) ? load_raw(call.v, call.dtype, t, head_column + tile + thread) : 0.0f;
  };
  const auto store_out = [&](int tile) {
    if (!is_inside(tile, thread)) return;
    store(call.out, call.dtype, t, head_column + tile + thread, sum_groups<kGroups>(shared.read + thread, step));
  };
  float value = load_value(begin);
  __syncthreads();
  start(lists.write_source, begin, 0);
  match_reads(lists);
  __syncthreads();
  start(lists.read_source, begin, 1);
  start(lists.write_source, begin + step, 2);

  int tile = begin;
  for (int stage = 0; tile < end; tile += step) {
    const int read_stage = stage == kSdmDecodeStages - 1 ? 0 : stage + 1;
    const bool has_columns = is_inside(tile, lane_column);
    float sum[kColumns] = {}, out[kColumns] = {};
    wait_for_copies<2>();
    if (has_columns) {
#pragma unroll kUnroll
      for (int k = 0; k < kRows; ++k) {
        const SdmDecodeTerm term = lists.predict[group + k * kGroups];
        float x[kColumns];
        unpack(stage, k, term.kind, tile, x);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sum[c] = fmaf(term.weight, x[c], sum[c]);
      }
      store_values(shared.predicted + group * step + lane_column, sum);
    }
    __syncthreads();
    if (is_inside(tile, thread)) {
      value = raw_value(value, call.dtype);
      const float residual = value - sum_groups<kGroups>(shared.predicted + thread, step);
      shared.wanted[thread] = call.slot_residual ? value : residual;
      if (call.residual.data) store(call.residual, call.dtype, t, head_column + tile + thread, residual);
    }
    if (tile > begin) store_out(tile - step);
    value = load_value(tile + step);
    __syncthreads();
    if (has_columns) {
      float wanted[kColumns];
      load_values(shared.wanted + lane_column, wanted);
#pragma unroll kUnroll
      for (int k = 0; k < kRows; ++k) {
        const SdmDecodeUpdate update = lists.update[group + k * kGroups];
        const SdmSource target = lists.write_target[group + k * kGroups];
        float x[kColumns];
        unpack(stage, k, update.kind, tile, x);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) x[c] = fmaf(update.step, wanted[c], update.keep * x[c]);
        round_columns<kColumns>(call.row_dtype, x);
        if (target) store_columns<kColumns>(target, call.row_dtype, tile + lane_column, x);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) out[c] = fmaf(update.read, x[c], out[c]);
      }
    }
    start(lists.read_source, tile + step, stage);
    wait_for_copies<2>();
    if (has_columns) {
#pragma unroll kUnroll
      for (int k = 0; k < kRows; ++k) {
        const SdmDecodeTerm term = lists.read[group + k * kGroups];
        float x[kColumns];
        unpack(read_stage, k, term.kind, tile, x);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) out[c] = fmaf(term.weight, x[c], out[c]);
      }
      store_values(shared.read + group * step + lane_column, out);
    }
    start(lists.write_source, tile + 2 * step, read_stage);
    stage = stage == 0 ? kSdmDecodeStages - 1 : stage - 1;
  }
  wait_for_copies<0>();
  __syncthreads();
  if (tile > begin) store_out(tile - step);
  if (blockIdx.x == 0) commit_claims(args.rows, table, b, t, head, lists);
}

}  // namespace cairn::gpu
