// What the kernels of sdm hand to each other, and where rows are.
#pragma once

#include "backends/gpu/kernels/any_element.cuh"
#include "backends/interface/scratch_layout.h"

namespace cairn::gpu {

/// Slots of a write or read set.
__host__ __device__ inline std::int32_t sdm_kept(std::int32_t count, std::int32_t side) {
  return count < side * side ? count : side * side;
}

/// Occurrences of prefill are counted in pieces of this many; a sequence's pieces begin at chunk_of().
inline constexpr int kSdmChunk = 1024;

/// Where a row's values come from: an address, its low bit set where it is a row of M0; 0: zeros.
using SdmSource = std::uint64_t;

struct SdmScratch {
  std::int32_t *first_free, *first_private;  ///< [B] the controls before the call
  std::int32_t *write_slots, *write_rows,
      *write_ranks;                      ///< [T, H, W']; rows before the call; decode: ranks of claims or -1
  std::int32_t *read_slots, *read_rows;  ///< [T, H, R']
  float *write_weights, *read_weights;
  std::int32_t* claims;  ///< [T, H] decode: rows that the head of the token takes
  // Prefill only.
  std::int32_t* chunk_claims;               ///< rows first claimed in a piece of a sequence's occurrences
  std::int32_t *claim_tokens, *claim_rows;  ///< [T, H, W'] of the rows taken, in order: token, row before
  SdmSource *write_sources, *write_targets, *read_sources;
  std::int32_t *write_links, *read_links;  ///< place in the token before of the slot's write, or -1
  float* write_reads;                      ///< weight with which this token reads the slot that it writes
  std::size_t size_bytes;
};

inline SdmScratch carve_sdm_scratch(const SdmArgs& args, void* scratch) {
  const auto sequences = static_cast<std::size_t>(args.batch.sequence_count);
  const std::size_t pairs =
      static_cast<std::size_t>(args.batch.token_count) * static_cast<std::size_t>(args.head_count);
  const auto writes = pairs * static_cast<std::size_t>(sdm_kept(args.write_count, args.side));
  const auto reads = pairs * static_cast<std::size_t>(sdm_kept(args.read_count, args.side));
  ScratchLayout layout(scratch);
  SdmScratch s{};
  for (std::int32_t** piece : {&s.first_free, &s.first_private}) *piece = layout.take<std::int32_t>(sequences);
  for (std::int32_t** piece :
       {&s.write_slots, &s.write_rows, &s.write_ranks, &s.claim_tokens, &s.claim_rows, &s.write_links}) {
    *piece = layout.take<std::int32_t>(writes);
  }
  for (std::int32_t** piece : {&s.read_slots, &s.read_rows, &s.read_links}) *piece = layout.take<std::int32_t>(reads);
  for (float** piece : {&s.write_weights, &s.write_reads}) *piece = layout.take<float>(writes);
  s.read_weights = layout.take<float>(reads);
  s.claims = layout.take<std::int32_t>(pairs);
  s.chunk_claims = layout.take<std::int32_t>(writes / kSdmChunk + sequences + 1);
  for (SdmSource** piece : {&s.write_sources, &s.write_targets}) *piece = layout.take<SdmSource>(writes);
  s.read_sources = layout.take<SdmSource>(reads);
  s.size_bytes = layout.size_bytes();
  return s;
}

struct SdmKernelArgs {
  SdmArgs call;
  SdmScratch scratch;
};

/// The sequence of a token, its table, and the first row that it may write in place.
struct SdmSequenceView {
  __device__ SdmSequenceView(const SdmArgs& args, std::int64_t t) {
    const std::int32_t* offsets = args.batch.offsets;
    const bool is_own = t < args.batch.sequence_count && offsets[t] == t && offsets[t + 1] > t;  // decode: sequence t
    index = is_own ? static_cast<int>(t) : sequence_of(offsets, args.batch.sequence_count, static_cast<int>(t));
    first_token = offsets[index];
    table = args.tables[index];
    first_private = table.control[1];
  }
  int index;
  std::int64_t first_token;
  SdmTable table;
  std::int32_t first_private;
};

/// Where the address kernel leaves a set.
struct SdmAddressOutput {
  std::int32_t kept;
  float scale;
  std::int32_t *slots, *rows, *ranks;
  float* weights;
  std::int32_t* trace_slots;
  float* trace_weights;
};

__device__ inline SdmAddressOutput sdm_write_output(const SdmArgs& args, const SdmScratch& scratch, bool with_ranks) {
  return {sdm_kept(args.write_count, args.side),
          args.write_scale,
          scratch.write_slots,
          scratch.write_rows,
          with_ranks ? scratch.write_ranks : nullptr,
          scratch.write_weights,
          args.trace_write_slots,
          args.trace_write_weights};
}
__device__ inline SdmAddressOutput sdm_read_output(const SdmArgs& args, const SdmScratch& scratch) {
  return {sdm_kept(args.read_count, args.side),
          args.read_scale,
          scratch.read_slots,
          scratch.read_rows,
          nullptr,
          scratch.read_weights,
          args.trace_read_slots,
          args.trace_read_weights};
}

__device__ inline float* sdm_row(const SdmArgs& args, const SdmTable& table, std::int32_t row) {
  return table.slabs[row / args.rows_per_slab] + static_cast<std::int64_t>(row % args.rows_per_slab) * args.value_dim;
}

/// Values of a slot (counted over heads) whose row is `row`; below 0: it equals M0.
__device__ inline SdmSource sdm_source(const SdmArgs& args, const SdmTable& table, std::int32_t row,
                                       std::int64_t slot) {
  if (row >= 0) return reinterpret_cast<SdmSource>(sdm_row(args, table, row));
  if (!args.initial) return 0;
  const std::int64_t element_bytes = args.initial_dtype == DType::kF32 ? 4 : 2;
  return (reinterpret_cast<SdmSource>(args.initial) + static_cast<SdmSource>(slot * args.value_dim * element_bytes)) |
         1;
}

/// kColumns neighbouring values from column v of a source.
template <int kColumns>
__device__ inline void load_columns(SdmSource source, DType initial_dtype, std::int64_t v, float (&x)[kColumns]) {
  if ((source & 1) == 0) {
    const float* row = reinterpret_cast<const float*>(source) + v;
    if constexpr (kColumns == 4) {
      load_four(row, x);
    } else {
      x[0] = *row;
    }
    return;
  }
  const void* row = reinterpret_cast<const void*>(source - 1);
  if (kColumns == 4 && initial_dtype == DType::kBF16) {
    const std::uint64_t four = *reinterpret_cast<const std::uint64_t*>(static_cast<const std::uint16_t*>(row) + v);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) x[c] = bits_to_float(static_cast<std::uint32_t>(four >> (16 * c)) << 16);
    return;
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) x[c] = load(row, initial_dtype, v + c);
}

