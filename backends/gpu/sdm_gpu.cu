// sdm: product-key addressing, then the tables are updated and read. No copy of rows, no walk over slots.
//   decode   sdm_address, sdm_decode
//   prefill  sdm_address, the claim of rows for all tokens at once (sdm_claim), sdm_walk
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/sdm_decode.cuh"
#include "backends/gpu/kernels/sdm_walk.cuh"

namespace cairn::gpu {
namespace {

int larger_count(const SdmArgs& args) {
  return sdm_kept(args.write_count > args.read_count ? args.write_count : args.read_count, args.side);
}

template <int kEach>
void launch_address(const Launcher& launcher, const SdmArgs& args, const SdmScratch& scratch, bool is_decode) {
  const std::int32_t lists = (args.side + kEach * kSdmGroup - 1) / (kEach * kSdmGroup);
  SdmAddressArgs kernel_args{args, scratch, 1, is_decode};
  while (kernel_args.lists < lists && kernel_args.lists < kSdmMostLists) kernel_args.lists *= 2;
  const dim3 grid(static_cast<unsigned>(args.batch.token_count), static_cast<unsigned>(args.head_count), 2);
  const dim3 block(static_cast<unsigned>(2 * kSdmGroup * kernel_args.lists));
  if (args.dtype == DType::kBF16) {
    launcher.early(sdm_address_kernel<kEach, std::uint32_t>, grid, block, 0, kernel_args);
  } else {
    launcher.early(sdm_address_kernel<kEach, std::uint64_t>, grid, block, 0, kernel_args);
  }
}

/// Neighbouring columns that a lane takes: 16 bytes where all rows are whole pieces of it and have equal types.
int columns_of_lane(const SdmArgs& args) {
  const bool has_half_initial = args.initial && args.initial_dtype != DType::kF32;
  const bool has_half = has_half_initial || args.row_dtype != DType::kF32;
  if (reinterpret_cast<std::uintptr_t>(args.initial) % 16 != 0) return 1;
  if (args.value_dim % (has_half ? 8 : 4) != 0) return 1;
  return args.row_dtype != DType::kF32 && (has_half_initial || !args.initial) ? 8 : 4;
}

std::int64_t parts_of(std::int64_t all, std::int64_t size) { return (all + size - 1) / size; }
std::int64_t whole(std::int64_t count, std::int64_t unit) { return parts_of(count, unit) * unit; }

/// How the columns of a pair of sequence and head are cut, in pieces of kColumns: of a block, of each of its tiles.
struct DecodeCut {
  std::int64_t pieces, of_block, of_tile;
};

/// As many blocks as are resident at a time, in whole lines of 128 bytes: at 30 pieces a tile neighbours share lines,
/// and take 33.1 us where 24 take 31.7 (bf16, 64 sequences). Bits do not depend on it.
template <int kRows, int kGroups, int kLanes, int kColumns>
DecodeCut cut_columns(const Launcher& launcher, const SdmArgs& args) {
  using Memory = SdmDecodeMemory<kRows, kGroups, kColumns>;
  constexpr int kResident = 512 / (kGroups * kLanes), kLine = kColumns == 1 ? kSdmGroup : 8;
  const auto& device = launcher.device().properties;
  const auto room = static_cast<std::size_t>(device.shared_bytes_per_block / kResident - 1024);
  int lanes = kLanes;
  while (lanes > 1 && Memory::size_bytes(lanes) > room) --lanes;
  if (lanes > kLine) lanes -= lanes % kLine;
  const std::int64_t pairs = static_cast<std::int64_t>(args.head_count) * args.batch.sequence_count;
  const std::int64_t resident = kResident * device.multiprocessors / (pairs > 0 ? pairs : 1);
  DecodeCut cut;
  cut.pieces = parts_of(args.value_dim, kColumns);
  cut.of_block = whole(parts_of(cut.pieces, resident < 1 ? 1 : resident), kLine);
  const std::int64_t even = whole(parts_of(cut.of_block, parts_of(cut.of_block, lanes)), kLine);
  cut.of_tile = even < lanes ? even : lanes;
  return cut;
}

template <int kRows, int kGroups, int kLanes, int kColumns, bool kHasF16>
void launch_decode(const Launcher& launcher, const SdmArgs& args, const SdmScratch& scratch, const DecodeCut& cut) {
  const dim3 grid(static_cast<unsigned>(parts_of(cut.pieces, cut.of_block)), static_cast<unsigned>(args.head_count),
                  static_cast<unsigned>(args.batch.sequence_count));
  const SdmDecodeArgs kernel_args{{args, scratch},
                                  static_cast<std::int32_t>(cut.of_block * kColumns),
                                  static_cast<std::int32_t>(cut.of_tile * kColumns)};
  launcher.early(sdm_decode_kernel<kRows, kGroups, kLanes, kColumns, kHasF16>, grid, dim3(kGroups * kLanes),
                 SdmDecodeMemory<kRows, kGroups, kColumns>::size_bytes(static_cast<int>(cut.of_tile)), kernel_args);
}

template <int kRows, int kGroups, int kColumns, bool kHasF16>
void launch_decode(const Launcher& launcher, const SdmArgs& args, const SdmScratch& scratch) {
  launch_decode<kRows, kGroups, kSdmGroup, kColumns, kHasF16>(
      launcher, args, scratch, cut_columns<kRows, kGroups, kSdmGroup, kColumns>(launcher, args));
}

/// Sets of up to 64: where a block has many columns, one of twice the lanes has a multiprocessor to itself.
template <int kColumns, bool kHasF16>
void launch_wide_decode(const Launcher& launcher, const SdmArgs& args, const SdmScratch& scratch) {
  if constexpr (kColumns > 1 && !kHasF16) {
    const DecodeCut cut = cut_columns<8, 8, 2 * kSdmGroup, kColumns>(launcher, args);
    if (cut.of_block > kSdmGroup) {
      return launch_decode<8, 8, 2 * kSdmGroup, kColumns, kHasF16>(launcher, args, scratch, cut);
    }
  }
  launch_decode<8, 8, kColumns, kHasF16>(launcher, args, scratch);
}

template <int kColumns, bool kHasF16>
void run_decode(const Launcher& launcher, const SdmArgs& args, const SdmScratch& scratch) {
  const int count = larger_count(args);
  if (count <= 16) {
    launch_decode<2, 8, kColumns, kHasF16>(launcher, args, scratch);
  } else if (count <= 32) {
    launch_decode<4, 8, kColumns, kHasF16>(launcher, args, scratch);
  } else if (count <= 64) {
    launch_wide_decode<kColumns, kHasF16>(launcher, args, scratch);
  } else {
    launch_decode<8, 16, kColumns, kHasF16>(launcher, args, scratch);
  }
}

void run_decode(const Launcher& launcher, const SdmArgs& args, const SdmScratch& scratch) {
  const bool has_f16 = args.initial && args.initial_dtype == DType::kF16;
  switch (columns_of_lane(args)) {
    case 8:
      return has_f16 ? run_decode<8, true>(launcher, args, scratch) : run_decode<8, false>(launcher, args, scratch);
    case 4:
      return has_f16 ? run_decode<4, true>(launcher, args, scratch) : run_decode<4, false>(launcher, args, scratch);
    default: return run_decode<1, true>(launcher, args, scratch);
  }
}

template <int kRows, int kColumnLanes, int kColumns, int kAhead>
void launch_walk(const Launcher& launcher, const SdmArgs& args, const SdmScratch& scratch, int groups) {
  const int tile = groups * kColumnLanes * kColumns;
  const dim3 grid(static_cast<unsigned>((args.value_dim + tile - 1) / tile), static_cast<unsigned>(args.head_count),
                  static_cast<unsigned>(args.batch.sequence_count));
  const std::size_t shared_bytes = groups * sizeof(SdmWalkShared<kRows, kColumnLanes, kColumns, kAhead>);
  with_element(args.dtype, [&](auto element) {
    launcher(sdm_walk_kernel<kRows, kColumnLanes, kColumns, kAhead, decltype(element)>, grid,
             dim3(static_cast<unsigned>(groups * kSdmGroup)), shared_bytes, SdmKernelArgs{args, scratch});
  });
}

/// Two groups a block; one where a chip has 64 KB of shared memory, and then for large sets shorter lists. The bits are
/// the same: groups walk alone.
template <int kRows, int kColumnLanes, int kColumns>
void launch_walk(const Launcher& launcher, const SdmArgs& args, const SdmScratch& scratch) {
  using Shared = SdmWalkShared<kRows, kColumnLanes, kColumns, kSdmAhead>;
  const auto room = static_cast<std::size_t>(launcher.device().properties.shared_bytes_per_block);
  if constexpr (sizeof(Shared) > 64 * 1024) {
    static_assert(sizeof(SdmWalkShared<kRows, kColumnLanes, kColumns, kSdmLeastAhead>) <= 64 * 1024);
    if (sizeof(Shared) > room)
      return launch_walk<kRows, kColumnLanes, kColumns, kSdmLeastAhead>(launcher, args, scratch, 1);
  }
  launch_walk<kRows, kColumnLanes, kColumns, kSdmAhead>(launcher, args, scratch, 2 * sizeof(Shared) <= room ? 2 : 1);
}

template <int kColumns>
void run_walk(const Launcher& launcher, const SdmArgs& args, const SdmScratch& scratch) {
  const int count = larger_count(args);
  if (count <= 16) {
    launch_walk<2, 4, kColumns>(launcher, args, scratch);
  } else if (count <= 32) {
    launch_walk<4, 4, kColumns>(launcher, args, scratch);
  } else if (count <= 64) {
    launch_walk<4, 2, kColumns>(launcher, args, scratch);
  } else {
    launch_walk<4, 1, kColumns>(launcher, args, scratch);
  }
}

void run_claims(const Launcher& launcher, const SdmArgs& args, const SdmScratch& scratch) {
  const std::int64_t per_token = static_cast<std::int64_t>(args.head_count) * sdm_kept(args.write_count, args.side);
  std::int64_t longest = 0;
  for (std::int32_t b = 0; b < args.batch.sequence_count; ++b) {
    const std::int64_t length = args.batch.offsets_host[b + 1] - args.batch.offsets_host[b];
    longest = length > longest ? length : longest;
  }
  const dim3 chunks(static_cast<unsigned>((longest * per_token + kSdmChunk - 1) / kSdmChunk),
                    static_cast<unsigned>(args.batch.sequence_count));
  const SdmKernelArgs kernel_args{args, scratch};
  launcher(sdm_mark_kernel, chunks, dim3(kSdmClaimThreads), 0, kernel_args);
  launcher(sdm_count_kernel, chunks, dim3(kSdmClaimThreads), 0, kernel_args);
  launcher(sdm_number_kernel, chunks, dim3(kSdmClaimThreads), 0, kernel_args);
  const dim3 pairs(static_cast<unsigned>(args.batch.token_count), static_cast<unsigned>(args.head_count));
  launcher(sdm_resolve_kernel, pairs, dim3(kSdmMaxCount), 0, kernel_args);
}

/// No sequence has more than one token.
bool is_one_step(const SdmArgs& args) {
  if (args.phase != Phase::kDecode) return false;
  for (std::int32_t b = 0; b < args.batch.sequence_count; ++b) {
    if (args.batch.offsets_host[b + 1] - args.batch.offsets_host[b] > 1) return false;
  }
  return true;
}

const char* unsupported_reason(const SdmArgs& args) {
  const std::int64_t kept_writes = sdm_kept(args.write_count, args.side),
                     writes = std::int64_t{args.batch.token_count} * args.head_count * kept_writes;
  return first_reason({require_activations("sdm", args.dtype), require_range("sdm", "side", args.side, 1, kSdmMaxSide),
                       require_range("sdm", "write_count", kept_writes, 1, kSdmMaxCount),
                       require_range("sdm", "read_count", sdm_kept(args.read_count, args.side), 1, kSdmMaxCount),
                       require_range("sdm", "head_count", args.head_count, 1, 65535),
                       require_range("sdm", "writes of all tokens", writes, 0, kSdmMostClaims),
                       args.initial ? require_floating("sdm", args.initial_dtype) : nullptr,
                       require_activations("sdm", args.row_dtype)});
}

std::size_t scratch_bytes(const SdmArgs& args) { return carve_sdm_scratch(args, nullptr).size_bytes; }

void run(BackendQueue* queue, const SdmArgs& args, void* memory) {
  const Launcher launcher(queue, "sdm");
  const SdmScratch scratch = carve_sdm_scratch(args, memory);
  const bool is_decode = is_one_step(args);
  const int count = larger_count(args);
  if (count <= 32) {
    launch_address<1>(launcher, args, scratch, is_decode);
  } else if (count <= 64) {
    launch_address<2>(launcher, args, scratch, is_decode);
  } else {
    launch_address<4>(launcher, args, scratch, is_decode);
  }
  if (is_decode) return run_decode(launcher, args, scratch);
  run_claims(launcher, args, scratch);
  columns_of_lane(args) >= 4 ? run_walk<4>(launcher, args, scratch) : run_walk<1>(launcher, args, scratch);
}

}  // namespace

void add_sdm(OpTable& ops) { ops.sdm = {unsupported_reason, scratch_bytes, run}; }

}  // namespace cairn::gpu
