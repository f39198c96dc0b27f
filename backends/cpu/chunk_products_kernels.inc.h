// Products of matrices of a few dozen rows, the unit-lower-triangular solve, and what moves and scales rows.
// Compiled once for each instruction set; see README.md.

namespace cairn::cpu::CAIRN_ISA {

// A tile keeps kAccumulators vectors of c in registers: enough to hide the latency of two multiply-adds a cycle.
constexpr int kAccumulators = kLanes == 16 ? 16 : 8;
constexpr int kTileVectors = kLanes == 16 ? 4 : 2;

/// The last vector of a row may be short.
template <bool kPartial>
inline Lanes load_columns(const float* p, bool is_last, int last) {
  return kPartial && is_last ? load_first(p, last) : load(p);
}
template <bool kPartial>
inline void store_columns(float* p, bool is_last, int last, Lanes x) {
  if (kPartial && is_last) {
    store_first(p, last, x);
  } else {
    store(p, x);
  }
}

template <int kRows, int kVectors, bool kPartial>
inline void accumulate_tile(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, int depth,
                            int last, Lanes (&sum)[kRows][kVectors]) {
  for (int k = 0; k < depth; ++k) {
    Lanes column[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      column[j] = load_columns<kPartial>(b + k * b_stride + j * kLanes, j == kVectors - 1, last);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Lanes factor = broadcast(a[i * a_stride + k]);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) sum[i][j] = fma(factor, column[j], sum[i][j]);
    }
  }
}

template <int kRows, int kVectors, bool kPartial>
inline void product_tile(const ChunkProduct& p, int row, int column, int last) {
  float* c = p.c + row * p.c_stride + column;
  Lanes sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = broadcast(0.0f);
      if (!p.accumulate && !p.keep) continue;
      sum[i][j] = load_columns<kPartial>(c + i * p.c_stride + j * kLanes, j == kVectors - 1, last);
      if (p.keep) sum[i][j] = sum[i][j] * broadcast(p.keep[row + i]);
    }
  }
  const float *a = p.a + row * p.a_stride, *b = p.b + column;
  const int depth = p.is_lower ? p.depth - p.rows + row : p.depth;
  accumulate_tile<kRows, kVectors, kPartial>(a, p.a_stride, b, p.b_stride, depth, last, sum);
  if (p.is_lower) {  // the tile on the diagonal: a zero above it, times what is no number, would be none
#pragma GCC unroll 8
    for (int l = 0; l < kRows; ++l) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        const float* at = b + (depth + l) * p.b_stride + j * kLanes;
        const Lanes value = load_columns<kPartial>(at, j == kVectors - 1, last);
#pragma GCC unroll 8
        for (int i = l; i < kRows; ++i) sum[i][j] = fma(broadcast(a[i * p.a_stride + depth + l]), value, sum[i][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      store_columns<kPartial>(c + i * p.c_stride + j * kLanes, j == kVectors - 1, last, sum[i][j]);
    }
  }
}

template <int kVectors, bool kPartial>
inline void product_panel(const ChunkProduct& p, int column, int last) {
  constexpr int kRows = kAccumulators / kVectors < 8 ? kAccumulators / kVectors : 8;
  int row = 0;
  for (; row + kRows <= p.rows; row += kRows) product_tile<kRows, kVectors, kPartial>(p, row, column, last);
  if (kRows > 4 && row + 4 <= p.rows) product_tile<4, kVectors, kPartial>(p, row, column, last), row += 4;
  if (row + 2 <= p.rows) product_tile<2, kVectors, kPartial>(p, row, column, last), row += 2;
  if (row < p.rows) product_tile<1, kVectors, kPartial>(p, row, column, last);
}

void multiply(const ChunkProduct& p) {
  int column = 0;
  for (; column + kTileVectors * kLanes <= p.columns; column += kTileVectors * kLanes) {
    product_panel<kTileVectors, false>(p, column, kLanes);
  }
  if (kTileVectors > 2 && column + 2 * kLanes <= p.columns)
    product_panel<2, false>(p, column, kLanes), column += 2 * kLanes;
  if (column + kLanes <= p.columns) product_panel<1, false>(p, column, kLanes), column += kLanes;
  if (column < p.columns) product_panel<1, true>(p, column, p.columns - column);
}

/// Rows [row, row + kRows) of x, all rows above being solved: their part of the sum, then the small triangle.
template <int kRows, int kVectors, bool kPartial>
inline void solve_tile(const float* m, float* x, std::int64_t x_stride, int row, int last) {
  Lanes sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = load_columns<kPartial>(x + (row + i) * x_stride + j * kLanes, j == kVectors - 1, last);
    }
  }
  accumulate_tile<kRows, kVectors, kPartial>(m + row * kChunk, kChunk, x, x_stride, row, last, sum);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int l = 0; l < i; ++l) {
      const Lanes factor = broadcast(m[(row + i) * kChunk + row + l]);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) sum[i][j] = fma(factor, sum[l][j], sum[i][j]);
    }
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      store_columns<kPartial>(x + (row + i) * x_stride + j * kLanes, j == kVectors - 1, last, sum[i][j]);
    }
  }
}

