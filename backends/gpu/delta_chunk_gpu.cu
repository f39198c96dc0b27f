// Launches of the chunked prefill. Key dims are rounded up to 32, 64, 96 or 128; value columns come in slices of 32 or
// 64.
#include "backends/gpu/delta_chunk_gpu.h"
#include "backends/gpu/kernels/delta_chunk_intra.cuh"
#include "backends/gpu/kernels/delta_chunk_scan.cuh"
#include "backends/gpu/kernels/gla_chunk_scan.cuh"

namespace cairn::gpu {
namespace {

template <int KD>
struct KeyWidth {
  static constexpr int value = KD;
};

/// Calls run(KeyWidth<KD>{}) for the smallest KD that holds key_dim.
template <class Run>
void with_key_width(std::int32_t key_dim, const Run& run) {
  if (key_dim <= 32) {
    run(KeyWidth<32>{});
  } else if (key_dim <= 64) {
    run(KeyWidth<64>{});
  } else if (key_dim <= 96) {
    run(KeyWidth<96>{});
  } else {
    run(KeyWidth<128>{});
  }
}

std::size_t key_width(std::int32_t key_dim) { return static_cast<std::size_t>(key_dim + 31) / 32 * 32; }

template <int KD, ChunkEdit kEdit>
void launch_intra(const Launcher& launcher, const DeltaChunkArgs& a) {
  const dim3 grid(a.value_heads, a.window_count * (a.blocks_per_window / kChunkBlocks));
  launcher(delta_chunk_intra_kernel<KD, kEdit>, grid, dim3(2 * KD), sizeof(ChunkIntraShared<KD>), a);
}

template <int KD, int kColumns>
void launch_scan(const Launcher& launcher, const DeltaChunkArgs& a, std::int32_t sequences) {
  using Shared = ChunkScanShared<KD, kColumns>;
  const dim3 grid((a.value_dim + Shared::kWidth - 1) / Shared::kWidth, a.value_heads, a.list_count * sequences);
  launcher(delta_chunk_scan_kernel<KD, kColumns>, grid, dim3(chunk_scan_threads(kColumns)), sizeof(Shared), a);
}

template <int KD>
void launch_gla_scan(const Launcher& launcher, const DeltaChunkArgs& a, std::int32_t sequences) {
  const dim3 grid((a.value_dim + kGlaColumns - 1) / kGlaColumns, a.value_heads, a.list_count * sequences);
  launcher(gla_chunk_scan_kernel<KD>, grid, dim3(kGlaScanThreads), sizeof(GlaScanShared<KD>), a);
}

/// Slices of 64 columns read less, slices of 32 fill more multiprocessors; the bits are the same.
bool takes_wide_slices(const Launcher& launcher, const DeltaChunkArgs& a, std::int32_t sequences) {
  if (a.value_dim <= 32) return false;
  const std::int64_t blocks =
      static_cast<std::int64_t>((a.value_dim + 63) / 64) * a.value_heads * a.list_count * sequences;
  return blocks >= launcher.device().properties.multiprocessors;
}

template <int KD>
void launch_scan(const Launcher& launcher, const DeltaChunkArgs& a, std::int32_t sequences) {
  if (takes_wide_slices(launcher, a, sequences)) {
    launch_scan<KD, 4>(launcher, a, sequences);
  } else {
    launch_scan<KD, 2>(launcher, a, sequences);
  }
}

/// Every row of every head begins at a multiple of `elements` 16-bit elements; absent rows do.
bool is_aligned(const ConstRows& rows, std::int32_t dim, std::uintptr_t elements) {
  if (!rows.data) return true;
  return reinterpret_cast<std::uintptr_t>(rows.data) % (2 * elements) == 0 &&
         rows.stride % static_cast<std::int64_t>(elements) == 0 && static_cast<std::uintptr_t>(dim) % elements == 0;
}

bool are_pairs(const float* x) { return reinterpret_cast<std::uintptr_t>(x) % 8 == 0; }

}  // namespace

void find_alignments(DeltaChunkArgs& a) {
  a.has_key_words = are_pairs(a.routed.log_decay) && are_pairs(a.shared.log_decay);
  for (const ConstRows& rows : {a.routed.q, a.routed.k, a.shared.q, a.shared.k, a.erase})
    a.has_key_words = a.has_key_words && is_aligned(rows, a.key_dim, 2);
  a.has_value_pieces = is_aligned(a.v, a.value_dim, 8) && is_aligned(a.write, a.value_dim, 8);
  a.has_out_words = is_aligned(a.out, a.value_dim, 2);
}

bool takes_chunks(DType dtype, Phase phase, std::int32_t key_dim) {
  return dtype == DType::kBF16 && phase == Phase::kPrefill && key_dim <= 128;
}

bool has_room_for_chunks(const Device& device, ChunkEdit edit, std::int32_t key_dim) {
  std::size_t bytes = 0;
  with_key_width(key_dim, [&](auto width) {
    constexpr int KD = decltype(width)::value;
    const std::size_t scan = edit == ChunkEdit::kNone ? sizeof(GlaScanShared<KD>) : sizeof(ChunkScanShared<KD, 4>);
    bytes = scan > sizeof(ChunkIntraShared<KD>) ? scan : sizeof(ChunkIntraShared<KD>);
  });
  return bytes <= static_cast<std::size_t>(device.properties.shared_bytes_per_block);
}

std::int32_t segment_windows(std::int64_t token_count, std::int32_t sequence_count) {
  const std::int64_t windows = token_count / kChunkTokens + sequence_count;
  return static_cast<std::int32_t>(windows < kSegmentWindows ? windows : kSegmentWindows);
}

ChunkTiles carve_chunk_tiles(const ChunkShape& shape, ScratchLayout& layout) {
  const std::size_t windows = segment_windows(shape.token_count, shape.sequence_count),
                    width = key_width(shape.key_dim);
  const std::size_t rows = windows * shape.blocks_per_window * kBlockTokens * shape.value_heads;
  ChunkTiles tiles{};
  tiles.query = layout.take<std::uint16_t>(rows * width);
  tiles.key = layout.take<std::uint16_t>(rows * width);
  tiles.attend = layout.take<std::uint16_t>(rows * kChunkTokens);
  if (shape.is_delta) {
    tiles.erase = layout.take<std::uint16_t>(rows * width);
    tiles.solve = layout.take<std::uint16_t>(rows * kChunkTokens);
  }
  tiles.factors = layout.take<float>(windows * shape.list_count * shape.value_heads * (width + kChunkTokens));
  return tiles;
}

void run_chunk_segment(const Launcher& launcher, const DeltaChunkArgs& args, ChunkEdit edit, std::int32_t sequences) {
  with_key_width(args.key_dim, [&](auto width) {
    constexpr int KD = decltype(width)::value;
    if (edit == ChunkEdit::kNone) {
      launch_intra<KD, ChunkEdit::kNone>(launcher, args);
      launch_gla_scan<KD>(launcher, args, sequences);
      return;
    }
    if (edit == ChunkEdit::kTied) {
      launch_intra<KD, ChunkEdit::kTied>(launcher, args);
    } else {
      launch_intra<KD, ChunkEdit::kDecoupled>(launcher, args);
    }
    launch_scan<KD>(launcher, args, sequences);
  });
}

}  // namespace cairn::gpu
