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

template <int kVectors, bool kPartial>
inline void write_columns(const SdmRows& s, int column, int last) {
  Lanes residual[kVectors], value[kVectors];
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) {
    residual[j] = value[j] = load_columns<kPartial>(s.value + column + j * kLanes, j == kVectors - 1, last);
  }
  for (int i = 0; i < s.write_count; ++i) {
    const Lanes weight = broadcast(-s.write_weights[i] * s.write_decays[i]);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const Lanes row = load_columns<kPartial>(s.write_rows[i] + column + j * kLanes, j == kVectors - 1, last);
      residual[j] = fma(weight, row, residual[j]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) {
    store_columns<kPartial>(s.residual + column + j * kLanes, j == kVectors - 1, last, residual[j]);
  }
  for (int i = 0; i < s.write_count; ++i) {
    const Lanes decay = broadcast(s.write_decays[i]), write = broadcast(s.beta * s.write_weights[i]);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      float* row = s.write_rows[i] + column + j * kLanes;
      const Lanes decayed = load_columns<kPartial>(row, j == kVectors - 1, last) * decay;
      const Lanes change = s.slot_residual ? value[j] - decayed : residual[j];
      store_columns<kPartial>(row, j == kVectors - 1, last, fma(write, change, decayed));
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
      const int c = column + j * kLanes;
      const bool is_short = kPartial && j == kVectors - 1;
      const Lanes row = is_short ? load_row_end(s.read_rows[i], kind, c, last) : load_row(s.read_rows[i], kind, c);
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

void convert_row(int count, const void* from, RowKind kind, float* to) {
  int c = 0;
  for (; c + kLanes <= count; c += kLanes) store(to + c, load_row(from, kind, c));
  if (c < count) store_first(to + c, count - c, load_row_end(from, kind, c, count - c));
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

/// Keeps the `count` largest of n scores in `kept` with their places, in the order of places.
inline void keep_largest(int n, int padded, int count, const float* scores, float* kept, float* places) {
  const float threshold = find_threshold(padded, scores, count);
  int above = 0;
  for (int i = 0; i < n; ++i) above += scores[i] > threshold;
  int equal_left = count - above, held = 0;
  for (int i = 0; i < n && held < count; ++i) {
    const bool is_equal = scores[i] == threshold;
    if (!(scores[i] > threshold) && !(is_equal && equal_left > 0)) continue;
    equal_left -= is_equal;
    kept[held] = scores[i];
    places[held++] = static_cast<float>(i);
  }
}

/// A score's rank is the number of scores that stand before it: larger ones, and equal ones at lower places.
inline void write_by_rank(int n, int padded, int count, const float* scores, const float* place_of, std::int32_t* places) {
  const Lanes one = broadcast(1.0f), zero = broadcast(0.0f);
  for (int i = 0; i < padded; i += kLanes) {
    const Lanes own = load(scores + i), place = counted_lanes(i);
    Lanes rank = zero;
    for (int j = 0; j < n; ++j) {
      const Lanes other = broadcast(scores[j]), at = broadcast(static_cast<float>(j));
      const Lanes not_less = select_less(other, own, zero, one), more = select_less(own, other, one, zero);
      rank = rank + select_less(at, place, not_less, more);
    }
    float ranks[kLanes];
    store(ranks, rank);
    for (int l = 0; l < kLanes && i + l < n; ++l) {
      const int r = static_cast<int>(ranks[l]);
      if (r < count) places[r] = static_cast<std::int32_t>(place_of ? place_of[i + l] : static_cast<float>(i + l));
    }
  }
}

void largest_places(int n, int count, const float* scores, float* work, std::int32_t* places) {
  constexpr int kRankAll = 48;  // up to here counting ranks is cheaper than searching a threshold first
  const auto padded_of = [](int size) { return (size + kLanes - 1) / kLanes * kLanes; };
  float *clean = work, *kept = work + padded_of(n), *kept_places = kept + padded_of(count);
  for (int i = 0; i < padded_of(n); ++i) {
    clean[i] = i < n && scores[i] == scores[i] ? scores[i] : -__builtin_inff();
  }
  if (n <= kRankAll || n == count) return write_by_rank(n, padded_of(n), count, clean, nullptr, places);
  keep_largest(n, padded_of(n), count, clean, kept, kept_places);
  for (int i = count; i < padded_of(count); ++i) kept[i] = -__builtin_inff();
  write_by_rank(count, padded_of(count), count, kept, kept_places, places);
}

}  // namespace cairn::cpu::CAIRN_ISA
