// sse on the cpu. Prefill: per 64-token chunk of the call, each partition's tokens are gathered in time order, run as
// one chunk of the gated-linear, delta or gated delta rule, and added back; so a split at a multiple of 64 keeps the
// bits. The masked path runs every token in every partition, neutral where it was not chosen. Gathering costs next to
// nothing here, so `auto` always gathers. A partition that gets few tokens of a chunk takes them one by one, as decode
// does.
#include <algorithm>

#include "backends/cpu/delta_chunk_cpu.h"
#include "backends/cpu/item_runner.h"
#include "backends/cpu/sse_route_cpu.h"

namespace cairn::cpu {
namespace {

/// Up to here the chunk form costs more than it saves: it forms 16-token triangles and moves the state twice as well.
constexpr int kFewTokens = 3;
constexpr std::int64_t kRouteGrain = 64;

/// The routed or the shared half of the operator.
struct SseSide {
  ConstRows q, k;
  const float* log_decay;
  const float* beta;
};

struct SsePiece {
  SseMembership membership;
  SseMember* everyone;  ///< [64], for the shared partition
  ChunkWork chunk;
  float* sum;  ///< [64, V]
  float *decay_K, *predict_K, *read_K, *write_K;
};

struct SseRun {
  const SseArgs& a;
  const RecurrentKernels& kernels;
  SseRoutes routes;
  std::int32_t item_heads;  ///< heads of one item

  std::int32_t items_per_sequence() const { return (a.head_count + item_heads - 1) / item_heads; }

