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
inline constexpr int kSdmMaxSide = 1024, kSdmMaxCount = 128, kSdmGroup = 32;

/// Where a row's values come from: an address, its low bit set where they have 16 bits (a row of M0); 0: zeros.
using SdmSource = std::uint64_t;

/// A write of a prefill. link: place of the slot's write one token before, kSdmMaxCount + place: two before, -1:
/// neither.
struct alignas(16) SdmWrite {
  SdmSource source, target;
  float decay, weight, read_weight;  ///< read_weight: with which the token reads the slot that it writes
  std::int32_t link;
};
struct alignas(16) SdmRead {
  SdmSource source;
  float weight;
  std::int32_t link;
};

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
  SdmWrite* writes;                         ///< [T, H, W']
  SdmRead* reads;                           ///< [T, H, R']
  std::int32_t slab_shift;                  ///< rows_per_slab is 1 << slab_shift
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
  for (std::int32_t** piece : {&s.write_slots, &s.write_rows, &s.write_ranks, &s.claim_tokens, &s.claim_rows}) {
    *piece = layout.take<std::int32_t>(writes);
  }
  for (std::int32_t** piece : {&s.read_slots, &s.read_rows}) *piece = layout.take<std::int32_t>(reads);
  s.write_weights = layout.take<float>(writes);
  s.read_weights = layout.take<float>(reads);
  s.claims = layout.take<std::int32_t>(pairs);
  s.chunk_claims = layout.take<std::int32_t>(writes / kSdmChunk + sequences + 1);
  s.writes = layout.take<SdmWrite>(writes);
  s.reads = layout.take<SdmRead>(reads);
  while (1 << s.slab_shift < args.rows_per_slab) ++s.slab_shift;
  s.size_bytes = layout.size_bytes();
  return s;
}

struct SdmKernelArgs {
  SdmArgs call;
  SdmScratch scratch;
};