template <int kVectors, bool kPartial>
inline void solve_panel(int n, const float* m, float* x, std::int64_t x_stride, int last) {
  int row = 0;
  for (; row + 4 <= n; row += 4) solve_tile<4, kVectors, kPartial>(m, x, x_stride, row, last);
  for (; row < n; ++row) solve_tile<1, kVectors, kPartial>(m, x, x_stride, row, last);
}

void solve_unit_lower(int n, int columns, const float* m, float* x, std::int64_t x_stride) {
  int column = 0;
  for (; column + kTileVectors * kLanes <= columns; column += kTileVectors * kLanes) {
    solve_panel<kTileVectors, false>(n, m, x + column, x_stride, kLanes);
  }
  for (; column + kLanes <= columns; column += kLanes) solve_panel<1, false>(n, m, x + column, x_stride, kLanes);
  if (column < columns) solve_panel<1, true>(n, m, x + column, x_stride, columns - column);
}

typedef float Four __attribute__((vector_size(16)));

/// Sixteen elements at a time: rows and columns of four.
inline void transpose_four(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride) {
  Four r[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&r[i], from + i * from_stride, sizeof r[i]);
  const Four a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
  const Four c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7), d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  const Four column[4] = {__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
                          __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  for (int j = 0; j < 4; ++j) std::memcpy(to + j * to_stride, &column[j], sizeof column[j]);
}

void transpose(int rows, int columns, const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride) {
  const int whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
  for (int j = 0; j < whole_columns; j += 4) {
    for (int i = 0; i < whole_rows; i += 4) {
      transpose_four(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
    }
    for (int i = whole_rows; i < rows; ++i) {
      for (int l = j; l < j + 4; ++l) to[l * to_stride + i] = from[i * from_stride + l];
    }
  }
  for (int j = whole_columns; j < columns; ++j) {
    for (int i = 0; i < rows; ++i) to[j * to_stride + i] = from[i * from_stride + j];
  }
}

void copy_rows(int rows, int columns, const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride) {
  for (int i = 0; i < rows; ++i) {
    int j = 0;
    for (; j + kLanes <= columns; j += kLanes) store(to + i * to_stride + j, load(from + i * from_stride + j));
    if (j < columns)
      store_first(to + i * to_stride + j, columns - j, load_first(from + i * from_stride + j, columns - j));
  }
}

void scale_rows(int rows, int columns, const float* from, std::int64_t from_stride, const float* factor, float* to,
                std::int64_t to_stride) {
  for (int i = 0; i < rows; ++i) {
    const Lanes f = broadcast(factor[i]);
    int j = 0;
    for (; j + kLanes <= columns; j += kLanes) store(to + i * to_stride + j, load(from + i * from_stride + j) * f);
    if (j < columns) {
      store_first(to + i * to_stride + j, columns - j, load_first(from + i * from_stride + j, columns - j) * f);
    }
  }
}

void scale_columns(int rows, int columns, const float* from, std::int64_t from_stride, const float* factor, float* to,
                   std::int64_t to_stride) {
  for (int i = 0; i < rows; ++i) {
    int j = 0;
    for (; j + kLanes <= columns; j += kLanes) {
      store(to + i * to_stride + j, load(from + i * from_stride + j) * load(factor + j));
    }
    if (j < columns) {
      const int left = columns - j;
      store_first(to + i * to_stride + j, left,
                  load_first(from + i * from_stride + j, left) * load_first(factor + j, left));
    }
  }
}

void add_scaled(int count, float factor, const float* from, float* to) {
  const Lanes f = broadcast(factor);
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, fma(f, load(from + i), load(to + i)));
  if (i < count) store_first(to + i, count - i, fma(f, load_first(from + i, count - i), load_first(to + i, count - i)));
}

void exponentials(int count, const float* from, float* to) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, exp(load(from + i)));
  if (i < count) store_first(to + i, count - i, exp(load_first(from + i, count - i)));
}

double sum_of_squares(int count, const float* from) {
  double part[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) part[l] += static_cast<double>(from[i + l]) * from[i + l];
  }
  for (; i < count; ++i) part[0] += static_cast<double>(from[i]) * from[i];
  double sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += part[l];
  return sum;
}

}  // namespace cairn::cpu::CAIRN_ISA
