// What the kernels of sdm hand to each other, and where rows are.
#pragma once

#include "backends/gpu/kernels/any_element.cuh"
#include "backends/interface/scratch_layout.h"

namespace cairn::gpu {

/// Slots of a write or read set.
__host__ __device__ inline std::int32_t sdm_kept(std::int32_t count, std::int32_t side) {
  const std::int64_t slots = static_cast<std::int64_t>(side) * side;
  return count < slots ? count : static_cast<std::int32_t>(slots);
}

/// Occurrences of prefill are counted in pieces of this many; a sequence's pieces begin at chunk_of().
inline constexpr int kSdmChunk = 1024;
inline constexpr int kSdmMaxSide = 1024, kSdmMaxCount = 128, kSdmGroup = 32;

/// Where a row's values lie: an address, its lowest bit set where they have 16 bits, its highest where those are f16
/// and not bf16; 0: zeros. Rows are f32 or bf16, those of M0 also f16.
using SdmSource = std::uint64_t;
inline constexpr SdmSource kSdmHalf = 1, kSdmF16 = SdmSource{1} << 63;
__device__ inline SdmSource sdm_pointer(SdmSource source) { return source & ~(kSdmHalf | kSdmF16); }

/// The two bits alone.
inline constexpr std::uint32_t kSdmKindHalf = 1, kSdmKindF16 = 2;
__device__ inline std::uint32_t sdm_kind(SdmSource source) {
  return (source & kSdmHalf ? kSdmKindHalf : 0) | (source & kSdmF16 ? kSdmKindF16 : 0);
}

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

__device__ inline SdmSource sdm_row(const SdmKernelArgs& args, const SdmTable& table, std::int32_t row) {
  const int shift = args.scratch.slab_shift;
  const bool is_half = args.call.row_dtype != DType::kF32;
  const std::int64_t offset_bytes =
      static_cast<std::int64_t>(row & ((1 << shift) - 1)) * args.call.value_dim * (is_half ? 2 : 4);
  return (reinterpret_cast<SdmSource>(table.slabs[row >> shift]) + static_cast<SdmSource>(offset_bytes)) |
         (is_half ? kSdmHalf : 0);
}

/// Values of a slot (counted over heads) whose row is `row`; below 0: it equals M0.
__device__ inline SdmSource sdm_source(const SdmKernelArgs& args, const SdmTable& table, std::int32_t row,
                                       std::int64_t slot) {
  if (row >= 0) return sdm_row(args, table, row);
  if (!args.call.initial) return 0;
  const bool is_half = args.call.initial_dtype != DType::kF32;
  const std::int64_t offset_bytes = slot * args.call.value_dim * (is_half ? 2 : 4);
  return (reinterpret_cast<SdmSource>(args.call.initial) + static_cast<SdmSource>(offset_bytes)) |
         (is_half ? kSdmHalf : 0) | (args.call.initial_dtype == DType::kF16 ? kSdmF16 : 0);
}

// Values are loaded as they lie and become f32 where they are used: a conversion behind its load would wait for it, and
// so would all loads after it. For the same reason columns in fours are one load of 16 bytes, whatever their type: of a
// row of 16-bit values it also brings the four before or after, so such rows must be whole 16-byte pieces. Columns in
// eights are a load of 16 bytes of a row of 16-bit values, and of no other.

/// Where the load that brings column v begins. kHasF16 false: no row is f16.
template <int kColumns, bool kHasF16 = true>
__device__ inline SdmSource columns_at(SdmSource source, std::int64_t v) {
  const bool is_half = source & kSdmHalf;
  const std::int64_t offset = kColumns == 8   ? 2 * v
                              : !is_half      ? 4 * v
                              : kColumns == 4 ? 2 * v & ~std::int64_t{15}
                                              : 2 * v;
  return (kHasF16 ? sdm_pointer(source) : source & ~kSdmHalf) + static_cast<SdmSource>(offset);
}

/// kColumns neighbouring values from column v of a source, as they lie: 16 bytes, or one value as bits.
template <int kColumns>
__device__ inline float4 load_columns(SdmSource source, std::int64_t v) {
  const SdmSource at = columns_at<kColumns>(source, v);
  if constexpr (kColumns > 1) return *reinterpret_cast<const float4*>(at);
  float4 piece = {};
  piece.x = source & kSdmHalf ? bits_to_float(*reinterpret_cast<const std::uint16_t*>(at))
                              : *reinterpret_cast<const float*>(at);
  return piece;
}
/// The same to shared memory, beside the arithmetic where it is a whole piece; zeros where there is no source.
template <int kColumns, bool kHasF16>
__device__ inline void start_columns(SdmSource source, std::int64_t v, float4* to) {
  if constexpr (kColumns > 1) {
    copy_16_async(to, reinterpret_cast<const void*>(columns_at<kColumns, kHasF16>(source, v)), source != 0);
  } else {
    float4 piece = {};
    if (source) piece = load_columns<kColumns>(source, v);
    *to = piece;
  }
}

__device__ inline void unpack_pair(float word, bool is_f16, float* x) {
  const std::uint32_t bits = float_to_bits(word);
  x[0] = is_f16 ? f16_value(static_cast<std::uint16_t>(bits)) : low_bf16(bits);
  x[1] = is_f16 ? f16_value(static_cast<std::uint16_t>(bits >> 16)) : high_bf16(bits);
}

/// What load_columns brought becomes f32.
template <int kColumns, bool kHasF16 = true>
__device__ inline void unpack_columns(std::uint32_t kind, std::int64_t v, const float4& piece, float (&x)[kColumns]) {
  const bool is_half = kind & kSdmKindHalf, is_f16 = kHasF16 && kind & kSdmKindF16;
  if constexpr (kColumns == 8) {
    unpack_pair(piece.x, is_f16, x), unpack_pair(piece.y, is_f16, x + 2);
    unpack_pair(piece.z, is_f16, x + 4), unpack_pair(piece.w, is_f16, x + 6);
  } else if constexpr (kColumns == 4) {
    const bool is_second = v & 4;
    x[0] = piece.x, x[1] = piece.y, x[2] = piece.z, x[3] = piece.w;
    if (!is_half) return;
    unpack_pair(is_second ? piece.z : piece.x, is_f16, x), unpack_pair(is_second ? piece.w : piece.y, is_f16, x + 2);
  } else {
    float pair[2];
    unpack_pair(piece.x, is_f16, pair);
    x[0] = is_half ? pair[0] : piece.x;
  }
}

/// An activation as it lies, and what it is.
__device__ inline float load_raw(const ConstRows& rows, DType dtype, std::int64_t t, std::int64_t column) {
  if (dtype == DType::kF32) return row_of<float>(rows, t)[column];
  return bits_to_float(row_of<std::uint16_t>(rows, t)[column]);
}
__device__ inline float raw_value(float raw, DType dtype) {
  return dtype == DType::kF32 ? raw : bits_to_float(float_to_bits(raw) << 16);
}

/// kColumns values in f32, in shared memory as such.
template <int kColumns>
__device__ inline void load_values(const float* from, float (&x)[kColumns]) {
#pragma unroll
  for (int c = 0; c + 3 < kColumns; c += 4) load_four(from + c, *reinterpret_cast<float(*)[4]>(x + c));
  if constexpr (kColumns == 1) x[0] = *from;
}
template <int kColumns>
__device__ inline void store_values(float* to, const float (&x)[kColumns]) {
#pragma unroll
  for (int c = 0; c + 3 < kColumns; c += 4) store_four(to + c, *reinterpret_cast<const float(*)[4]>(x + c));
  if constexpr (kColumns == 1) *to = x[0];
}

/// x becomes what a row holds of it. Columns in eights are of bf16 rows.
template <int kColumns>
__device__ inline void round_columns(DType row_dtype, float (&x)[kColumns]) {
  if (kColumns < 8 && row_dtype == DType::kF32) return;
  if constexpr (kColumns == 1) {
    x[0] = low_bf16(pack_bf16(x[0], 0));
  } else {
#pragma unroll
    for (int c = 0; c < kColumns; c += 2) {
      const std::uint32_t pair = pack_bf16(x[c], x[c + 1]);
      x[c] = low_bf16(pair), x[c + 1] = high_bf16(pair);
    }
  }
}

/// The upper halves of two f32 in one word.
__device__ inline std::uint32_t join_bf16(float low, float high) {
  return float_to_bits(low) >> 16 | (float_to_bits(high) & 0xFFFF0000u);
}

/// What round_columns left, to columns v, ... of a row.
template <int kColumns>
__device__ inline void store_columns(SdmSource target, DType row_dtype, std::int64_t v, const float (&x)[kColumns]) {
  const bool is_half = kColumns == 8 || row_dtype != DType::kF32;
  const SdmSource at = (target & ~kSdmHalf) + static_cast<SdmSource>(is_half ? 2 * v : 4 * v);
  if (!is_half) {
    store_values(reinterpret_cast<float*>(at), x);
  } else if constexpr (kColumns == 8) {
    float4 piece;
    piece.x = bits_to_float(join_bf16(x[0], x[1])), piece.y = bits_to_float(join_bf16(x[2], x[3]));
    piece.z = bits_to_float(join_bf16(x[4], x[5])), piece.w = bits_to_float(join_bf16(x[6], x[7]));
    *reinterpret_cast<float4*>(at) = piece;
  } else if constexpr (kColumns == 4) {
    *reinterpret_cast<std::uint64_t*>(at) = join_bf16(x[0], x[1]) | std::uint64_t{join_bf16(x[2], x[3])} << 32;
  } else {
    *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(float_to_bits(x[0]) >> 16);
  }
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
