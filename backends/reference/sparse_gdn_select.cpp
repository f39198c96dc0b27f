#include "backends/reference/sparse_gdn_select.h"

#include <algorithm>
#include <cmath>

#include "backends/reference/row_access.h"
#include "backends/reference/scalar_functions.h"
#include "backends/reference/top_k.h"

namespace cairn::reference {
namespace {

enum Tier : std::int32_t { kLow = 0, kMedium = 1, kHigh = 2 };
constexpr std::int32_t kKeptPercent[3] = {8, 30, 95};

/// clamp(round-half-even(rho C), min(2, C), C), in integers: f32 gets rho C = x.5 wrong.
std::int32_t keep_count(std::int32_t chunk_count, std::int32_t percent) {
  const auto kept = static_cast<std::int32_t>(round_half_even(static_cast<std::int64_t>(percent) * chunk_count, 100));
  return std::clamp(kept, std::min(2, chunk_count), chunk_count);
}

/// q_c = mean over the group's heads of s_{c,h} / |s_{.,h}|; a zero norm contributes 0.
void rank_chunks(const SparseGdnSelectionInput& in, double* rank_nC) {
  const std::int32_t per_group = in.head_count / in.group_count;
  std::fill_n(rank_nC, static_cast<std::int64_t>(in.group_count) * in.chunk_count, 0.0);
  for (std::int32_t h = 0; h < in.head_count; ++h) {
    double square = 0;
    for (std::int32_t c = 0; c < in.chunk_count; ++c)
      square += in.scores[c * in.head_count + h] * in.scores[c * in.head_count + h];
    if (square == 0) continue;
    double* rank_C = rank_nC + static_cast<std::int64_t>(h / per_group) * in.chunk_count;
    for (std::int32_t c = 0; c < in.chunk_count; ++c) rank_C[c] += in.scores[c * in.head_count + h] / std::sqrt(square);
  }
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(in.group_count) * in.chunk_count; ++i) rank_nC[i] /= per_group;
}

/// First and last chunk, then by rank, largest first, ties to the lower chunk.
void order_chunks(const double* rank_C, std::int32_t chunk_count, std::int32_t* order_C) {
  order_C[0] = 0;
  if (chunk_count == 1) return;
  order_C[1] = chunk_count - 1;
  top_k(rank_C + 1, chunk_count - 2, chunk_count - 2, order_C + 2);
  for (std::int32_t i = 2; i < chunk_count; ++i) ++order_C[i];
}

/// r = mean of 2^gamma over the last min(16, C) chunks; L = sum of r^j, j = 1 .. C - 2.
void persistence(const SparseGdnSelectionInput& in, double* retention_H, double* lifetime_H) {
  const std::int32_t last = std::min(16, in.chunk_count);
  for (std::int32_t h = 0; h < in.head_count; ++h) {
    double sum = 0;
    for (std::int32_t c = in.chunk_count - last; c < in.chunk_count; ++c)
      sum += std::exp2(in.gamma_log2[c * in.head_count + h]);
    retention_H[h] = sum / last;
    lifetime_H[h] = 0;
    double power = 1;
    for (std::int32_t j = 1; j <= in.chunk_count - 2; ++j) lifetime_H[h] += power *= retention_H[h];
  }
}

/// G_h = sqrt(eta_h / mean eta); all zero: 1.
void visibility(const SparseGdnSelectionInput& in, double* visibility_H) {
  double mean = 0;
  for (std::int32_t h = 0; h < in.head_count; ++h) mean += in.eta[h];
  mean /= in.head_count;
  for (std::int32_t h = 0; h < in.head_count; ++h) visibility_H[h] = mean > 0 ? std::sqrt(in.eta[h] / mean) : 1;
}

/// Sum of s L G over the chunks that an upgrade from keeping `from` to keeping `to` adds to the group.
double upgrade_gain(const SparseGdnSelectionInput& in, const SparseGdnSelection& s, std::int32_t group,
                    std::int32_t from, std::int32_t to) {
  const std::int32_t per_group = in.head_count / in.group_count;
  double gain = 0;
  for (std::int32_t i = from; i < to; ++i) {
    const std::int32_t c = s.order[static_cast<std::int64_t>(group) * in.chunk_count + i];
    for (std::int32_t h = group * per_group; h < (group + 1) * per_group; ++h) {
      gain += in.scores[c * in.head_count + h] * s.lifetime[h] * s.visibility[h];
    }
  }
  return gain;
}

/// B(x, k) = k (n - k) / n (mean x_{1..k} - mean x_{k+1..n})^2 of x sorted descending.
double separation(const double* x, std::int32_t n, std::int32_t k) {
  if (k == 0 || k == n) return 0;
  double upper = 0, lower = 0;
  for (std::int32_t i = 0; i < n; ++i) (i < k ? upper : lower) += x[i];
  const double gap = upper / k - lower / (n - k);
  return static_cast<double>(k) * (n - k) / n * gap * gap;
}

/// n_H of 1 .. max(1, n / 4) with the largest separation, ties to the smaller.
void choose_high_count(std::int32_t n, SparseGdnSelection* s) {
  s->high_choices = std::max(1, n / 4);
  s->high_count = 1;
  for (std::int32_t k = 1; k <= s->high_choices; ++k) {
    s->high_separation[k - 1] = separation(s->sorted, n, k);
    if (s->high_separation[k - 1] > s->high_separation[s->high_count - 1]) s->high_count = k;
  }
}

/// Allowed n_M: the centre rint(n - 87 n_H / 22) and its neighbours that fit into the rest; {0} when the centre is <=
/// 0.
void choose_medium_count(std::int32_t n, std::int32_t rest, SparseGdnSelection* s) {
  const auto centre = static_cast<std::int32_t>(round_half_even(22LL * n - 87LL * s->high_count, 22));
  s->medium_choices = 0;
  if (centre <= 0) s->medium_counts[s->medium_choices++] = 0;
  for (std::int32_t k = centre - 1; centre > 0 && k <= centre + 1; ++k) {
    if (k >= 0 && k <= rest) s->medium_counts[s->medium_choices++] = k;
  }
  std::int32_t best = 0;
  for (std::int32_t i = 0; i < s->medium_choices; ++i) {
    s->medium_separation[i] = separation(s->sorted, rest, s->medium_counts[i]);
    if (s->medium_separation[i] > s->medium_separation[best]) best = i;
  }
  s->medium_count = s->medium_counts[best];
}

/// High first by the gain of medium to high, then medium among the rest; equal gains: lower group first.
void assign_tiers(const SparseGdnSelectionInput& in, SparseGdnSelection* s) {
  const std::int32_t n = in.group_count;
  const bool fixed = in.policy == SparsePolicy::kFixed;
  s->high_choices = s->medium_choices = 0;
  top_k(s->gain_medium_high, n, n, s->by_gain);
  for (std::int32_t i = 0; i < n; ++i) s->sorted[i] = s->gain_medium_high[s->by_gain[i]];
  if (fixed) {
    s->high_count = std::max(1, static_cast<std::int32_t>(round_half_even(3LL * n, 16)));
  } else {
    choose_high_count(n, s);
  }
  std::fill_n(s->tier, n, kLow);
  for (std::int32_t i = 0; i < s->high_count; ++i) s->tier[s->by_gain[i]] = kHigh;

  std::int32_t rest = 0;
  for (std::int32_t p = 0; p < n; ++p) {
    if (s->tier[p] != kHigh) s->rest[rest] = p, s->sorted[rest++] = s->gain_low_medium[p];
  }
  top_k(s->sorted, rest, rest, s->by_gain);
  for (std::int32_t i = 0; i < rest; ++i) s->sorted[i] = s->gain_low_medium[s->rest[s->by_gain[i]]];
  if (fixed) {
    s->medium_count = std::min(static_cast<std::int32_t>(round_half_even(4LL * n, 16)), rest);
  } else {
    choose_medium_count(n, rest, s);
  }
  for (std::int32_t i = 0; i < s->medium_count; ++i) s->tier[s->rest[s->by_gain[i]]] = kMedium;
}

/// SplitMix64 (public domain, S. Vigna): the generator of the random policy, seeded by seed and group.
std::uint64_t next_random(std::uint64_t* state) {
  std::uint64_t z = *state += 0x9E3779B97F4A7C15U;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
  z = (z ^ z >> 27) * 0x94D049BB133111EBU;
  return z ^ z >> 31;
}

/// Marks the group's kept chunks: a prefix of its order; the random policy keeps the anchors and shuffles the others.
void mark_events(const SparseGdnSelectionInput& in, std::int32_t group, const SparseGdnSelection& s) {
  const std::int32_t* order_C = s.order + static_cast<std::int64_t>(group) * in.chunk_count;
  std::uint8_t* mask_C = s.mask + static_cast<std::int64_t>(group) * in.chunk_count;
  const std::int32_t kept = s.keep[s.tier[group]];
  std::fill_n(mask_C, in.chunk_count, std::uint8_t{0});
  if (in.policy != SparsePolicy::kRandom) {
    for (std::int32_t i = 0; i < kept; ++i) mask_C[order_C[i]] = 1;
    return;
  }
  for (std::int32_t i = 0; i < std::min(2, kept); ++i) mask_C[order_C[i]] = 1;
  std::uint64_t state = in.seed * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(group);
  std::int32_t wanted = kept - std::min(2, kept), left = in.chunk_count - 2;
  for (std::int32_t i = 2; i < in.chunk_count; ++i, --left) {  // each of the `left` chunks is taken with wanted / left
    if (next_random(&state) % static_cast<std::uint64_t>(left) >= static_cast<std::uint64_t>(wanted)) continue;
    mask_C[order_C[i]] = 1;
    --wanted;
  }
}

void take_given(const SparseGdnSelectionInput& in, SparseGdnSelection* s) {
  const bool all = in.policy == SparsePolicy::kAll;
  const std::int64_t size = static_cast<std::int64_t>(in.group_count) * in.chunk_count;
  for (std::int64_t i = 0; i < size; ++i) s->mask[i] = all || in.given_mask[i] != 0;
  for (std::int32_t p = 0; p < in.group_count; ++p) s->tier[p] = all || !in.given_tier ? kHigh : in.given_tier[p];
}

}  // namespace

