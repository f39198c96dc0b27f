// short_conv: y_t = act(sum_j w[c, j] x_{t-n+1+j} + bias), one pass over the rows, no transposed copy.
//   Shapes    in, out [T, C]; weight [C, n]; tails [n - 1, C]
//   Traffic   each input row is read n times while it is in the L1 cache: a block of channels (1,024 for n = 4: whole
//   pages, for
//             the prefetcher) moves down the tokens
#pragma once

#include "backends/cpu/lane_loops.inc.h"
#include "backends/cpu/row_kernels.h"

namespace cairn::cpu::CAIRN_ISA {
namespace {

constexpr std::int32_t kBlockWeights =
    4096;  // a block's transposed weights [n, channels] and its rows fit the L1 cache

/// Weights of four taps of kLanes channels, w [kLanes, 4], one vector for each tap.
inline void load_four_taps(const float* w, Lanes* tap) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
  const Lanes a = load(w), b = load(w + 16), c = load(w + 32), d = load(w + 48);  // channels 0 to 3, 4 to 7, ...
  const __m512d ab_low = _mm512_castps_pd(_mm512_unpacklo_ps(a, b)),
                ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
  const __m512d cd_low = _mm512_castps_pd(_mm512_unpacklo_ps(c, d)),
                cd_high = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  tap[0] = _mm512_permutexvar_ps(order, _mm512_castpd_ps(_mm512_unpacklo_pd(ab_low, cd_low)));
  tap[1] = _mm512_permutexvar_ps(order, _mm512_castpd_ps(_mm512_unpackhi_pd(ab_low, cd_low)));
  tap[2] = _mm512_permutexvar_ps(order, _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, cd_high)));
  tap[3] = _mm512_permutexvar_ps(order, _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, cd_high)));
#else
  float columns[4][kLanes];
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < kLanes; ++i) columns[j][i] = w[4 * i + j];
    tap[j] = load(columns[j]);
  }
#endif
}

/// The weights of channels [c, c + count), transposed: to [n, block].
inline void transpose_weights(const ShortConvArgs& a, std::int32_t c, std::int32_t count, std::int32_t block,
                              float* to) {
  const float* w = a.weight + static_cast<std::int64_t>(c) * a.kernel_size;
  std::int32_t i = 0;
  for (; a.kernel_size == 4 && i + kLanes <= count; i += kLanes) {
    Lanes tap[4];
    load_four_taps(w + 4 * i, tap);
    for (int j = 0; j < 4; ++j) store(to + j * block + i, tap[j]);
  }
  for (std::int32_t rest = i; rest < count; ++rest) {
    for (std::int32_t j = 0; j < a.kernel_size; ++j) to[j * block + rest] = w[rest * a.kernel_size + j];
  }
}

/// Row of the inputs at `index` of the sequence, which starts at batch row `first`; before its first token: of the
/// tail.
inline const float* conv_input(const ShortConvArgs& a, std::int32_t sequence, std::int32_t first, std::int32_t index) {
  if (index >= 0) return row_of(a.in.data, a.in.stride, first + index);
  return a.tails[sequence] + static_cast<std::int64_t>(index + a.kernel_size - 1) * a.channel_count;
}

/// One token, channels [c, c + count); weights_NC [n, block]. kSize: the kernel's size, or 0: any.
template <bool kSilu, int kSize>
inline void conv_token(const ShortConvArgs& a, const float* const* inputs, const float* weights_NC, std::int32_t block,
                       float* out, std::int32_t c, std::int32_t count) {
  const float* from[kConvLargestKernel];
  const std::int32_t size = kSize ? kSize : a.kernel_size;
  for (std::int32_t j = 0; j < size; ++j) from[j] = inputs[j] + c;
  const float* bias = a.bias ? a.bias + c : nullptr;
  for_lanes(count, [&](std::int32_t i, int n) {
    Lanes y = bias ? read(bias + i, n) : broadcast(0.0f);
    for (std::int32_t j = 0; j < size; ++j) y = fma(read(from[j] + i, n), read(weights_NC + j * block + i, n), y);
    write(out + c + i, n, kSilu ? silu(y) : y);
  });
}

/// The tail of a sequence that this piece has read whole; before its last output is written when that lies on the
/// input.
void update_tail(const ShortConvArgs& a, const ConvPiece& p, std::int32_t c, std::int32_t count) {
  const std::int32_t first = a.batch.offsets_host[p.sequence], length = a.batch.offsets_host[p.sequence + 1] - first;
  for (std::int32_t j = 0; j < a.kernel_size - 1; ++j) {
    const float* from = conv_input(a, p.sequence, first, length - (a.kernel_size - 1) + j);
    float* to = a.tails[p.sequence] + static_cast<std::int64_t>(j) * a.channel_count;
    std::memmove(to + c, from + c, static_cast<std::size_t>(count) * sizeof(float));
  }
}

template <bool kSilu, int kSize>
void conv_block(const ShortConvArgs& a, const ConvPiece& p, std::int32_t c, std::int32_t count) {
  alignas(64) float weights_NC[kBlockWeights];
  const std::int32_t block = kBlockWeights / a.kernel_size;
  transpose_weights(a, c, count, block, weights_NC);
  const std::int32_t first = a.batch.offsets_host[p.sequence];
  const bool is_whole = p.begin == first && p.end == a.batch.offsets_host[p.sequence + 1];
  const float* inputs[kConvLargestKernel];
  if (is_whole && p.end - p.begin == 1) {  // out may be in
    float y[kBlockWeights];
    for (std::int32_t j = 0; j < a.kernel_size; ++j)
      inputs[j] = conv_input(a, p.sequence, first, j - a.kernel_size + 1);
    conv_token<kSilu, kSize>(a, inputs, weights_NC, block, y - c, c, count);
    update_tail(a, p, c, count);
    std::memcpy(row_of(a.out.data, a.out.stride, p.begin) + c, y, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int32_t t = p.begin; t < p.end; ++t) {
    for (std::int32_t j = 0; j < a.kernel_size; ++j) {
      inputs[j] = conv_input(a, p.sequence, first, t - first - a.kernel_size + 1 + j);
    }
    conv_token<kSilu, kSize>(a, inputs, weights_NC, block, row_of(a.out.data, a.out.stride, t), c, count);
  }
  if (is_whole) update_tail(a, p, c, count);
}

void short_conv_piece(const ShortConvArgs& a, const ConvPiece& p) {
  const std::int32_t block = kBlockWeights / a.kernel_size;
  for (std::int32_t c = p.channel_begin; c < p.channel_end; c += block) {
    const std::int32_t count = p.channel_end - c < block ? p.channel_end - c : block;
    const bool has_silu = a.activation == GateKind::kSilu;
    if (a.kernel_size == 4) {
      has_silu ? conv_block<true, 4>(a, p, c, count) : conv_block<false, 4>(a, p, c, count);
    } else {
      has_silu ? conv_block<true, 0>(a, p, c, count) : conv_block<false, 0>(a, p, c, count);
    }
  }
}

}  // namespace
}  // namespace cairn::cpu::CAIRN_ISA
