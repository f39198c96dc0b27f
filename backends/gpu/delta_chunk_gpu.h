// The chunked prefill of delta_chunk_plan.cuh for the operators that use it.
#pragma once

#include <cstddef>

#include "backends/gpu/gpu_device.h"
#include "backends/gpu/kernels/delta_chunk_plan.cuh"
#include "backends/interface/scratch_layout.h"

namespace cairn::gpu {

/// What decides the scratch of a call.
struct ChunkShape {
  std::int64_t token_count;
  std::int32_t sequence_count, value_heads, key_dim;
  std::int32_t list_count, blocks_per_window;
  bool is_delta;
};

/// Whether the kernels take such a call: bf16, K up to 128.
bool takes_chunks(DType dtype, Phase phase, std::int32_t key_dim);
/// Whether the device has the shared memory for it.
bool has_room_for_chunks(const Device& device, ChunkEdit edit, std::int32_t key_dim);

/// Windows of a segment of this call.
std::int32_t segment_windows(std::int64_t token_count, std::int32_t sequence_count);
ChunkTiles carve_chunk_tiles(const ChunkShape& shape, ScratchLayout& layout);

/// Sets has_key_words, has_value_pieces, has_out_words from the rows and dims.
void find_alignments(DeltaChunkArgs& args);

/// One segment: first_window, window_count, first_sequence and sequence_count of args name it.
void run_chunk_segment(const Launcher& launcher, const DeltaChunkArgs& args, ChunkEdit edit, std::int32_t sequences);

/// Calls run(args, sequences) for each segment of a batch with the segment's places set; args.sequence_count is the batch's.
template <class Run>
void for_each_segment(DeltaChunkArgs& args, const Batch& batch, const Run& run) {
  const std::int32_t count = segment_windows(batch.token_count, batch.sequence_count);
  const auto first_of = [&](std::int32_t b) { return batch.offsets_host[b] / kChunkTokens + b; };
  const std::int32_t windows = first_of(batch.sequence_count);
  std::int32_t sequence = 0;
  for (std::int32_t first = 0; first < windows; first += count) {
    args.first_window = first;
    args.window_count = windows - first < count ? windows - first : count;
    while (sequence + 1 < batch.sequence_count && first_of(sequence + 1) <= first) ++sequence;
    std::int32_t end = sequence + 1;
    while (end < batch.sequence_count && first_of(end) < first + args.window_count) ++end;
    args.first_sequence = sequence;
    run(args, end - sequence);
  }
}

}  // namespace cairn::gpu
