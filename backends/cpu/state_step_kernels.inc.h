// One token over one state, in place: decode, and short pieces of a prefill.
// Compiled once for each instruction set; see README.md.

namespace cairn::cpu::CAIRN_ISA {

/// Columns [column, column + kVectors * kLanes) of the state: its sums, then its update while the rows are in cache.
template <int kVectors, bool kPartial>
inline void step_columns(const StateStep& s, int column, int last) {
  float* state = s.state + column;
  Lanes predicted[kVectors], read[kVectors];
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) predicted[j] = read[j] = broadcast(0.0f);
  for (int k = 0; k < s.key_dim; ++k) {
    const Lanes p = broadcast(s.predict ? s.predict[k] : 0.0f), q = broadcast(s.read[k]);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const Lanes row = load_columns<kPartial>(state + k * static_cast<std::int64_t>(s.value_dim) + j * kLanes,
                                               j == kVectors - 1, last);
      predicted[j] = fma(p, row, predicted[j]);
      read[j] = fma(q, row, read[j]);
    }
  }
  const Lanes own = broadcast(s.read_of_write), scale = broadcast(s.out_scale);
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) {
    const int c = column + j * kLanes;
    const bool is_last = j == kVectors - 1;
    const Lanes value = load_columns<kPartial>(s.value + c, is_last, last);
    const Lanes residual = s.predict ? value - predicted[j] : value;
    const Lanes out = fma(own, residual, read[j]) * scale;
    store_columns<kPartial>(s.out + c, is_last, last,
                            s.accumulate ? load_columns<kPartial>(s.out + c, is_last, last) + out : out);
    if (s.residual) store_columns<kPartial>(s.residual + c, is_last, last, residual);
    predicted[j] = residual;
  }
  for (int k = 0; k < s.key_dim; ++k) {
    const Lanes decay = broadcast(s.decay[k]), write = broadcast(s.write[k]);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      float* row = state + k * static_cast<std::int64_t>(s.value_dim) + j * kLanes;
      const Lanes kept = load_columns<kPartial>(row, j == kVectors - 1, last) * decay;
      store_columns<kPartial>(row, j == kVectors - 1, last, fma(write, predicted[j], kept));
    }
  }
}

void state_step(const StateStep& s) {
  constexpr int kWide = kLanes == 16 ? 8 : 4;
  int column = 0;
  for (; column + kWide * kLanes <= s.value_dim; column += kWide * kLanes)
    step_columns<kWide, false>(s, column, kLanes);
  for (; column + 2 * kLanes <= s.value_dim; column += 2 * kLanes) step_columns<2, false>(s, column, kLanes);
  if (column + kLanes <= s.value_dim) step_columns<1, false>(s, column, kLanes), column += kLanes;
  if (column < s.value_dim) step_columns<1, true>(s, column, s.value_dim - column);
}

}  // namespace cairn::cpu::CAIRN_ISA
