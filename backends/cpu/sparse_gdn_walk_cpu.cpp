#include "backends/cpu/sparse_gdn_walk_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/delta_chunk_cpu.h"

namespace cairn::cpu {
namespace {

/// The group's place in the walk.
struct Cursor {
  const SparseSequence& s;
  const reference::SparseGdnLayout& layout;
  std::int32_t group, event, last_event;  ///< next event of the group's row, and the row's end

  bool is_event(std::int32_t chunk) const { return event < last_event && layout.event_chunk[event] == chunk; }
};

void load_queries(const SparseSequence& s, std::int32_t chunk, std::int32_t group, SparseChunk* c) {
  const DeltaRuleArgs& a = s.delta();
  pack_rows(s.kernels, c->token_count, a.key_dim,
            row(a.q, s.row_of(chunk)) + static_cast<std::int64_t>(group) * a.key_dim, a.q.stride, c->query,
            c->key_width);
  for (int first = 0; first < c->token_count; first += kBlock) {
    s.kernels.multiply({.rows = std::min(kBlock, c->token_count - first),
                        .columns = first + kBlock,
                        .depth = a.key_dim,
                        .a = c->query + static_cast<std::int64_t>(first) * c->key_width,
                        .a_stride = c->key_width,
                        .b = c->key_columns,
                        .b_stride = kChunk,
                        .c = c->query_key + first * kChunk,
                        .c_stride = kChunk});
  }
}

/// U, gates and attention weights of a value head.
void load_head(const SparseSequence& s, std::int32_t chunk, std::int32_t h, SparseChunk* c) {
  const DeltaRuleArgs& a = s.delta();
  load_sparse_gates(s, chunk, h, c);
  s.kernels.copy_rows(c->token_count, a.value_dim,
                      row(a.out, s.row_of(chunk)) + static_cast<std::int64_t>(h) * a.value_dim, a.out.stride, c->values,
                      c->value_width);
  s.kernels.decay_triangle({.token_count = c->token_count,
                            .high = c->high,
                            .low = c->low,
                            .beta = nullptr,
                            .scale = a.scale,
                            .kk = nullptr,
                            .qk = c->query_key,
                            .solve = nullptr,
                            .attend = c->attend});
}

/// factor[i] = scale e^(G_i + before): from a state that lies `before` back.
void form_factors(const SparseSequence& s, const SparseChunk& c, double before, float scale, float* factor) {
  for (int i = 0; i < kChunk; ++i) factor[i] = static_cast<float>(before + c.high[i] + c.low[i]);
  s.kernels.exponentials(kChunk, factor, factor);
  for (int i = 0; i < kChunk; ++i) factor[i] *= scale;
}

/// out = scale e^(G + before) Q S.
void read_state(const SparseSequence& s, const SparseChunk& c, const SparseWork& w, double before, const float* state) {
  form_factors(s, c, before, s.delta().scale, w.factor);
  s.kernels.scale_rows(c.token_count, c.key_width, c.query, c.key_width, w.factor, w.scaled, c.key_width);
  s.kernels.multiply({.rows = c.token_count,
                      .columns = c.value_dim,
                      .depth = c.key_dim,
                      .a = w.scaled,
                      .a_stride = c.key_width,
                      .b = state,
                      .b_stride = c.value_dim,
                      .c = c.out,
                      .c_stride = c.value_width});
}

/// U' = U - W S = U - inverse (beta e^(G + before) K S): W itself is not formed.
/// S <- e^(total + before) S + K^T (U' tail).
void run_event(const SparseSequence& s, const SparseChunk& c, const SparseWork& w, double before, float* state) {
  invert_sparse_system(s, c, w);
  form_factors(s, c, before, -1.0f, w.factor);
  for (int i = 0; i < kChunk; ++i) w.factor[i] *= c.beta[i];
  s.kernels.scale_rows(c.token_count, c.key_width, c.key, c.key_width, w.factor, w.scaled, c.key_width);
  s.kernels.multiply({.rows = c.token_count,
                      .columns = c.value_dim,
                      .depth = c.key_dim,
                      .a = w.scaled,
                      .a_stride = c.key_width,
                      .b = state,
                      .b_stride = c.value_dim,
                      .c = w.weighted,
                      .c_stride = c.value_width});
  apply_sparse_inverse(s, c, w, w.weighted, c.values, true);
  const auto keep = static_cast<float>(std::exp(c.total + before));
  s.kernels.scale_columns(c.key_dim, c.token_count, c.key_columns, kChunk, c.tail, w.scaled, kChunk);
  for (int first = 0; first < c.key_dim; first += kChunk) {
    const int rows = std::min(kChunk, c.key_dim - first);
    std::fill_n(w.factor, rows, keep);
    s.kernels.multiply({.rows = rows,
                        .columns = c.value_dim,
                        .depth = c.token_count,
                        .a = w.scaled + first * kChunk,
                        .a_stride = kChunk,
                        .b = c.values,
                        .b_stride = c.value_width,
                        .c = state + static_cast<std::int64_t>(first) * c.value_dim,
                        .c_stride = c.value_dim,
                        .keep = w.factor});
  }
}

void trace_event(const Cursor& at, std::int32_t h, const float* state) {
  const SparseSequence& s = at.s;
  const std::int32_t snapshot = at.layout.event_snapshot[at.event];
  if (!s.args.trace || !s.args.trace->snapshots || snapshot < 0) return;
  std::int64_t before = snapshot;
  for (std::int32_t lower = 0; lower < h; ++lower) before += at.layout.snapshot_count[lower / s.heads_per_group()];
  const std::int64_t size = static_cast<std::int64_t>(s.delta().key_dim) * s.delta().value_dim;
  std::memcpy(s.args.trace->snapshots + before * size, state, static_cast<std::size_t>(size) * sizeof(float));
}

/// A chunk passes: its event, or only its decay.
void pass_chunk(const Cursor& at, const SparseWork& w, std::int32_t chunk, std::int32_t h, const SparseChunk& c,
                float* state, double* pending) {
  if (at.is_event(chunk)) {
    run_event(at.s, c, w, *pending, state);
    *pending = 0;
    trace_event(at, h, state);
  } else {
    *pending += at.s.gamma_log2[at.s.at(chunk, h)] * std::log(2.0);
  }
}

/// out += attend U'.
void read_own_chunk(const SparseSequence& s, const SparseChunk& c) {
  s.kernels.multiply({.rows = c.token_count,
                      .columns = c.value_dim,
                      .depth = c.token_count,
                      .a = c.attend,
                      .a_stride = kChunk,
                      .b = c.values,
                      .b_stride = c.value_width,
                      .c = c.out,
                      .c_stride = c.value_width,
                      .accumulate = true,
                      .is_lower = true});
}

/// odd.out += scale <q, k> e^(G_i + total - G_j) U' of the even chunk, event or not.
void read_even_chunk(const SparseSequence& s, const SparseWalk& walk) {
  const SparseChunk &even = walk.even, &odd = walk.odd;
  form_factors(s, odd, 0, s.delta().scale, walk.work.factor);
  s.kernels.scale_columns(odd.token_count, kChunk, walk.cross, kChunk, even.tail, walk.work.solve, kChunk);
  s.kernels.scale_rows(odd.token_count, kChunk, walk.work.solve, kChunk, walk.work.factor, walk.work.solve, kChunk);
  s.kernels.multiply({.rows = odd.token_count,
                      .columns = odd.value_dim,
                      .depth = kChunk,
                      .a = walk.work.solve,
                      .a_stride = kChunk,
                      .b = even.values,
                      .b_stride = even.value_width,
                      .c = odd.out,
                      .c_stride = odd.value_width,
                      .accumulate = true});
}

void store_head(const SparseSequence& s, std::int32_t chunk, std::int32_t h, const SparseChunk& c) {
  const DeltaRuleArgs& a = s.delta();
  const std::int64_t column = static_cast<std::int64_t>(h) * a.value_dim;
  s.kernels.copy_rows(c.token_count, a.value_dim, c.out, c.value_width, row(a.out, s.row_of(chunk)) + column,
                      a.out.stride);
  if (!s.args.trace || !s.args.trace->u_new) return;
  const std::int64_t width = static_cast<std::int64_t>(a.value_heads) * a.value_dim;
  s.kernels.copy_rows(c.token_count, a.value_dim, c.values, c.value_width,
                      s.args.trace->u_new + chunk * kChunk * width + column, width);
}

/// Chunks `chunk` and, when there is one, chunk + 1, of one value head. The cursor stands at the pair's first event.
void walk_pair(Cursor at, std::int32_t chunk, std::int32_t h, float* state, double* pending, SparseWalk* walk) {
  const SparseSequence& s = at.s;
  const bool has_odd = chunk + 1 < s.chunk_count;
  load_head(s, chunk, h, &walk->even);
  if (has_odd) load_head(s, chunk + 1, h, &walk->odd);
  read_state(s, walk->even, walk->work, *pending, state);
  if (has_odd) read_state(s, walk->odd, walk->work, *pending + walk->even.total, state);

  pass_chunk(at, walk->work, chunk, h, walk->even, state, pending);
  if (at.is_event(chunk)) ++at.event;
  read_own_chunk(s, walk->even);
  if (has_odd) {
    pass_chunk(at, walk->work, chunk + 1, h, walk->odd, state, pending);
    read_even_chunk(s, *walk);
    read_own_chunk(s, walk->odd);
    store_head(s, chunk + 1, h, walk->odd);
  }
  store_head(s, chunk, h, walk->even);
}

/// What the group's value heads share.
void load_group(const Cursor& at, std::int32_t chunk, SparseWalk* walk) {
  const SparseSequence& s = at.s;
  const bool has_odd = chunk + 1 < s.chunk_count;
  Cursor next = at;
  if (at.is_event(chunk)) ++next.event;
  load_sparse_keys(s, chunk, at.group, at.is_event(chunk), &walk->even);
  load_queries(s, chunk, at.group, &walk->even);
  if (!has_odd) return;
  load_sparse_keys(s, chunk + 1, at.group, next.is_event(chunk + 1), &walk->odd);
  load_queries(s, chunk + 1, at.group, &walk->odd);
  s.kernels.multiply({.rows = walk->odd.token_count,
                      .columns = kChunk,
                      .depth = s.delta().key_dim,
                      .a = walk->odd.query,
                      .a_stride = walk->odd.key_width,
                      .b = walk->even.key_columns,
                      .b_stride = kChunk,
                      .c = walk->cross,
                      .c_stride = kChunk});
}

}  // namespace

SparseWalk carve_sparse_walk(const DeltaRuleArgs& a, ScratchLayout& layout) {
  SparseWalk walk;
  walk.even = carve_sparse_chunk(a, layout);
  walk.odd = carve_sparse_chunk(a, layout);
  walk.work = carve_sparse_work(a, layout);
  walk.cross = layout.take<float>(kChunk * kChunk);
  walk.pending = layout.take<double>(a.value_heads);
  walk.event = layout.take<std::int32_t>(a.key_heads);
  return walk;
}

void walk_sparse_rows(const SparseSequence& s, const reference::SparseGdnLayout& layout, std::int32_t first_row,
                      std::int32_t end_row, float* states, const SparseWalk& memory) {
  SparseWalk walk = memory;
  const std::int64_t state_size = static_cast<std::int64_t>(s.delta().key_dim) * s.delta().value_dim;
  const std::int32_t per_group = s.heads_per_group();
  std::fill(walk.pending + first_row * per_group, walk.pending + end_row * per_group, 0.0);
  for (std::int32_t r = first_row; r < end_row; ++r) walk.event[r] = layout.row_ptr[r];
  for (std::int32_t chunk = 0; chunk < s.chunk_count; chunk += 2) {
    for (std::int32_t r = first_row; r < end_row; ++r) {
      const Cursor at = {s, layout, layout.row_group[r], walk.event[r], layout.row_ptr[r + 1]};
      load_group(at, chunk, &walk);
      for (std::int32_t i = 0; i < per_group; ++i) {
        const std::int32_t h = at.group * per_group + i;
        walk_pair(at, chunk, h, states + h * state_size, &walk.pending[r * per_group + i], &walk);
      }
      while (walk.event[r] < at.last_event && layout.event_chunk[walk.event[r]] < chunk + 2) ++walk.event[r];
    }
  }
  for (std::int32_t i = first_row * per_group; i < end_row * per_group; ++i) {
    const auto kept = static_cast<float>(std::exp(walk.pending[i]));
    float* state = states + (layout.row_group[i / per_group] * per_group + i % per_group) * state_size;
    for (std::int64_t j = 0; j < state_size; ++j) state[j] *= kept;
  }
}

}  // namespace cairn::cpu