std::int64_t round_half_even(std::int64_t numerator, std::int64_t denominator) {
  std::int64_t quotient = numerator / denominator, remainder = numerator % denominator;
  if (remainder < 0) remainder += denominator, --quotient;
  const bool up = 2 * remainder > denominator || (2 * remainder == denominator && quotient % 2 != 0);
  return quotient + (up ? 1 : 0);
}

SparseGdnSelection carve_sparse_gdn_selection(std::int32_t chunk_count, std::int32_t group_count,
                                              std::int32_t head_count, ScratchLayout& layout) {
  const std::size_t n = group_count, cells = n * chunk_count;
  SparseGdnSelection s = {};
  s.mask = layout.take<std::uint8_t>(cells);
  s.tier = layout.take<std::int32_t>(n);
  s.rank = layout.take<double>(cells);
  s.order = layout.take<std::int32_t>(cells);
  s.retention = layout.take<double>(head_count);
  s.lifetime = layout.take<double>(head_count);
  s.visibility = layout.take<double>(head_count);
  s.gain_low_medium = layout.take<double>(n);
  s.gain_medium_high = layout.take<double>(n);
  s.high_separation = layout.take<double>(n);
  s.by_gain = layout.take<std::int32_t>(n);
  s.rest = layout.take<std::int32_t>(n);
  s.sorted = layout.take<double>(n);
  return s;
}

