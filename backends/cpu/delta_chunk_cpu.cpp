#include "backends/cpu/delta_chunk_cpu.h"

#include <algorithm>
#include <cmath>

namespace cairn::cpu {
namespace {

int round_up_16(int n) { return (n + kBlock - 1) / kBlock * kBlock; }

}  // namespace

ChunkWork carve_chunk_work(int key_dim, int value_dim, ScratchLayout& layout) {
  ChunkWork w = {};
  w.key_dim = key_dim, w.value_dim = value_dim;
  w.key_width = round_up_16(key_dim), w.value_width = round_up_16(value_dim);
  const std::size_t keys = static_cast<std::size_t>(kChunk) * w.key_width, pairs = kChunk * kChunk;
  for (float** rows :
       {&w.query, &w.key, &w.erase, &w.log_decay, &w.key_columns, &w.key_out, &w.erase_in, &w.query_in}) {
    *rows = layout.take<float>(keys);
  }
  for (float** square : {&w.key_key, &w.query_key, &w.solve, &w.attend}) *square = layout.take<float>(pairs);
  for (float** row : {&w.beta, &w.high, &w.low, &w.in, &w.tail}) *row = layout.take<float>(kChunk);
  w.total = layout.take<float>(w.key_width);
  w.values = layout.take<float>(static_cast<std::size_t>(kChunk) * w.value_width);
  w.out = layout.take<float>(static_cast<std::size_t>(kChunk) * w.value_width);
  w.row_work = layout.take<float>(row_decay_work(w.key_width));
  return w;
}

void pack_rows(const RecurrentKernels& kernels, int n, int columns, const float* from, std::int64_t from_stride,
               float* to, int width) {
  kernels.copy_rows(n, columns, from, from_stride, to, width);
  for (int i = 0; columns < width && i < n; ++i) {
    std::fill(to + static_cast<std::int64_t>(i) * width + columns, to + static_cast<std::int64_t>(i + 1) * width, 0.0f);
  }
  std::fill(to + static_cast<std::int64_t>(n) * width, to + static_cast<std::int64_t>(round_up_16(n)) * width, 0.0f);
}

void pack_numbers(int n, const float* from, std::int64_t from_stride, float* to) {
  for (int i = 0; i < n; ++i) to[i] = from[i * from_stride];
  std::fill(to + n, to + kChunk, 0.0f);
}

double cumulate_log_decay(int n, const float* log_decay, float* high, float* low) {
  double sum = 0;
  for (int i = 0; i < kChunk; ++i) {
    if (i < n) sum += std::max(log_decay[i], -120.0f);
    high[i] = static_cast<float>(sum);
    low[i] = static_cast<float>(sum - high[i]);
  }
  return sum;
}

void relate_tokens(const RecurrentKernels& kernels, const ChunkWork& w, int n) {
  kernels.transpose(round_up_16(n), w.key_dim, w.key, w.key_width, w.key_columns, kChunk);
  for (int first = 0; first < n; first += kBlock) {  // columns above the diagonal block are not needed
    const std::int64_t start = static_cast<std::int64_t>(first) * w.key_width;
    ChunkProduct product = {.rows = std::min(kBlock, n - first),
                            .columns = first + kBlock,
                            .depth = w.key_dim,
                            .a = w.key + start,
                            .a_stride = w.key_width,
                            .b = w.key_columns,
                            .b_stride = kChunk,
                            .c = w.key_key + first * kChunk,
                            .c_stride = kChunk};
    kernels.multiply(product);
    product.a = w.query + start;
    product.c = w.query_key + first * kChunk;
    kernels.multiply(product);
  }
}

void decay_by_token(const RecurrentKernels& kernels, const ChunkWork& w, int n, float scale, bool has_beta) {
  const double total = cumulate_log_decay(n, w.log_decay, w.high, w.low);
  kernels.decay_triangle({.token_count = n,
                          .high = w.high,
                          .low = w.low,
                          .beta = has_beta ? w.beta : nullptr,
                          .scale = scale,
                          .kk = w.key_key,
                          .qk = w.query_key,
                          .solve = w.solve,
                          .attend = w.attend});
  for (int i = 0; i < kChunk; ++i) w.tail[i] = static_cast<float>(total - w.high[i] - w.low[i]);
  kernels.exponentials(kChunk, w.tail, w.tail);
  kernels.exponentials(kChunk, w.high, w.in);
  kernels.scale_columns(w.key_dim, n, w.key_columns, kChunk, w.tail, w.key_out, kChunk);
  std::fill_n(w.total, w.key_width, w.in[kChunk - 1]);
  float factor[kChunk];
  for (int i = 0; i < kChunk; ++i) factor[i] = -w.in[i];
  kernels.scale_rows(n, w.key_width, w.key, w.key_width, factor, w.erase_in, w.key_width);
  for (int i = 0; i < kChunk; ++i) factor[i] = scale * w.in[i];
  kernels.scale_rows(n, w.key_width, w.query, w.key_width, factor, w.query_in, w.key_width);
}

void decay_by_row(const RecurrentKernels& kernels, const ChunkWork& w, int n, const float* erase, float scale,
                  bool has_beta) {
  kernels.row_decay({.token_count = n,
                     .key_dim = w.key_dim,
                     .width = w.key_width,
                     .erase = erase,
                     .query = w.query,
                     .key = w.key,
                     .log_decay = w.log_decay,
                     .beta = has_beta ? w.beta : nullptr,
                     .scale = scale,
                     .solve = w.solve,
                     .attend = w.attend,
                     .erase_in = w.erase_in,
                     .query_in = w.query_in,
                     .key_out = w.key_out,
                     .total = w.total,
                     .work = w.row_work});
}

void advance_state(const RecurrentKernels& kernels, const ChunkWork& w, int n, const ChunkUpdate& update) {
  if (update.is_delta) {
    kernels.multiply({.rows = n,
                      .columns = w.value_dim,
                      .depth = w.key_dim,
                      .a = w.erase_in,
                      .a_stride = w.key_width,
                      .b = update.state,
                      .b_stride = w.value_dim,
                      .c = w.values,
                      .c_stride = w.value_width,
                      .accumulate = true});
    kernels.solve_unit_lower(n, w.value_dim, w.solve, w.values, w.value_width);
  }
  if (update.residual) {
    kernels.copy_rows(n, w.value_dim, w.values, w.value_width, update.residual, update.residual_stride);
  }
  if (update.has_beta) kernels.scale_rows(n, w.value_dim, w.values, w.value_width, w.beta, w.values, w.value_width);
  kernels.multiply({.rows = n,
                    .columns = w.value_dim,
                    .depth = w.key_dim,
                    .a = w.query_in,
                    .a_stride = w.key_width,
                    .b = update.state,
                    .b_stride = w.value_dim,
                    .c = w.out,
                    .c_stride = w.value_width});
  kernels.multiply({.rows = n,
                    .columns = w.value_dim,
                    .depth = n,
                    .a = w.attend,
                    .a_stride = kChunk,
                    .b = w.values,
                    .b_stride = w.value_width,
                    .c = w.out,
                    .c_stride = w.value_width,
                    .accumulate = true,
                    .is_lower = true});
  kernels.multiply({.rows = w.key_dim,
                    .columns = w.value_dim,
                    .depth = n,
                    .a = w.key_out,
                    .a_stride = kChunk,
                    .b = w.values,
                    .b_stride = w.value_width,
                    .c = update.state,
                    .c_stride = w.value_dim,
                    .keep = w.total});
}

}  // namespace cairn::cpu
