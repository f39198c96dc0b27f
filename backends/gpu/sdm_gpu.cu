// sdm: product-key addressing, then the tables are updated and read. No copy of rows, no walk over slots.
//   decode   sdm_address, sdm_decode
//   prefill  sdm_address, the claim of rows for all tokens at once (sdm_claim), sdm_walk
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/sdm_decode.cuh"
#include "backends/gpu/kernels/sdm_walk.cuh"

namespace cairn::gpu {
namespace {

int larger_count(const SdmArgs& args) {
  return args.write_count > args.read_count ? args.write_count : args.read_count;
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

/// Four columns a lane where rows and M0 are whole pieces of 16 bytes.
bool is_in_fours(const SdmArgs& args) {
  if (reinterpret_cast<std::uintptr_t>(args.initial) % 16 != 0) return false;
  return args.value_dim % (args.initial && args.initial_dtype != DType::kF32 ? 8 : 4) == 0;
}

/// Few groups in all: small blocks, so that every multiprocessor has one. Many: each block goes through several tiles,
/// and finds its rows once. Bits depend on neither.
template <int kRows, int kColumnLanes, int kColumns>
void launch_decode(const Launcher& launcher, const SdmArgs& args, const SdmScratch& scratch) {
  constexpr int kResidentGroups = 16;  // of a multiprocessor, by registers
  const std::int64_t multiprocessors = launcher.device().properties.multiprocessors;
  const std::int64_t pairs = static_cast<std::int64_t>(args.head_count) * args.batch.sequence_count;
  const std::int64_t tiles = (args.value_dim + kColumnLanes * kColumns - 1) / (kColumnLanes * kColumns);
  const std::int64_t groups = pairs * tiles <= 4 * multiprocessors                 ? 2
                              : pairs * tiles <= kResidentGroups * multiprocessors ? 4
                                                                                   : 8;
  const std::int64_t resident = kResidentGroups * multiprocessors / groups / (pairs > 0 ? pairs : 1);
  const std::int64_t most = (tiles + groups - 1) / groups, blocks = resident < 1      ? 1
                                                                    : resident < most ? resident
                                                                                      : most;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(args.head_count),
                  static_cast<unsigned>(args.batch.sequence_count));
  launcher.early(sdm_decode_kernel<kRows, kColumnLanes, kColumns>, grid,
                 dim3(static_cast<unsigned>(kSdmGroup * groups)), 0, SdmKernelArgs{args, scratch});
}

template <int kRows, int kColumnLanes, int kColumns>
void launch_walk(const Launcher& launcher, const SdmArgs& args, const SdmScratch& scratch) {
  constexpr int kGroups = 2, kTile = kGroups * kColumnLanes * kColumns;
  const dim3 grid(static_cast<unsigned>((args.value_dim + kTile - 1) / kTile), static_cast<unsigned>(args.head_count),
                  static_cast<unsigned>(args.batch.sequence_count));
  with_element(args.dtype, [&](auto element) {
    launcher(sdm_walk_kernel<kRows, kColumnLanes, kColumns, decltype(element)>, grid, dim3(kGroups * kSdmGroup),
             kGroups * sizeof(SdmWalkShared<kRows, kColumnLanes, kColumns>), SdmKernelArgs{args, scratch});
  });
}

template <int kColumns>
void run_decode(const Launcher& launcher, const SdmArgs& args, const SdmScratch& scratch) {
  const int count = larger_count(args);
  if (count <= 16) {
    launch_decode<2, 4, kColumns>(launcher, args, scratch);
  } else if (count <= 32) {
    launch_decode<4, 4, kColumns>(launcher, args, scratch);
  } else if (count <= 64) {
    launch_decode<8, 4, kColumns>(launcher, args, scratch);
  } else {
    launch_decode<8, 2, kColumns>(launcher, args, scratch);
  }
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
  return first_reason({require_activations("sdm", args.dtype), require_range("sdm", "side", args.side, 1, kSdmMaxSide),
                       require_range("sdm", "write_count", args.write_count, 1, kSdmMaxCount),
                       require_range("sdm", "read_count", args.read_count, 1, kSdmMaxCount),
                       require_range("sdm", "head_count", args.head_count, 1, 65535),
                       args.initial ? require_floating("sdm", args.initial_dtype) : nullptr});
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
  if (is_decode)
    return is_in_fours(args) ? run_decode<4>(launcher, args, scratch) : run_decode<1>(launcher, args, scratch);
  run_claims(launcher, args, scratch);
  is_in_fours(args) ? run_walk<4>(launcher, args, scratch) : run_walk<1>(launcher, args, scratch);
}

}  // namespace

void add_sdm(OpTable& ops) { ops.sdm = {unsupported_reason, scratch_bytes, run}; }

}  // namespace cairn::gpu