template <int kColumns>
__device__ inline void store_columns(SdmSource target, std::int64_t v, const float (&x)[kColumns]) {
  float* row = reinterpret_cast<float*>(target) + v;
  if constexpr (kColumns == 4) {
    store_four(row, x);
  } else {
    *row = x[0];
  }
}

/// What a group of 32 lanes does with a token's rows: row_lanes rows side by side, column_lanes * kColumns columns of
/// each.
struct SdmLane {
  __device__ SdmLane(int column_lanes, int columns_each) {
    const int lane = static_cast<int>(threadIdx.x) % 32, group = static_cast<int>(threadIdx.x) / 32;
    row = lane / column_lanes;
    row_lanes = 32 / column_lanes;
    const std::int64_t groups = blockDim.x / 32;
    column = ((blockIdx.x * groups + group) * column_lanes + lane % column_lanes) * columns_each;
  }
  int row, row_lanes;
  std::int64_t column;
};

/// Sum over the row lanes of a group; every lane gets that of its columns.
template <int kColumns>
__device__ inline void sum_rows(float (&x)[kColumns], int column_lanes) {
  for (int distance = column_lanes; distance < 32; distance *= 2) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) x[c] += shuffle_xor(x[c], distance);
  }
}

}  // namespace cairn::gpu
