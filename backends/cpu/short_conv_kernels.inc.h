// short_conv: y_t = act(sum_j w[c, j] x_{t-n+1+j} + bias), one pass over the rows, no transposed copy.
//   Shapes    in, out [T, C]; weight [C, n]; tails [n - 1, C]
//   Traffic   each input row is read n times while it is in the L1 cache: a block of kBlock channels moves down the tokens
#pragma once

#include "backends/cpu/lane_loops.inc.h"
#include "backends/cpu/row_kernels.h"

namespace cairn::cpu::CAIRN_ISA {
namespace {

constexpr std::int32_t kBlock = 256;

/// Row of the inputs at `index` of the sequence, which starts at batch row `first`; before its first token: of the tail.
inline const float* conv_input(const ShortConvArgs& a, std::int32_t sequence, std::int32_t first, std::int32_t index) {
  if (index >= 0) return row_of(a.in.data, a.in.stride, first + index);
  return a.tails[sequence] + static_cast<std::int64_t>(index + a.kernel_size - 1) * a.channel_count;
}

/// One token, channels [c, c + count); weights_NC [n, kBlock].
template <bool kSilu>
inline void conv_token(const ShortConvArgs& a, const float* const* inputs, const float* weights_NC, float* out, std::int32_t c,
                       std::int32_t count) {
  for_lanes(count, [&](std::int32_t i, int n) {
    Lanes y = a.bias ? read(a.bias + c + i, n) : broadcast(0.0f);
    for (std::int32_t j = 0; j < a.kernel_size; ++j) y = fma(read(inputs[j] + c + i, n), load(weights_NC + j * kBlock + i), y);
    write(out + c + i, n, kSilu ? silu(y) : y);
  });
}

/// The tail of a sequence that this piece has read whole; before its last output is written when that lies on the input.
void update_tail(const ShortConvArgs& a, const ConvPiece& p, std::int32_t c, std::int32_t count) {
  const std::int32_t first = a.batch.offsets_host[p.sequence], length = a.batch.offsets_host[p.sequence + 1] - first;
  for (std::int32_t j = 0; j < a.kernel_size - 1; ++j) {
    const float* from = conv_input(a, p.sequence, first, length - (a.kernel_size - 1) + j);
    float* to = a.tails[p.sequence] + static_cast<std::int64_t>(j) * a.channel_count;
    std::memmove(to + c, from + c, static_cast<std::size_t>(count) * sizeof(float));
  }
}

template <bool kSilu>
void conv_block(const ShortConvArgs& a, const ConvPiece& p, std::int32_t c, std::int32_t count) {
  float weights_NC[kConvLargestKernel * kBlock];
  for (std::int32_t j = 0; j < a.kernel_size; ++j) {
    for (std::int32_t i = 0; i < kBlock; ++i) {
      weights_NC[j * kBlock + i] = i < count ? a.weight[static_cast<std::int64_t>(c + i) * a.kernel_size + j] : 0;
    }
  }
  const std::int32_t first = a.batch.offsets_host[p.sequence];
  const bool is_whole = p.begin == first && p.end == a.batch.offsets_host[p.sequence + 1];
  const float* inputs[kConvLargestKernel];
  if (is_whole && p.end - p.begin == 1) {  // out may be in
    float y[kBlock];
    for (std::int32_t j = 0; j < a.kernel_size; ++j) inputs[j] = conv_input(a, p.sequence, first, j - a.kernel_size + 1);
    conv_token<kSilu>(a, inputs, weights_NC, y - c, c, count);
    update_tail(a, p, c, count);
    std::memcpy(row_of(a.out.data, a.out.stride, p.begin) + c, y, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int32_t t = p.begin; t < p.end; ++t) {
    for (std::int32_t j = 0; j < a.kernel_size; ++j) {
      inputs[j] = conv_input(a, p.sequence, first, t - first - a.kernel_size + 1 + j);
    }
    conv_token<kSilu>(a, inputs, weights_NC, row_of(a.out.data, a.out.stride, t), c, count);
  }
  if (is_whole) update_tail(a, p, c, count);
}

void short_conv_piece(const ShortConvArgs& a, const ConvPiece& p) {
  for (std::int32_t c = p.channel_begin; c < p.channel_end; c += kBlock) {
    const std::int32_t count = p.channel_end - c < kBlock ? p.channel_end - c : kBlock;
    a.activation == GateKind::kSilu ? conv_block<true>(a, p, c, count) : conv_block<false>(a, p, c, count);
  }
}

}  // namespace
}  // namespace cairn::cpu::CAIRN_ISA
