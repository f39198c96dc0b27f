// short_conv: pieces of 64 tokens and 1,024 channels; a sequence of one piece also updates its tail there, others at
// the end.
#include <algorithm>
#include <cstring>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/row_kernels.h"
#include "backends/reference/reference_backend.h"

namespace cairn::cpu {
namespace {

constexpr std::int32_t kPieceTokens = 64, kPieceChannels = 1024;

std::size_t short_conv_scratch_bytes(const ShortConvArgs&) { return 0; }

std::int64_t pieces_of(const Batch& batch, std::int32_t sequence) {
  return (batch.offsets_host[sequence + 1] - batch.offsets_host[sequence] + kPieceTokens - 1) / kPieceTokens;
}

/// The last n - 1 inputs of sequences of several pieces; such a sequence is longer than its tail.
void update_long_tails(const ShortConvArgs& a) {
  for (std::int32_t b = 0; b < a.batch.sequence_count; ++b) {
    if (pieces_of(a.batch, b) <= 1) continue;
    for (std::int32_t j = 0; j < a.kernel_size - 1; ++j) {
      const std::int32_t from = a.batch.offsets_host[b + 1] - (a.kernel_size - 1) + j;
      std::memcpy(a.tails[b] + static_cast<std::int64_t>(j) * a.channel_count, row(a.in, from),
                  static_cast<std::size_t>(a.channel_count) * sizeof(float));
    }
  }
}

void short_conv_run(BackendQueue* queue, const ShortConvArgs& a, void* scratch) {
  if (a.kernel_size > kConvLargestKernel) return reference::reference_backend()->ops->short_conv.run(queue, a, scratch);
  Device& device = device_of(queue);
  const RowKernels& kernels = row_kernels(device.isa);
  const std::int64_t channel_pieces = (a.channel_count + kPieceChannels - 1) / kPieceChannels;
  std::int64_t token_pieces = 0;
  for (std::int32_t b = 0; b < a.batch.sequence_count; ++b) token_pieces += pieces_of(a.batch, b);
  device.pool.parallel_for(token_pieces * channel_pieces, [&](std::int64_t item) {
    std::int64_t piece = item / channel_pieces;
    std::int32_t b = 0;
    for (; piece >= pieces_of(a.batch, b); ++b) piece -= pieces_of(a.batch, b);
    const auto begin = static_cast<std::int32_t>(a.batch.offsets_host[b] + piece * kPieceTokens);
    const auto channel = static_cast<std::int32_t>(item % channel_pieces) * kPieceChannels;
    kernels.short_conv(a, {b, begin, std::min(begin + kPieceTokens, a.batch.offsets_host[b + 1]), channel,
                           std::min(channel + kPieceChannels, a.channel_count)});
  });
  update_long_tails(a);
}

}  // namespace

void override_short_conv(OpTable& ops) {
  ops.short_conv.scratch_bytes = short_conv_scratch_bytes;
  ops.short_conv.run = short_conv_run;
}

}  // namespace cairn::cpu
