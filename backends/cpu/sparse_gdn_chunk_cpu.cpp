#include "backends/cpu/sparse_gdn_chunk_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/delta_chunk_cpu.h"

namespace cairn::cpu {
namespace {

constexpr int kBlocks = kChunk / kBlock;

int round_up_16(int n) { return (n + kBlock - 1) / kBlock * kBlock; }

/// The first column that a row block needs: all of them, or the adjacent block's.
int first_column_of(const SparseSequence& s, int block) {
  return s.args.full_inverse || block == 0 ? 0 : (block - 1) * kBlock;
}

void write_blocks(const float* inverse, float* to) {
  for (int block = 0; block < 7; ++block) {  // 00 10 11 21 22 32 33
    const int block_row = (block + 1) / 2, block_column = block / 2;
    for (int i = 0; i < kBlock; ++i, to += kBlock) {
      std::memcpy(to, inverse + (block_row * kBlock + i) * kChunk + block_column * kBlock, kBlock * sizeof(float));
    }
  }
}

}  // namespace

SparseChunk carve_sparse_chunk(const DeltaRuleArgs& a, ScratchLayout& layout) {
  SparseChunk c = {};
  c.key_dim = a.key_dim, c.value_dim = a.value_dim;
  c.key_width = round_up_16(a.key_dim), c.value_width = round_up_16(a.value_dim);
  const std::size_t keys = static_cast<std::size_t>(kChunk) * c.key_width,
                    values = static_cast<std::size_t>(kChunk) * c.value_width;
  for (float** rows : {&c.query, &c.key, &c.key_columns}) *rows = layout.take<float>(keys);
  for (float** square : {&c.key_key, &c.query_key, &c.attend}) *square = layout.take<float>(kChunk * kChunk);
  for (float** row : {&c.log_decay, &c.beta, &c.high, &c.low, &c.in, &c.tail}) *row = layout.take<float>(kChunk);
  c.values = layout.take<float>(values);
  c.out = layout.take<float>(values);
  return c;
}

SparseWork carve_sparse_work(const DeltaRuleArgs& a, ScratchLayout& layout) {
  SparseWork w;
  w.solve = layout.take<float>(kChunk * kChunk);
  w.inverse = layout.take<float>(kChunk * kChunk);
  w.block = layout.take<float>(kBlock * kBlock);
  w.weighted = layout.take<float>(static_cast<std::size_t>(kChunk) * round_up_16(a.value_dim));
  w.scaled = layout.take<float>(static_cast<std::size_t>(kChunk) * round_up_16(a.key_dim));
  w.factor = layout.take<float>(kChunk);
  return w;
}

void load_sparse_keys(const SparseSequence& s, std::int32_t chunk, std::int32_t group, bool relates, SparseChunk* c) {
  const DeltaRuleArgs& a = s.delta();
  const int n = c->token_count = s.tokens_in(chunk);
  pack_rows(s.kernels, n, a.key_dim, row(a.k, s.row_of(chunk)) + static_cast<std::int64_t>(group) * a.key_dim,
            a.k.stride, c->key, c->key_width);
  s.kernels.transpose(round_up_16(n), a.key_dim, c->key, c->key_width, c->key_columns, kChunk);
  for (int first = 0; relates && first < n; first += kBlock) {
    const int column = first_column_of(s, first / kBlock);
    s.kernels.multiply({.rows = std::min(kBlock, n - first),
                        .columns = first + kBlock - column,
                        .depth = a.key_dim,
                        .a = c->key + static_cast<std::int64_t>(first) * c->key_width,
                        .a_stride = c->key_width,
                        .b = c->key_columns + column,
                        .b_stride = kChunk,
                        .c = c->key_key + first * kChunk + column,
                        .c_stride = kChunk});
    for (int i = first; column && i < first + kBlock; ++i)
      std::fill_n(c->key_key + i * kChunk, column, 0.0f);
  }
}

void load_sparse_gates(const SparseSequence& s, std::int32_t chunk, std::int32_t head, SparseChunk* c) {
  const DeltaRuleArgs& a = s.delta();
  const std::int64_t first = s.at(0, head) + static_cast<std::int64_t>(s.row_of(chunk)) * a.value_heads;
  pack_numbers(c->token_count, a.log_decay + first, a.value_heads, c->log_decay);
  pack_numbers(c->token_count, a.beta + first, a.value_heads, c->beta);
  c->total = cumulate_log_decay(c->token_count, c->log_decay, c->high, c->low);
  for (int i = 0; i < kChunk; ++i) c->tail[i] = static_cast<float>(c->total - c->high[i] - c->low[i]);
  s.kernels.exponentials(kChunk, c->tail, c->tail);
  s.kernels.exponentials(kChunk, c->high, c->in);
}

void invert_sparse_system(const SparseSequence& s, const SparseChunk& c, const SparseWork& w) {
  const int n = c.token_count;
  s.kernels.decay_triangle({.token_count = n,
                            .high = c.high,
                            .low = c.low,
                            .beta = nullptr,
                            .scale = 1,
                            .kk = c.key_key,
                            .qk = nullptr,
                            .solve = w.solve,
                            .attend = nullptr});
  s.kernels.scale_rows(n, kChunk, w.solve, kChunk, c.beta, w.solve, kChunk);  // -A
  std::fill_n(w.inverse, kChunk * kChunk, 0.0f);
  for (int i = 0; i < kChunk; ++i) w.inverse[i * kChunk + i] = 1;
  if (s.args.full_inverse) return s.kernels.solve_unit_lower(n, n, w.solve, w.inverse, kChunk);
  for (int block = 0; block < kBlocks && block * kBlock < n; ++block) {
    const int first = block * kBlock, rows = std::min(kBlock, n - first), corner = first * kChunk + first;
    s.kernels.solve_unit_lower(rows, rows, w.solve + corner, w.inverse + corner, kChunk);
    if (block == 0) continue;
    const int left = corner - kBlock;  // C_{i,i-1} = C_ii (-A_{i,i-1}) C_{i-1,i-1}
    s.kernels.multiply({.rows = rows,
                        .columns = kBlock,
                        .depth = kBlock,
                        .a = w.solve + left,
                        .a_stride = kChunk,
                        .b = w.inverse + corner - kBlock * kChunk - kBlock,
                        .b_stride = kChunk,
                        .c = w.block,
                        .c_stride = kBlock});
    s.kernels.multiply({.rows = rows,
                        .columns = kBlock,
                        .depth = rows,
                        .a = w.inverse + corner,
                        .a_stride = kChunk,
                        .b = w.block,
                        .b_stride = kBlock,
                        .c = w.inverse + left,
                        .c_stride = kChunk,
                        .is_lower = true});
  }
}

void apply_sparse_inverse(const SparseSequence& s, const SparseChunk& c, const SparseWork& w, const float* from,
                          float* to, bool accumulate) {
  for (int first = 0; first < c.token_count; first += kBlock) {
    const int column = first_column_of(s, first / kBlock), end = std::min(first + kBlock, c.token_count);
    s.kernels.multiply({.rows = end - first,
                        .columns = c.value_dim,
                        .depth = end - column,
                        .a = w.inverse + first * kChunk + column,
                        .a_stride = kChunk,
                        .b = from + static_cast<std::int64_t>(column) * c.value_width,
                        .b_stride = c.value_width,
                        .c = to + static_cast<std::int64_t>(first) * c.value_width,
                        .c_stride = c.value_width,
                        .accumulate = accumulate,
                        .is_lower = true});
  }
}

void run_sparse_intra(const SparseSequence& s, std::int32_t chunk, std::int32_t group, SparseChunk* c,
                      const SparseWork& w) {
  const DeltaRuleArgs& a = s.delta();
  load_sparse_keys(s, chunk, group, true, c);
  const int n = c->token_count;
  for (std::int32_t h = group * s.heads_per_group(); h < (group + 1) * s.heads_per_group(); ++h) {
    const std::int64_t column = static_cast<std::int64_t>(h) * a.value_dim;
    load_sparse_gates(s, chunk, h, c);
    invert_sparse_system(s, *c, w);
    s.kernels.scale_rows(n, a.value_dim, row(a.v, s.row_of(chunk)) + column, a.v.stride, c->beta, w.weighted,
                         c->value_width);
    apply_sparse_inverse(s, *c, w, w.weighted, c->values, false);
    s.kernels.copy_rows(n, a.value_dim, c->values, c->value_width, row(a.out, s.row_of(chunk)) + column, a.out.stride);
    double square = 0, decay = 0;
    for (int i = kChunk - kBlock; i < n; ++i) {
      square += s.kernels.sum_of_squares(a.value_dim, c->values + static_cast<std::int64_t>(i) * c->value_width);
    }
    for (int i = 0; i < n; ++i) decay += c->log_decay[i];
    s.scores[s.at(chunk, h)] = std::sqrt(square);
    s.gamma_log2[s.at(chunk, h)] = decay / std::log(2.0);
    if (!s.args.trace) continue;
    if (float* u = s.args.trace->u) {
      const std::int64_t width = static_cast<std::int64_t>(a.value_heads) * a.value_dim;
      s.kernels.copy_rows(n, a.value_dim, c->values, c->value_width, u + chunk * kChunk * width + column, width);
    }
    if (float* blocks = s.args.trace->inverse_blocks)
      write_blocks(w.inverse, blocks + s.at(chunk, h) * 7 * kBlock * kBlock);
  }
}

}  // namespace cairn::cpu
