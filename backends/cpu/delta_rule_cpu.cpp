#include "backends/cpu/delta_rule_cpu.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/delta_chunk_cpu.h"
#include "backends/cpu/item_runner.h"

namespace cairn::cpu {
namespace {

/// A call. A prefill item is one sequence and some key heads with their value heads, which share the pair products.
struct DeltaRun {
  const DeltaRuleArgs& a;
  DecayRows decay;
  const RecurrentKernels& kernels;
  std::int32_t key_heads_per_item;

  int heads_per_key() const { return a.value_heads / a.key_heads; }
  std::int32_t items_per_sequence() const { return (a.key_heads + key_heads_per_item - 1) / key_heads_per_item; }
  std::int64_t state_size() const { return static_cast<std::int64_t>(a.key_dim) * a.value_dim; }
  float* state_of(std::int32_t b, std::int32_t h) const { return a.states[b] + h * state_size(); }
};

/// Scratch of one piece; decode needs rows of keys only.
struct DeltaPiece {
  ChunkWork chunk;
  float *decay_K, *predict_K, *read_K, *write_K;
};

DeltaPiece carve_piece(const DeltaRuleArgs& a, ScratchLayout& layout) {
  DeltaPiece piece = {};
  if (a.phase == Phase::kPrefill) {
    piece.chunk = carve_chunk_work(a.key_dim, a.value_dim, layout);
    return piece;
  }
  for (float** row : {&piece.decay_K, &piece.predict_K, &piece.read_K, &piece.write_K}) {
    *row = layout.take<float>(a.key_dim);
  }
  return piece;
}

std::size_t piece_bytes(const DeltaRuleArgs& a) {
  ScratchLayout layout(nullptr);
  carve_piece(a, layout);
  return layout.size_bytes();
}

/// Decode: heads of one task, so that a task reads at least 64 KiB of states.
std::int64_t decode_heads_per_task(const DeltaRuleArgs& a) {
  const std::int64_t state_bytes = static_cast<std::int64_t>(a.key_dim) * a.value_dim * 4;
  return std::clamp<std::int64_t>((64 << 10) / std::max<std::int64_t>(state_bytes, 1), 1, a.value_heads);
}

std::int64_t decode_tasks(const DeltaRuleArgs& a) {
  const std::int64_t per_task = decode_heads_per_task(a),
                     heads = static_cast<std::int64_t>(a.batch.sequence_count) * a.value_heads;
  return (heads + per_task - 1) / per_task;
}

/// At most so many items: as if every key head were one.
std::int64_t most_items(const DeltaRuleArgs& a) {
  return a.phase == Phase::kPrefill ? static_cast<std::int64_t>(a.batch.sequence_count) * a.key_heads : decode_tasks(a);
}

/// Tokens [first, first + n) of value head h into the chunk: values, gates, keys to erase.
void load_value_head(const DeltaRun& p, const ChunkWork& w, std::int32_t first, int n, std::int32_t h) {
  const DeltaRuleArgs& a = p.a;
  const std::int64_t heads = a.value_heads;
  pack_rows(p.kernels, n, a.value_dim, row(a.v, first) + h * a.value_dim, a.v.stride, w.values, w.value_width);
  if (a.beta) pack_numbers(n, a.beta + first * heads + h, heads, w.beta);
  if (p.decay == DecayRows::kNone) std::fill_n(w.log_decay, kChunk, 0.0f);
  if (p.decay == DecayRows::kToken) pack_numbers(n, a.log_decay + first * heads + h, heads, w.log_decay);
  if (p.decay == DecayRows::kKeyRow) {
    pack_rows(p.kernels, n, a.key_dim, a.log_decay + (first * heads + h) * a.key_dim, heads * a.key_dim, w.log_decay,
              w.key_width);
  }
  if (a.write.data) {
    for (int i = 0; i < n; ++i) {
      const float* write = row(a.write, first + i) + h * a.value_dim;
      float* value = w.values + static_cast<std::int64_t>(i) * w.value_width;
      for (int v = 0; v < a.value_dim; ++v) value[v] *= write[v];
    }
  }
  if (a.erase.data) {
    pack_rows(p.kernels, n, a.key_dim, row(a.erase, first) + h * a.key_dim, a.erase.stride, w.erase, w.key_width);
    const std::int64_t size = static_cast<std::int64_t>(n) * w.key_width;
    for (std::int64_t i = 0; i < size; ++i) w.erase[i] *= w.key[i];
  }
}

void run_chunk(const DeltaRun& p, const ChunkWork& w, std::int32_t b, std::int32_t first, int n,
               std::int32_t key_head) {
  const DeltaRuleArgs& a = p.a;
  const std::int64_t key_offset = static_cast<std::int64_t>(key_head) * a.key_dim;
  pack_rows(p.kernels, n, a.key_dim, row(a.q, first) + key_offset, a.q.stride, w.query, w.key_width);
  pack_rows(p.kernels, n, a.key_dim, row(a.k, first) + key_offset, a.k.stride, w.key, w.key_width);
  if (p.decay != DecayRows::kKeyRow) relate_tokens(p.kernels, w, n);
  for (std::int32_t h = key_head * p.heads_per_key(); h < (key_head + 1) * p.heads_per_key(); ++h) {
    load_value_head(p, w, first, n, h);
    if (p.decay == DecayRows::kKeyRow) {
      decay_by_row(p.kernels, w, n, a.erase.data ? w.erase : w.key, a.scale, a.beta != nullptr);
    } else {
      decay_by_token(p.kernels, w, n, a.scale, a.beta != nullptr);
    }
    ChunkUpdate update = {.state = p.state_of(b, h), .is_delta = true, .has_beta = a.beta != nullptr};
    if (a.residual.data) {
      update.residual = row(a.residual, first) + h * a.value_dim;
      update.residual_stride = a.residual.stride;
    }
    advance_state(p.kernels, w, n, update);
    p.kernels.copy_rows(n, a.value_dim, w.out, w.value_width,
                        row(a.out, first) + static_cast<std::int64_t>(h) * a.value_dim, a.out.stride);
  }
}

/// After `done` tokens of sequence b: keeps the states of the key head's value heads when a checkpoint is due.
void keep_checkpoint(const DeltaRun& p, std::int32_t b, std::int32_t done, std::int32_t length, std::int32_t key_head) {
  const std::int64_t spacing = static_cast<std::int64_t>(p.a.checkpoint_chunks) * kChunk;
  if (spacing == 0 || done % spacing || done == length) return;
  const std::int32_t first = key_head * p.heads_per_key();
  std::memcpy(p.a.checkpoints[b] + ((done / spacing - 1) * p.a.value_heads + first) * p.state_size(),
              p.state_of(b, first), static_cast<std::size_t>(p.heads_per_key() * p.state_size()) * sizeof(float));
}

void prefill_item(const DeltaRun& p, std::int64_t item, std::byte* scratch) {
  ScratchLayout layout(scratch);
  const ChunkWork work = carve_piece(p.a, layout).chunk;
  const auto b = static_cast<std::int32_t>(item / p.items_per_sequence());
  const auto first_head = static_cast<std::int32_t>(item % p.items_per_sequence()) * p.key_heads_per_item;
  const std::int32_t end_head = std::min(first_head + p.key_heads_per_item, p.a.key_heads);
  const std::int32_t begin = p.a.batch.offsets_host[b], length = p.a.batch.offsets_host[b + 1] - begin;
  for (std::int32_t done = 0; done < length;) {
    const int n = std::min(kChunk, length - done);
    for (std::int32_t head = first_head; head < end_head; ++head) {
      run_chunk(p, work, b, begin + done, n, head);
      keep_checkpoint(p, b, done + n, length, head);
    }
    done += n;
  }
}

/// One token t of value head h of sequence b.
void decode_head(const DeltaRun& p, const DeltaPiece& piece, std::int32_t b, std::int64_t t, std::int32_t h) {
  const DeltaRuleArgs& a = p.a;
  const int key_dim = a.key_dim;
  const std::int64_t head_row = t * a.value_heads + h,
                     key_offset = static_cast<std::int64_t>(h / p.heads_per_key()) * key_dim;
  const float *q = row(a.q, t) + key_offset, *k = row(a.k, t) + key_offset;
  const float* erase = a.erase.data ? row(a.erase, t) + static_cast<std::int64_t>(h) * key_dim : nullptr;
  const float beta = a.beta ? a.beta[head_row] : 1.0f;
  float one_decay = 1.0f;
  if (p.decay == DecayRows::kToken) p.kernels.exponentials(1, a.log_decay + head_row, &one_decay);
  if (p.decay == DecayRows::kKeyRow) {
    p.kernels.exponentials(key_dim, a.log_decay + head_row * key_dim, piece.decay_K);
  } else {
    std::fill_n(piece.decay_K, key_dim, one_decay);
  }
  float read_of_write = 0;
  for (int i = 0; i < key_dim; ++i) {
    piece.predict_K[i] = piece.decay_K[i] * (erase ? erase[i] * k[i] : k[i]);
    piece.read_K[i] = piece.decay_K[i] * q[i];
    piece.write_K[i] = beta * k[i];
    read_of_write += piece.write_K[i] * q[i];
  }
  const std::int64_t value_offset = static_cast<std::int64_t>(h) * a.value_dim;
  float* out = row(a.out, t) + value_offset;
  const float* value = row(a.v, t) + value_offset;
  if (a.write.data) {  // z = w v stands in `out` until the step, which reads each value before it writes the output
    const float* write = row(a.write, t) + value_offset;
    for (int v = 0; v < a.value_dim; ++v) out[v] = write[v] * value[v];
    value = out;
  }
  p.kernels.state_step({.key_dim = key_dim,
                        .value_dim = a.value_dim,
                        .predict = piece.predict_K,
                        .read = piece.read_K,
                        .decay = piece.decay_K,
                        .write = piece.write_K,
                        .read_of_write = read_of_write,
                        .out_scale = a.scale,
                        .accumulate = false,
                        .value = value,
                        .state = p.state_of(b, h),
                        .residual = a.residual.data ? row(a.residual, t) + value_offset : nullptr,
                        .out = out});
}

void decode_item(const DeltaRun& p, std::int64_t item, std::byte* scratch) {
  ScratchLayout layout(scratch);
  const DeltaPiece piece = carve_piece(p.a, layout);
  const std::int64_t per_task = decode_heads_per_task(p.a), heads = p.a.value_heads;
  const std::int64_t end = std::min((item + 1) * per_task, p.a.batch.sequence_count * heads);
  for (std::int64_t i = item * per_task; i < end; ++i) {
    const auto b = static_cast<std::int32_t>(i / heads);
    for (std::int32_t t = p.a.batch.offsets_host[b]; t < p.a.batch.offsets_host[b + 1]; ++t) {
      decode_head(p, piece, b, t, static_cast<std::int32_t>(i % heads));
    }
  }
}

}  // namespace

std::size_t delta_rule_scratch_bytes(const DeltaRuleArgs& a) {
  return static_cast<std::size_t>(scratch_pieces(most_items(a))) * piece_bytes(a);
}

void run_delta_rule(DecayRows decay, BackendQueue* queue, const DeltaRuleArgs& a, void* scratch) {
  Device& device = device_of(queue);
  const std::int64_t sequences = a.batch.sequence_count,
                     head_rows = a.value_heads / a.key_heads * a.value_dim + a.key_dim;
  const std::int64_t head_bytes =
      8 * kChunk * head_rows + 4 * a.value_heads / a.key_heads * std::int64_t{a.key_dim} * a.value_dim;
  const DeltaRun call = {a, decay, recurrent_kernels(device.isa),
                         heads_per_item(sequences, a.key_heads, device.pool.thread_count(), head_bytes)};
  const bool is_prefill = a.phase == Phase::kPrefill;
  run_items(device.pool, is_prefill ? sequences * call.items_per_sequence() : decode_tasks(a),
            static_cast<std::byte*>(scratch), piece_bytes(a), [&](std::int64_t item, std::byte* own) {
              is_prefill ? prefill_item(call, item, own) : decode_item(call, item, own);
            });
}

}  // namespace cairn::cpu