/// eta_h = 1 / (4C) sum over c, a = 0 .. 3 of [nu_v silu(Z_{t,h,v})]^2,  t = 64 c + 8 + 16 a,  v = 73 (4 c + a) mod V.
void sparse_gdn_gate_energy(const ConstRows& gate, std::int32_t first_row, std::int32_t token_count,
                            std::int32_t head_count, std::int32_t value_dim, const float* norm_weight, double* eta) {
  const std::int32_t chunk_count = (token_count + 63) / 64;
  std::fill_n(eta, head_count, 0.0);
  if (!gate.data) return;  // a layer without an output gate: all heads are equally visible
  for (std::int32_t sample = 0; sample < 4 * chunk_count; ++sample) {
    const std::int32_t t = 64 * (sample / 4) + 8 + 16 * (sample % 4);
    const auto v = static_cast<std::int32_t>(73LL * sample % value_dim);
    for (std::int32_t h = 0; t < token_count && h < head_count; ++h) {
      const double seen = norm_weight[v] * silu(row(gate, first_row + t)[h * value_dim + v]);
      eta[h] += seen * seen;
    }
  }
  for (std::int32_t h = 0; h < head_count; ++h) eta[h] /= 4 * chunk_count;
}

void select_sparse_gdn(const SparseGdnSelectionInput& in, SparseGdnSelection* s) {
  for (std::int32_t tier = 0; tier < 3; ++tier) s->keep[tier] = keep_count(in.chunk_count, kKeptPercent[tier]);
  if (in.policy == SparsePolicy::kAll || in.policy == SparsePolicy::kGiven) return take_given(in, s);
  rank_chunks(in, s->rank);
  for (std::int32_t p = 0; p < in.group_count; ++p) {
    const std::int64_t first = static_cast<std::int64_t>(p) * in.chunk_count;
    order_chunks(s->rank + first, in.chunk_count, s->order + first);
  }
  persistence(in, s->retention, s->lifetime);
  visibility(in, s->visibility);
  for (std::int32_t p = 0; p < in.group_count; ++p) {
    s->gain_low_medium[p] = upgrade_gain(in, *s, p, s->keep[kLow], s->keep[kMedium]);
    s->gain_medium_high[p] = upgrade_gain(in, *s, p, s->keep[kMedium], s->keep[kHigh]);
  }
  assign_tiers(in, s);
  for (std::int32_t p = 0; p < in.group_count; ++p) mark_events(in, p, *s);
}

}  // namespace cairn::reference
