// Queues a decode whose keys are split over blocks (kernels/softmax_attention_decode.cuh).
#pragma once

#include <algorithm>
#include <bit>

#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/softmax_attention_combine.cuh"
#include "backends/gpu/kernels/softmax_attention_decode.cuh"

namespace cairn::gpu {

/// Slots that `sequence_count` sequences need: weighted values [., V] and totals [., 2] for each head.
inline std::size_t slot_rows(int sequence_count, int query_heads, int slot_count) {
  return static_cast<std::size_t>(sequence_count) * static_cast<std::size_t>(query_heads) *
         static_cast<std::size_t>(slot_count);
}

/// Keys that a group of lanes reads in one step: a power of two that fills a stage.
inline int keys_at_once(int bytes_per_key, const Device& device) {
  constexpr int kRoomySharedBytes = 160 * 1024;  // above it two blocks of stages of 8 KB fit
  const int stage_bytes = device.properties.shared_bytes_per_block >= kRoomySharedBytes ? 8 * 1024 : 4 * 1024;
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(std::clamp(stage_bytes / bytes_per_key, 1, 16))));
}

/// All sequences, `at_once` of them in a launch: their slots share the scratch. Heads and memory of `args` are set.
template <int kHeads, int kColumns>
void decode_in_slots(const Launcher& launcher, DecodeAttentionArgs args, int at_once) {
  const SoftmaxAttentionArgs& call = args.call;
  args.head_groups = (call.query_heads / call.kv_heads + kHeads - 1) / kHeads;
  // A recorded step is replayed until its furthest position passes a power of two.
  std::int64_t furthest = 0;
  for (std::int32_t b = 0; b < call.batch.sequence_count; ++b) furthest = std::max(furthest, call.starts_host[b] + 1);
  const auto reach = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(furthest)));
  // No shorter context has more chunks.
  const std::int64_t chunks = ((reach - 1) >> chunk_log2_of(args, reach)) + 1;
  const auto slots = static_cast<unsigned>(call.window == 0 && chunks < args.slot_count ? chunks : args.slot_count);
  const DecodeLayout shared(kHeads, args.keys_at_once, call.key_dim, call.value_dim);
  const int dim = call.key_dim == call.value_dim ? call.key_dim : 0;
  const bool is_roomy = args.keys_at_once == keys_of_step(dim);
  const auto kernel = dim == 256 && is_roomy   ? softmax_attention_decode_kernel<kHeads, kColumns, 256>
                      : dim == 128 && is_roomy ? softmax_attention_decode_kernel<kHeads, 1, 128>
                      : dim == 64 && is_roomy  ? softmax_attention_decode_kernel<kHeads, 1, 64>
                                               : softmax_attention_decode_kernel<kHeads, kColumns, 0>;
  for (std::int32_t first = 0; first < call.batch.sequence_count; first += at_once) {
    const auto sequences = static_cast<unsigned>(std::min(at_once, call.batch.sequence_count - first));
    args.first_sequence = first;
    launcher.early(kernel, dim3(slots, static_cast<unsigned>(call.kv_heads * args.head_groups), sequences),
                   dim3(kDecodeThreads), static_cast<std::size_t>(shared.total) * sizeof(float), args);
    launcher.early(combine_slots_kernel<kCombineThreads>, dim3(static_cast<unsigned>(call.query_heads), sequences),
                   dim3(kCombineThreads), kCombineThreads * 4 * sizeof(float), args);
  }
}

}  // namespace cairn::gpu
