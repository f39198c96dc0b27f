// Sparse delta memory: rows of one token, and the search for the best scores.
// Compiled once for each instruction set; see README.md.

namespace cairn::cpu::CAIRN_ISA {

/// kLanes elements of a row of any kind, from column c.
inline Lanes load_row(const void* row, RowKind kind, int c) {
  switch (kind) {
    case RowKind::kF32: return load(static_cast<const float*>(row) + c);
    case RowKind::kBF16: return load_bf16(static_cast<const std::uint16_t*>(row) + c);
    case RowKind::kF16: return load_f16(static_cast<const std::uint16_t*>(row) + c);
    case RowKind::kZero: break;
  }
  return broadcast(0.0f);
}

/// The last n < kLanes elements of a row.
inline Lanes load_row_end(const void* row, RowKind kind, int c, int n) {
  if (kind == RowKind::kF32) return load_first(static_cast<const float*>(row) + c, n);
  if (kind == RowKind::kZero) return broadcast(0.0f);
  std::uint16_t end[kLanes] = {};
  std::memcpy(end, static_cast<const std::uint16_t*>(row) + c, static_cast<std::size_t>(n) * sizeof end[0]);
  return kind == RowKind::kBF16 ? load_bf16(end) : load_f16(end);
}

/// Vector j of kVectors from column c; the last one may be short.
template <bool kPartial>
inline Lanes take_row(const void* row, RowKind kind, int c, bool is_last, int last) {
  return kPartial && is_last ? load_row_end(row, kind, c, last) : load_row(row, kind, c);
}

/// Rounds to bf16, ties to even; NaN stays NaN.
inline void store_bf16(std::uint16_t* to, int n, Lanes x) {
  std::uint32_t bits[kLanes];
  std::uint16_t half[kLanes];
  std::memcpy(bits, &x, sizeof bits);
  for (int i = 0; i < kLanes; ++i) {
    const bool is_nan = (bits[i] & 0x7fffffffu) > 0x7f800000u;
    half[i] =
        static_cast<std::uint16_t>((is_nan ? bits[i] | 0x400000u : bits[i] + 0x7fffu + (bits[i] >> 16 & 1)) >> 16);
  }
  std::memcpy(to, half, static_cast<std::size_t>(n) * sizeof half[0]);
}

template <int kVectors, bool kPartial>
inline void write_columns(const SdmRows& s, int column, int last) {
  Lanes residual[kVectors], value[kVectors];
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) {
    residual[j] = value[j] = load_columns<kPartial>(s.value + column + j * kLanes, j == kVectors - 1, last);
  }
  for (int i = 0; i < s.write_count; ++i) {
    const Lanes weight = broadcast(-s.write_weights[i] * s.write_decays[i]);
    const RowKind kind = s.write_kinds[i];
    if (kind == RowKind::kZero) continue;
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const Lanes row = take_row<kPartial>(s.write_sources[i], kind, column + j * kLanes, j == kVectors - 1, last);
      residual[j] = fma(weight, row, residual[j]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) {
    store_columns<kPartial>(s.residual + column + j * kLanes, j == kVectors - 1, last, residual[j]);
  }
  for (int i = 0; i < s.write_count; ++i) {
    const Lanes decay = broadcast(s.write_decays[i]), write = broadcast(s.beta * s.write_weights[i]);
    const RowKind kind = s.write_kinds[i];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const int c = column + j * kLanes;
      const bool is_last = j == kVectors - 1;
      const Lanes decayed = take_row<kPartial>(s.write_sources[i], kind, c, is_last, last) * decay;
      const Lanes written = fma(write, s.slot_residual ? value[j] - decayed : residual[j], decayed);
      if (s.has_half_rows) {
        store_bf16(static_cast<std::uint16_t*>(s.write_rows[i]) + c, kPartial && is_last ? last : kLanes, written);
      } else {
        store_columns<kPartial>(static_cast<float*>(s.write_rows[i]) + c, is_last, last, written);
      }
    }
  }
}

template <int kVectors, bool kPartial>
inline void read_columns(const SdmRows& s, int column, int last) {
  Lanes sum[kVectors];
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) sum[j] = broadcast(0.0f);
  for (int i = 0; i < s.read_count; ++i) {
    const RowKind kind = s.read_kinds[i];
    if (kind == RowKind::kZero) continue;
    const Lanes weight = broadcast(s.read_weights[i]);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const Lanes row = take_row<kPartial>(s.read_rows[i], kind, column + j * kLanes, j == kVectors - 1, last);
      sum[j] = fma(weight, row, sum[j]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) {
    store_columns<kPartial>(s.out + column + j * kLanes, j == kVectors - 1, last, sum[j]);
  }
}

template <int kVectors, bool kPartial>
inline void sdm_columns(const SdmRows& s, int column, int last) {
  write_columns<kVectors, kPartial>(s, column, last);
  read_columns<kVectors, kPartial>(s, column, last);
}

void sdm_rows(const SdmRows& s) {
  constexpr int kWide = kLanes == 16 ? 8 : 4;
  int column = 0;
  for (; column + kWide * kLanes <= s.columns; column += kWide * kLanes) sdm_columns<kWide, false>(s, column, kLanes);
  for (; column + 2 * kLanes <= s.columns; column += 2 * kLanes) sdm_columns<2, false>(s, column, kLanes);
  if (column + kLanes <= s.columns) sdm_columns<1, false>(s, column, kLanes), column += kLanes;
  if (column < s.columns) sdm_columns<1, true>(s, column, s.columns - column);
}

