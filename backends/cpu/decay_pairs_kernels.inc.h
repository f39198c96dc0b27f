// Pair products of a chunk's tokens under decay: one decay per token (DecayTriangle), one per key row (RowDecay).
// Compiled once for each instruction set; see README.md.

namespace cairn::cpu::CAIRN_ISA {

/// 0, 1, 2, ... from `first` on.
inline Lanes counted_lanes(int first) {
  static constexpr float kCounted[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(kCounted) + broadcast(static_cast<float>(first));
}

inline int round_up_to_block(int n) { return (n + kBlock - 1) / kBlock * kBlock; }

/// e^(G - border) of `count` tokens from `first` on, or with `inverted` e^(border - G); never above 1.
inline void decays_to_border(const DecayTriangle& t, int first, int count, int border, bool inverted, float* factor) {
  const Lanes zero = broadcast(0.0f), high = broadcast(t.high[border]), low = broadcast(t.low[border]);
  for (int i = first; i < first + count; i += kLanes) {
    const Lanes difference = (load(t.high + i) - high) + (load(t.low + i) - low);
    store(factor + i, exp(min(inverted ? zero - difference : difference, zero)));
  }
}

/// kLanes pairs of row i from column j on, `decay` apart.
inline void store_pairs(const DecayTriangle& t, int i, int j, Lanes decay, Lanes scale) {
  const int place = i * kChunk + j;
  const Lanes zero = broadcast(0.0f), row = broadcast(static_cast<float>(i)), column = counted_lanes(j);
  if (t.kk) {
    const Lanes pair = load(t.kk + place) * decay, weighted = t.beta ? pair * load(t.beta + j) : pair;
    store(t.solve + place, select_less(column, row, zero - weighted, zero));
  }
  if (t.qk) store(t.attend + place, select_less(row, column, zero, load(t.qk + place) * decay * scale));
}

/// Inside a block of 16 tokens every pair has its own exponential; earlier blocks meet this one at its border.
void decay_triangle(const DecayTriangle& t) {
  const Lanes zero = broadcast(0.0f), scale = broadcast(t.scale);
  float since_border[kChunk], to_border[kChunk];
  for (int first = 0; first < t.token_count; first += kBlock) {
    if (first) {
      decays_to_border(t, first, kBlock, first - 1, false, since_border);
      decays_to_border(t, 0, first, first - 1, true, to_border);
    }
    for (int i = first; i < first + kBlock && i < t.token_count; ++i) {
      for (int j = 0; j < first; j += kLanes)
        store_pairs(t, i, j, broadcast(since_border[i]) * load(to_border + j), scale);
      const Lanes high = broadcast(t.high[i]), low = broadcast(t.low[i]);
      for (int j = first; j < first + kBlock; j += kLanes) {
        const Lanes difference = (high - load(t.high + j)) + (low - load(t.low + j));
        store_pairs(t, i, j, exp(min(difference, zero)), scale);
      }
    }
  }
}

/// The pieces of `work`: rows of one block, each [kBlock, width], and three rows [width].
struct RowDecayWork {
  float* alpha;  ///< e^g of the block's tokens; 1 past the last
  float* erase;  ///< e decayed from the block's start
  float* query;
  float* sum;     ///< log-decay since the block's start
  float* factor;  ///< e^sum
  float* entry;   ///< decay from the chunk's start to the block's
};

inline RowDecayWork row_decay_pieces(const RowDecay& d) {
  RowDecayWork w;
  const std::int64_t block = static_cast<std::int64_t>(kBlock) * d.width;
  w.alpha = d.work;
  w.erase = w.alpha + block;
  w.query = w.erase + block;
  w.sum = w.query + block;
  w.factor = w.sum + d.width;
  w.entry = w.factor + d.width;
  return w;
}

/// Decays of tokens [first, first + count), and their keys and queries decayed from the block's and the chunk's start.
inline void decay_rows(const RowDecay& d, const RowDecayWork& w, int first, int count) {
  const Lanes zero = broadcast(0.0f), floor = broadcast(-120.0f), scale = broadcast(d.scale);
  for (int k = 0; k < d.width; k += kLanes) {
    Lanes sum = zero;
    const Lanes entry = load(w.entry + k);
    Lanes factor = broadcast(1.0f);
    for (int t = 0; t < kBlock; ++t) {
      const std::int64_t local = static_cast<std::int64_t>(t) * d.width + k;
      if (t >= count) {
        store(w.alpha + local, broadcast(1.0f));
        continue;
      }
      const std::int64_t row = static_cast<std::int64_t>(first) * d.width + local;
      // e^-120 is 0: no result changes, sums stay small. What is no number stays so: max() gives its second argument then.
      const Lanes g = max(floor, load(d.log_decay + row));
      sum = sum + g;
      factor = exp(sum);
      store(w.alpha + local, exp(g));
      const Lanes query = load(d.query + row) * factor * scale;
      store(w.query + local, query);
      store(d.query_in + row, query * entry);
      if (!d.erase) continue;
      const Lanes erase = load(d.erase + row) * factor;
      store(w.erase + local, erase);
      store(d.erase_in + row, zero - erase * entry);
    }
    store(w.factor + k, factor);
  }
}

/// Pairs inside one block. Keys stand in lanes; walking down the tokens decays those already passed, so that after the
/// last token the keys have decayed to the block's end (kept when `keeps_keys`).
///   pairs[t, s] = factor sum_k row_t k_s decay,  s < t (kStrict) or s <= t
template <bool kStrict>
inline void pairs_in_block(const RowDecay& d, const float* alpha, const float* rows, int first, int count, float factor,
                           bool keeps_keys, float* pairs) {
  for (int lane = 0; lane < kBlock; lane += kLanes) {
    const Lanes column = counted_lanes(lane);
    Lanes sum[kBlock];
    for (int t = 0; t < kBlock; ++t) sum[t] = broadcast(0.0f);
    for (int k = 0; k < d.key_dim; ++k) {
      float* place = d.key_out + static_cast<std::int64_t>(k) * kChunk + first + lane;
      Lanes key = load(place);
#pragma GCC unroll 16
      for (int t = 0; t < kBlock; ++t) {
        const Lanes decayed = key * broadcast(alpha[static_cast<std::int64_t>(t) * d.width + k]);
        key = select_less(column, broadcast(static_cast<float>(t)), decayed, key);
        sum[t] = fma(broadcast(rows[static_cast<std::int64_t>(t) * d.width + k]), key, sum[t]);
      }
      if (keeps_keys) store(place, key);
    }
    for (int t = 0; t < count; ++t) {
      const Lanes limit = broadcast(static_cast<float>(kStrict ? t : t + 1));
      const Lanes scaled = sum[t] * broadcast(factor);
      store(pairs + (first + t) * kChunk + first + lane, select_less(column, limit, scaled, broadcast(0.0f)));
    }
  }
}

/// Pairs with the blocks before, whose keys have decayed to this block's start.
inline void pairs_with_earlier(const RowDecay& d, const float* rows, int first, int count, float* pairs) {
  multiply({.rows = count,
            .columns = first,
            .depth = d.key_dim,
            .a = rows,
            .a_stride = d.width,
            .b = d.key_out,
            .b_stride = kChunk,
            .c = pairs + first * kChunk,
            .c_stride = kChunk});
}

/// Keys of the blocks before decay over this block; so does the entry decay.
inline void decay_earlier(const RowDecay& d, const RowDecayWork& w, int first) {
  for (int k = 0; k < d.key_dim; ++k) {
    const Lanes factor = broadcast(w.factor[k]);
    float* keys = d.key_out + static_cast<std::int64_t>(k) * kChunk;
    for (int s = 0; s < first; s += kLanes) store(keys + s, load(keys + s) * factor);
  }
  for (int k = 0; k < d.width; k += kLanes) store(w.entry + k, load(w.entry + k) * load(w.factor + k));
}

/// solve: columns times -beta.
inline void weigh_columns(const RowDecay& d) {
  for (int i = 0; i < d.token_count; ++i) {
    for (int j = 0; j < round_up_to_block(i + 1); j += kLanes) {
      const Lanes pair = broadcast(0.0f) - load(d.solve + i * kChunk + j);
      store(d.solve + i * kChunk + j, d.beta ? pair * load(d.beta + j) : pair);
    }
  }
}

void row_decay(const RowDecay& d) {
  const RowDecayWork w = row_decay_pieces(d);
  for (int k = 0; k < d.width; k += kLanes) store(w.entry + k, broadcast(1.0f));
  transpose(round_up_to_block(d.token_count), d.key_dim, d.key, d.width, d.key_out, kChunk);
  for (int first = 0; first < d.token_count; first += kBlock) {
    const int count = d.token_count - first < kBlock ? d.token_count - first : kBlock;
    const std::int64_t start = static_cast<std::int64_t>(first) * d.width;
    decay_rows(d, w, first, count);
    if (first) pairs_with_earlier(d, w.query, first, count, d.attend);
    if (first && d.erase) pairs_with_earlier(d, w.erase, first, count, d.solve);
    decay_earlier(d, w, first);
    if (d.erase) pairs_in_block<true>(d, w.alpha, d.erase + start, first, count, 1.0f, false, d.solve);
    pairs_in_block<false>(d, w.alpha, d.query + start, first, count, d.scale, true, d.attend);
  }
  for (int k = 0; k < d.width; k += kLanes) store(d.total + k, load(w.entry + k));
  if (d.erase) weigh_columns(d);
}

}  // namespace cairn::cpu::CAIRN_ISA