  bool has_row_decay() const { return a.transition != SseTransition::kGdn; }
  bool is_delta() const { return a.transition != SseTransition::kGla; }
  std::int64_t state_size() const { return static_cast<std::int64_t>(a.key_dim) * a.value_dim; }
  SseSide routed() const { return {a.q, a.k, a.log_decay, a.beta}; }
  SseSide shared() const {
    return {a.shared_q, a.shared_k, a.shared_log_decay ? a.shared_log_decay : a.log_decay,
            a.shared_beta ? a.shared_beta : a.beta};
  }
};

SsePiece carve_piece(const SseArgs& a, ScratchLayout& layout) {
  SsePiece piece = {};
  piece.membership = carve_sse_membership(a, layout);
  piece.everyone = layout.take<SseMember>(kChunk);
  piece.sum = layout.take<float>(static_cast<std::size_t>(kChunk) * a.value_dim);
  for (float** row : {&piece.decay_K, &piece.predict_K, &piece.read_K, &piece.write_K})
    *row = layout.take<float>(a.key_dim);
  if (a.phase == Phase::kPrefill) piece.chunk = carve_chunk_work(a.key_dim, a.value_dim, layout);
  return piece;
}

std::size_t piece_bytes(const SseArgs& a) {
  ScratchLayout layout(nullptr);
  carve_piece(a, layout);
  return layout.size_bytes();
}

std::int64_t most_items(const SseArgs& a) { return static_cast<std::int64_t>(a.batch.sequence_count) * a.head_count; }

/// One token over one state; adds the partition's output to sum_V.
void step_member(const SseRun& r, const SsePiece& piece, const SseSide& side, const SseMember& m, std::int32_t h,
                 float* state, float* sum_V) {
  const SseArgs& a = r.a;
  const std::int64_t head_row = static_cast<std::int64_t>(m.token) * a.head_count + h;
  const float *q = row(side.q, m.token) + h * a.key_dim, *k = row(side.k, m.token) + h * a.key_dim;
  const float write = r.is_delta() ? m.write * side.beta[head_row] : m.write;
  const float predict = a.transition == SseTransition::kGdn ? m.write : 1.0f;
  if (r.has_row_decay()) {
    r.kernels.exponentials(a.key_dim, side.log_decay + head_row * a.key_dim, piece.decay_K);
  } else {
    r.kernels.exponentials(1, side.log_decay + head_row, piece.decay_K);
    std::fill_n(piece.decay_K, a.key_dim, piece.decay_K[0]);
  }
  float read_of_write = 0;
  for (int i = 0; i < a.key_dim; ++i) {
    piece.predict_K[i] = piece.decay_K[i] * predict * k[i];
    piece.read_K[i] = piece.decay_K[i] * (m.read * q[i]);
    piece.write_K[i] = write * k[i];
    read_of_write += piece.write_K[i] * (m.read * q[i]);
  }
  r.kernels.state_step({.key_dim = a.key_dim,
                        .value_dim = a.value_dim,
                        .predict = r.is_delta() ? piece.predict_K : nullptr,
                        .read = piece.read_K,
                        .decay = piece.decay_K,
                        .write = piece.write_K,
                        .read_of_write = read_of_write,
                        .out_scale = 1.0f,
                        .accumulate = true,
                        .value = row(a.v, m.token) + h * a.value_dim,
                        .state = state,
                        .residual = nullptr,
                        .out = sum_V});
}

/// The members' rows into the chunk, with the weights where the transition wants them.
void load_members(const SseRun& r, const ChunkWork& w, const SseSide& side, const SseMember* members, int count,
                  std::int32_t h) {
  const SseArgs& a = r.a;
  const bool weighs_keys = a.transition == SseTransition::kGdn;
  const int decays = r.has_row_decay() ? a.key_dim : 1, decay_width = r.has_row_decay() ? w.key_width : 1;
  for (int i = 0; i < count; ++i) {
    const SseMember& m = members[i];
    const std::int64_t head_row = static_cast<std::int64_t>(m.token) * a.head_count + h,
                       key_row = static_cast<std::int64_t>(i) * w.key_width;
    const float *q = row(side.q, m.token) + h * a.key_dim, *k = row(side.k, m.token) + h * a.key_dim;
    for (int j = 0; j < a.key_dim; ++j) w.query[key_row + j] = weighs_keys ? m.read * q[j] : q[j];
    for (int j = 0; j < a.key_dim; ++j) w.key[key_row + j] = weighs_keys ? m.write * k[j] : k[j];
    for (int j = 0; j < decays; ++j) {
      w.log_decay[static_cast<std::int64_t>(i) * decay_width + j] =
          m.is_active ? side.log_decay[head_row * decays + j] : 0.0f;
    }
    const float* v = row(a.v, m.token) + h * a.value_dim;
    float* value = w.values + static_cast<std::int64_t>(i) * w.value_width;
    for (int j = 0; j < a.value_dim; ++j) value[j] = r.is_delta() ? v[j] : m.write * v[j];
    if (r.is_delta()) w.beta[i] = side.beta[head_row] * (weighs_keys && m.is_active ? 1.0f : m.write);
  }
}

/// Zeros behind the loaded members: pads of keys, and rows up to the next 16.
void clear_pads(const SseRun& r, const ChunkWork& w, int count) {
  const int rows = (count + kBlock - 1) / kBlock * kBlock;
  for (float* buffer : {w.query, w.key, r.has_row_decay() ? w.log_decay : w.query}) {
    for (int i = 0; i < rows; ++i) {
      const int first = i < count ? w.key_dim : 0;
      std::fill(buffer + static_cast<std::int64_t>(i) * w.key_width + first,
                buffer + static_cast<std::int64_t>(i + 1) * w.key_width, 0.0f);
    }
  }
  std::fill(w.beta + count, w.beta + kChunk, 0.0f);
  if (!r.has_row_decay()) std::fill(w.log_decay + count, w.log_decay + kChunk, 0.0f);
}

/// A chunk's members of one partition: state in place, outputs added to the rows of `sum`.
void run_members(const SseRun& r, const SsePiece& piece, const SseSide& side, const SseMember* members, int count,
                 std::int32_t h, float* state) {
  const SseArgs& a = r.a;
  const auto sum_of = [&](const SseMember& m) { return piece.sum + static_cast<std::int64_t>(m.place) * a.value_dim; };
  if (count <= kFewTokens) {
    for (int i = 0; i < count; ++i) {
      if (members[i].is_active) step_member(r, piece, side, members[i], h, state, sum_of(members[i]));
    }
    return;
  }
  const ChunkWork& w = piece.chunk;
  load_members(r, w, side, members, count, h);
  clear_pads(r, w, count);
  if (r.has_row_decay()) {
    decay_by_row(r.kernels, w, count, r.is_delta() ? w.key : nullptr, 1.0f, r.is_delta());
  } else {
    relate_tokens(r.kernels, w, count);
    decay_by_token(r.kernels, w, count, 1.0f, true);
  }
  advance_state(r.kernels, w, count, {.state = state, .is_delta = r.is_delta(), .has_beta = r.is_delta()});
  for (int i = 0; i < count; ++i) {
    const float read = r.has_row_decay() ? members[i].read : 1.0f;
    r.kernels.add_scaled(a.value_dim, read, w.out + static_cast<std::int64_t>(i) * w.value_width, sum_of(members[i]));
  }
}

/// One head of a chunk whose members are listed.
void run_head(const SseRun& r, const SsePiece& piece, std::int32_t b, std::int32_t first_token, int n, std::int32_t h) {
  const SseArgs& a = r.a;
  std::fill_n(piece.sum, static_cast<std::int64_t>(n) * a.value_dim, 0.0f);
  for (std::int32_t p = 0; p < a.partition_count; ++p) {
    const std::int32_t first = piece.membership.first[p], count = piece.membership.first[p + 1] - first;
    float* state = a.states[b] + (static_cast<std::int64_t>(p) * a.head_count + h) * r.state_size();
    run_members(r, piece, r.routed(), piece.membership.members + first, count, h, state);
  }
  if (a.shared_q.data) {
    run_members(r, piece, r.shared(), piece.everyone, n, h, a.shared_states[b] + h * r.state_size());
  }
  r.kernels.copy_rows(n, a.value_dim, piece.sum, a.value_dim,
                      row(a.out, first_token) + static_cast<std::int64_t>(h) * a.value_dim, a.out.stride);
}

/// One sequence and some heads. In the decode phase chunks are single tokens: k + 1 states are touched.
void run_item(const SseRun& r, std::int64_t item, std::byte* scratch) {
  ScratchLayout layout(scratch);
  const SsePiece piece = carve_piece(r.a, layout);
  const auto b = static_cast<std::int32_t>(item / r.items_per_sequence());
  const auto first_head = static_cast<std::int32_t>(item % r.items_per_sequence()) * r.item_heads;
  const std::int32_t end_head = std::min(first_head + r.item_heads, r.a.head_count);
  const int longest = r.a.phase == Phase::kPrefill ? kChunk : 1;
  const std::int32_t end = r.a.batch.offsets_host[b + 1];
  for (std::int32_t t = r.a.batch.offsets_host[b]; t < end; t += longest) {
    const int n = std::min(longest, end - t);
    list_sse_members(r.a, r.routes, t, n, piece.membership);
    for (int i = 0; i < n; ++i) piece.everyone[i] = {t + i, i, 1.0f, 1.0f, true};
    for (std::int32_t h = first_head; h < end_head; ++h) run_head(r, piece, b, t, n, h);
  }
}

std::size_t scratch_bytes(const SseArgs& a) {
  ScratchLayout layout(nullptr);
  carve_sse_routes(a, layout);
  return layout.size_bytes() + static_cast<std::size_t>(scratch_pieces(most_items(a))) * piece_bytes(a);
}

void run(BackendQueue* queue, const SseArgs& a, void* scratch) {
  Device& device = device_of(queue);
  ScratchLayout layout(scratch);
  const std::int64_t head_bytes =
      4 * (a.top_k + 1) * std::int64_t{a.key_dim} * a.value_dim + 8 * kChunk * (a.key_dim + a.value_dim);
  const SseRun sse = {a, recurrent_kernels(device.isa), carve_sse_routes(a, layout),
                      heads_per_item(a.batch.sequence_count, a.head_count, device.pool.thread_count(), head_bytes)};
  device.pool.parallel_ranges(a.batch.token_count, kRouteGrain, [&](std::int64_t begin, std::int64_t end) {
    route_sse_tokens(a, sse.routes, begin, end);
  });
  run_items(device.pool, std::int64_t{a.batch.sequence_count} * sse.items_per_sequence(),
            static_cast<std::byte*>(scratch) + layout.size_bytes(), piece_bytes(a),
            [&](std::int64_t item, std::byte* own) { run_item(sse, item, own); });
}

}  // namespace

void override_sse(OpTable& table) {
  table.sse.scratch_bytes = scratch_bytes;
  table.sse.run = run;
}

}  // namespace cairn::cpu