/// Floats in the order of their values, as integers.
inline std::int32_t ordered_bits(float x) {
  std::int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
inline float from_ordered_bits(std::int32_t bits) {
  if (bits < 0) bits ^= 0x7fffffff;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

/// A score that can be added to any other: what is not a number, or -infinity, counts as the lowest finite one.
inline float rankable(float score) { return score >= -__FLT_MAX__ ? score : -__FLT_MAX__; }

/// How many of the scores (padded with -infinity to whole vectors) are at least `threshold`.
inline int count_at_least(int padded, const float* scores, float threshold) {
  const Lanes limit = broadcast(threshold), one = broadcast(1.0f), zero = broadcast(0.0f);
  Lanes count = zero;
  for (int i = 0; i < padded; i += kLanes) count = count + select_less(load(scores + i), limit, zero, one);
  return static_cast<int>(sum(count));
}

/// The largest threshold that at least `count` scores reach, by halving the interval of float values.
inline float find_threshold(int padded, const float* scores, int count) {
  std::int32_t low = ordered_bits(-__builtin_inff()), high = ordered_bits(__builtin_inff());
  while (low < high) {  // `low` is reached by enough scores
    const auto middle = static_cast<std::int32_t>((static_cast<std::int64_t>(low) + high + 1) >> 1);
    if (count_at_least(padded, scores, from_ordered_bits(middle)) >= count) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return from_ordered_bits(low);
}

/// Keeps the `count` largest of n scores in `kept`, and where they stood, in the order of places.
inline void keep_largest(int n, int padded, int count, const float* scores, float* kept, std::int32_t* places) {
  const float threshold = find_threshold(padded, scores, count);
  int above = 0;
  for (int i = 0; i < n; ++i) above += scores[i] > threshold;
  int equal_left = count - above, held = 0;
  for (int i = 0; i < n && held < count; ++i) {
    const bool is_equal = scores[i] == threshold, is_kept = scores[i] > threshold || (is_equal && equal_left > 0);
    equal_left -= is_equal;
    kept[held] = scores[i];
    places[held] = i;
    held += is_kept;
  }
}

/// ranks[i]: how many scores stand before score i: larger ones, and equal ones at lower places.
inline void count_ranks(int n, int padded, const float* scores, float* ranks) {
  const Lanes one = broadcast(1.0f), zero = broadcast(0.0f);
  for (int i = 0; i < padded; i += kLanes) {
    const Lanes own = load(scores + i), place = counted_lanes(i);
    Lanes rank = zero;
    for (int j = 0; j < n; ++j) {
      const Lanes other = broadcast(scores[j]), at = broadcast(static_cast<float>(j));
      const Lanes not_less = select_less(other, own, zero, one), more = select_less(own, other, one, zero);
      rank = rank + select_less(at, place, not_less, more);
    }
    store(ranks + i, rank);
  }
}

/// Ranks are a permutation, so every place is written once; no branch depends on the scores.
void largest_places(const LargestPlaces& s) {
  constexpr int kRankAll = 48;  // up to here counting all ranks is cheaper than searching a threshold first
  const auto padded_of = [](int size) { return (size + kLanes - 1) / kLanes * kLanes; };
  const int n = s.n, padded = padded_of(n);
  float *clean = s.work, *kept = clean + padded, *ranks = kept + padded;
  auto* places = reinterpret_cast<std::int32_t*>(ranks + padded);
  for (int i = 0; i < padded; ++i) clean[i] = i < n && s.scores[i] == s.scores[i] ? s.scores[i] : -__builtin_inff();
  if (n <= kRankAll || n == s.count) {
    count_ranks(n, padded, clean, ranks);
    for (int i = 0; i < n; ++i) places[s.by_place ? i : static_cast<int>(ranks[i])] = i;
    int held = 0;
    for (int i = 0; i < n && held < s.count; ++i) {
      s.places[held] = places[i];
      held += !s.by_place || ranks[i] < static_cast<float>(s.count);
    }
    return;
  }
  keep_largest(n, padded, s.count, clean, kept, places);
  for (int i = s.count; i < padded_of(s.count); ++i) kept[i] = -__builtin_inff();
  if (!s.by_place) count_ranks(s.count, padded_of(s.count), kept, ranks);
  for (int i = 0; i < s.count; ++i) s.places[s.by_place ? i : static_cast<int>(ranks[i])] = places[i];
}

typedef double EightDoubles __attribute__((vector_size(64)));

/// Every row offers its best pair not yet taken; the first of the largest offers is the one at the lowest slot.
void best_pairs(const BestPairs& s) {
  const int padded = (s.kept + 7) / 8 * 8;
  const double none = -__builtin_inf();
  const auto offer = [&](int row, int column) {
    return static_cast<double>(rankable(s.scores[s.rows[row]])) + rankable(s.scores[s.side + s.columns[column]]);
  };
  for (int r = 0; r < padded; ++r) s.offers[r] = r < s.kept ? offer(r, 0) : none;
  for (int r = 0; r < s.kept; ++r) s.taken[r] = 0;
  for (int i = 0; i < s.count; ++i) {
    EightDoubles largest;
    std::memcpy(&largest, s.offers, sizeof largest);
    for (int r = 8; r < padded; r += 8) {
      EightDoubles other;
      std::memcpy(&other, s.offers + r, sizeof other);
      largest = other > largest ? other : largest;
    }
    double best = largest[0];
    for (int l = 1; l < 8; ++l) best = largest[l] > best ? largest[l] : best;
    int row = 0;
    while (row + 1 < s.kept && s.offers[row] != best) ++row;
    const int column = s.taken[row]++;
    s.slots[i] = s.rows[row] * s.side + s.columns[column];
    s.sums[i] = best;
    s.offers[row] = column + 1 < s.kept ? offer(row, column + 1) : none;
  }
}

}  // namespace cairn::cpu::CAIRN_ISA