/// The sequence of a token and its table: nothing that a kernel writes.
struct SdmSequenceView {
  __device__ SdmSequenceView(const SdmArgs& args, std::int64_t t) {
    const std::int32_t* offsets = args.batch.offsets;
    const bool is_own = t < args.batch.sequence_count && offsets[t] == t && offsets[t + 1] > t;  // decode: sequence t
    index = is_own ? static_cast<int>(t) : sequence_of(offsets, args.batch.sequence_count, static_cast<int>(t));
    first_token = offsets[index];
    table = args.tables[index];
  }
  int index;
  std::int64_t first_token;
  SdmTable table;
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

__device__ inline float* sdm_row(const SdmKernelArgs& args, const SdmTable& table, std::int32_t row) {
  const int shift = args.scratch.slab_shift;
  return table.slabs[row >> shift] + static_cast<std::int64_t>(row & ((1 << shift) - 1)) * args.call.value_dim;
}

/// Values of a slot (counted over heads) whose row is `row`; below 0: it equals M0.
__device__ inline SdmSource sdm_source(const SdmKernelArgs& args, const SdmTable& table, std::int32_t row,
                                       std::int64_t slot) {
  if (row >= 0) return reinterpret_cast<SdmSource>(sdm_row(args, table, row));
  if (!args.call.initial) return 0;
  const bool is_half = args.call.initial_dtype != DType::kF32;
  const std::int64_t offset_bytes = slot * args.call.value_dim * (is_half ? 2 : 4);
  return (reinterpret_cast<SdmSource>(args.call.initial) + static_cast<SdmSource>(offset_bytes)) | (is_half ? 1 : 0);
}

// Values are loaded as they lie and become f32 where they are used: a conversion behind its load would wait for it, and
// so would all loads after it. For the same reason four columns are one load of 16 bytes, whatever their type: of a row
// of 16-bit values it also brings the four before or after, so such rows must be whole 16-byte pieces.

/// kColumns neighbouring values from column v of a source.
template <int kColumns>
__device__ inline void load_columns(SdmSource source, std::int64_t v, float (&x)[kColumns]) {
  const SdmSource at = (source & ~SdmSource{1}) + static_cast<SdmSource>(v << (source & 1 ? 1 : 2));
  if constexpr (kColumns == 4) {
    load_four(reinterpret_cast<const float*>(at & ~SdmSource{15}), x);
  } else if (source & 1) {
    x[0] = bits_to_float(*reinterpret_cast<const std::uint16_t*>(at));
  } else {
    x[0] = *reinterpret_cast<const float*>(at);
  }
}

__device__ inline float half_value(std::uint32_t bits, DType dtype) {
  return dtype == DType::kBF16 ? bits_to_float(bits << 16) : f16_value(static_cast<std::uint16_t>(bits));
}

/// What load_columns left of a row of 16-bit values becomes f32.
template <int kColumns>
__device__ inline void unpack_half(DType dtype, std::int64_t v, float (&x)[kColumns]) {
  if constexpr (kColumns == 4) {
    const bool is_second = v % 8 >= 4;
    const std::uint32_t low = float_to_bits(is_second ? x[2] : x[0]), high = float_to_bits(is_second ? x[3] : x[1]);
    if (dtype == DType::kBF16) {
      x[0] = bits_to_float(low << 16), x[1] = bits_to_float(low & 0xFFFF0000u);
      x[2] = bits_to_float(high << 16), x[3] = bits_to_float(high & 0xFFFF0000u);
    } else {
      x[0] = f16_value(static_cast<std::uint16_t>(low)), x[1] = f16_value(static_cast<std::uint16_t>(low >> 16));
      x[2] = f16_value(static_cast<std::uint16_t>(high)), x[3] = f16_value(static_cast<std::uint16_t>(high >> 16));
    }
  } else {
    x[0] = half_value(float_to_bits(x[0]), dtype);
  }
}
template <int kColumns>
__device__ inline void unpack_columns(SdmSource source, DType initial_dtype, std::int64_t v, float (&x)[kColumns]) {
  if (source & 1) unpack_half(initial_dtype, v, x);
}

/// An activation as it lies, and what it is.
__device__ inline float load_raw(const ConstRows& rows, DType dtype, std::int64_t t, std::int64_t column) {
  if (dtype == DType::kF32) return row_of<float>(rows, t)[column];
  return bits_to_float(row_of<std::uint16_t>(rows, t)[column]);
}
__device__ inline float raw_value(float raw, DType dtype) {
  return dtype == DType::kF32 ? raw : bits_to_float(float_to_bits(raw) << 16);
}

/// kColumns values of a row in f32, in shared memory as such.
template <int kColumns>
__device__ inline void load_values(const float* from, float (&x)[kColumns]) {
  if constexpr (kColumns == 4) {
    load_four(from, x);
  } else {
    x[0] = *from;
  }
}
template <int kColumns>
__device__ inline void store_values(float* to, const float (&x)[kColumns]) {
  if constexpr (kColumns == 4) {
    store_four(to, x);
  } else {
    *to = x[0];
  }
}
template <int kColumns>
__device__ inline void store_columns(SdmSource target, std::int64_t v, const float (&x)[kColumns]) {
  store_values(reinterpret_cast<float*>(target) + v, x);
}

/// A group's lanes: row_of_lane is the first place of a set that a lane holds, then every kRowLanes-th.
template <int kColumnLanes>
struct SdmLanes {
  static constexpr int kRowLanes = kSdmGroup / kColumnLanes;
  __device__ static int row() { return static_cast<int>(threadIdx.x) % kSdmGroup / kColumnLanes; }
  __device__ static int column_lane() { return static_cast<int>(threadIdx.x) % kColumnLanes; }
  /// First column of the lane in a tile of the block.
  template <int kColumns>
  __device__ static std::int64_t column(std::int64_t tile) {
    const std::int64_t groups = blockDim.x / kSdmGroup, group = threadIdx.x / kSdmGroup;
    return ((tile * groups + group) * kColumnLanes + column_lane()) * kColumns;
  }
  /// Sum over the row lanes; every lane gets that of its columns.
  template <int kColumns>
  __device__ static void sum_rows(float (&x)[kColumns]) {
#pragma unroll
    for (int distance = kColumnLanes; distance < kSdmGroup; distance *= 2) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) x[c] += shuffle_xor(x[c], distance);
    }
  }
};

}  // namespace cairn::gpu
