// sdm on the cpu, in three stages: addresses of all tokens; private rows for the slots that will be written; then the
// tokens in order, for each sequence, head and band of columns (columns do not meet in the update). Until its first
// write a slot is read where it was, M0 or a shared row: no copy, and no rounding but that of the write itself.
//
// Prefill and decode run the same update, so any split of a prefill keeps the bits. Nothing here is O(N).
#include <algorithm>
#include <cstring>

#include "backends/cpu/item_runner.h"
#include "backends/cpu/sdm_address_cpu.h"
#include "backends/cpu/sdm_table_cpu.h"

namespace cairn::cpu {
namespace {

/// The narrowest band of columns: wide enough that looking up a token's rows costs little beside them.
constexpr std::int32_t kBandColumns = 64;

struct SdmScratch {
  std::int32_t *write_slots, *read_slots;  ///< [T, H, held]
  float *write_weights, *read_weights;
  SdmFreshRow* fresh;
  std::int64_t* fresh_first;  ///< [B] a sequence's first place in `fresh`
  std::int32_t* fresh_row;    ///< [B] rows in use before: the index of its first fresh row
};

struct SdmPiece {
  SdmAddressWork write_address, read_address;
  void** write_rows;
  const void **write_sources, **read_rows;
  RowKind *write_kinds, *read_kinds;
  float* write_decays;
  float* residual;  ///< [V]
};

std::int32_t write_held(const SdmArgs& a) { return sdm_slots_held(a.side, a.write_count); }
std::int32_t read_held(const SdmArgs& a) { return sdm_slots_held(a.side, a.read_count); }
std::int64_t head_rows(const SdmArgs& a) { return static_cast<std::int64_t>(a.batch.token_count) * a.head_count; }

/// Fresh rows that `token_count` tokens of `sequence_count` sequences can need.
std::int64_t most_fresh_rows(const SdmArgs& a, std::int64_t token_count, std::int64_t sequence_count) {
  return a.head_count * std::min(token_count * write_held(a), sequence_count * a.side * a.side);
}

SdmScratch carve(const SdmArgs& a, ScratchLayout& layout) {
  SdmScratch s;
  const std::size_t rows = head_rows(a), writes = rows * write_held(a), reads = rows * read_held(a);
  s.write_slots = layout.take<std::int32_t>(writes);
  s.read_slots = layout.take<std::int32_t>(reads);
  s.write_weights = layout.take<float>(writes);
  s.read_weights = layout.take<float>(reads);
  s.fresh = layout.take<SdmFreshRow>(most_fresh_rows(a, a.batch.token_count, a.batch.sequence_count));
  s.fresh_first = layout.take<std::int64_t>(a.batch.sequence_count);
  s.fresh_row = layout.take<std::int32_t>(a.batch.sequence_count);
  return s;
}

SdmPiece carve_piece(const SdmArgs& a, ScratchLayout& layout) {
  SdmPiece p;
  p.write_address = carve_sdm_address_work(a.side, a.write_count, layout);
  p.read_address = carve_sdm_address_work(a.side, a.read_count, layout);
  p.write_rows = layout.take<void*>(write_held(a));
  p.write_sources = layout.take<const void*>(write_held(a));
  p.write_kinds = layout.take<RowKind>(write_held(a));
  p.read_rows = layout.take<const void*>(read_held(a));
  p.read_kinds = layout.take<RowKind>(read_held(a));
  p.write_decays = layout.take<float>(write_held(a));
  p.residual = layout.take<float>(a.value_dim);
  return p;
}

std::size_t piece_bytes(const SdmArgs& a) {
  ScratchLayout layout(nullptr);
  carve_piece(a, layout);
  return layout.size_bytes();
}

std::int32_t most_bands(const SdmArgs& a) { return (a.value_dim + kBandColumns - 1) / kBandColumns; }

/// Whole rows when sequences and heads keep the threads busy, else as many bands as they need. No result depends on it.
std::int32_t band_columns(const SdmArgs& a, int threads) {
  const std::int64_t items = std::int64_t{a.batch.sequence_count} * a.head_count,
                     wanted = threads == 1 ? 1 : 2 * threads;
  const std::int64_t bands = items == 0 ? 1 : std::clamp<std::int64_t>((wanted + items - 1) / items, 1, most_bands(a));
  return static_cast<std::int32_t>((a.value_dim + bands * 16 - 1) / (bands * 16) * 16);
}

/// Addresses found by one task: fewer the longer one takes.
std::int64_t address_grain(const SdmArgs& a) {
  return std::clamp(512 / (a.side + 4 * (a.write_count + a.read_count)), 1, 16);
}
std::int64_t address_items(const SdmArgs& a) { return (head_rows(a) + address_grain(a) - 1) / address_grain(a); }
std::int64_t most_items(const SdmArgs& a) {
  return std::max(std::int64_t{a.batch.sequence_count} * a.head_count * most_bands(a), address_items(a));
}

struct SdmRun {
  const SdmArgs& a;
  const RecurrentKernels& kernels;
  SdmScratch scratch;
  std::int32_t columns;  ///< of a band

  std::int32_t bands() const { return (a.value_dim + columns - 1) / columns; }
};

template <class T>
void trace(std::int64_t head_row, std::int32_t held, const T* from, T* to) {
  if (to) std::copy_n(from + head_row * held, held, to + head_row * held);
}

void find_addresses(const SdmRun& r, std::int64_t item, std::byte* memory) {
  const SdmArgs& a = r.a;
  ScratchLayout layout(memory);
  const SdmPiece piece = carve_piece(a, layout);
  const std::int32_t writes = write_held(a), reads = read_held(a);
  const std::int64_t end = std::min((item + 1) * address_grain(a), head_rows(a));
  for (std::int64_t i = item * address_grain(a); i < end; ++i) {
    const std::int64_t t = i / a.head_count, h = i % a.head_count;
    find_sdm_slots(r.kernels, {row(a.write_scores, t) + h * 2 * a.side, a.side, a.write_count, a.write_scale},
                   piece.write_address, r.scratch.write_slots + i * writes, r.scratch.write_weights + i * writes);
    find_sdm_slots(r.kernels, {row(a.read_scores, t) + h * 2 * a.side, a.side, a.read_count, a.read_scale},
                   piece.read_address, r.scratch.read_slots + i * reads, r.scratch.read_weights + i * reads);
    trace(i, writes, r.scratch.write_slots, a.trace_write_slots);
    trace(i, writes, r.scratch.write_weights, a.trace_write_weights);
    trace(i, reads, r.scratch.read_slots, a.trace_read_slots);
    trace(i, reads, r.scratch.read_weights, a.trace_read_weights);
  }
}

/// Private rows for all slots that will be written.
void take_rows(const SdmRun& r, ThreadPool& pool) {
  const Batch& batch = r.a.batch;
  std::int64_t first = 0;
  for (std::int32_t b = 0; b < batch.sequence_count; ++b) {
    r.scratch.fresh_first[b] = first;
    first += most_fresh_rows(r.a, batch.offsets_host[b + 1] - batch.offsets_host[b], 1);
  }
  pool.parallel_for(batch.sequence_count, [&](std::int64_t b) {
    const std::int32_t begin = batch.offsets_host[b], count = batch.offsets_host[b + 1] - begin;
    if (count == 0) return;
    const std::int64_t first_slot = static_cast<std::int64_t>(begin) * r.a.head_count * write_held(r.a);
    r.scratch.fresh_row[b] = r.a.tables[b].control[0];
    take_sdm_rows(r.a, r.a.tables[b], r.scratch.write_slots + first_slot, count,
                  r.scratch.fresh + r.scratch.fresh_first[b]);
  });
}

/// What a slot of sequence b holds for its token t: before the writes of a row's first token, the row that was left.
SdmRowSource source_at(const SdmRun& r, std::int32_t b, std::int64_t flat_slot, std::int32_t t, bool before_writes) {
  const SdmTable& table = r.a.tables[b];
  std::int32_t index = table.row_of_slot[flat_slot];
  if (index >= r.scratch.fresh_row[b]) {
    const SdmFreshRow& fresh = r.scratch.fresh[r.scratch.fresh_first[b] + index - r.scratch.fresh_row[b]];
    if (t < fresh.token || (t == fresh.token && before_writes)) index = fresh.old_index;
  }
  return sdm_source(r.a, table, flat_slot, index);
}

void find_decays(const SdmRun& r, std::int64_t head_row, float* decays) {
  const SdmArgs& a = r.a;
  const std::int32_t writes = write_held(a);
  if (!a.key_weighted_decay) {
    r.kernels.exponentials(1, a.log_decay + head_row, decays);
    std::fill_n(decays, writes, decays[0]);
    return;
  }
  for (std::int32_t i = 0; i < writes; ++i)
    decays[i] = a.log_decay[head_row] * r.scratch.write_weights[head_row * writes + i];
  r.kernels.exponentials(writes, decays, decays);
}

/// Token t of one head of sequence b, columns [first, first + count).
void update_token(const SdmRun& r, const SdmPiece& piece, std::int32_t b, std::int64_t t, std::int32_t h,
                  std::int32_t first, std::int32_t count) {
  const SdmArgs& a = r.a;
  const SdmTable& table = a.tables[b];
  const std::int64_t head_row = t * a.head_count + h, head_slots = static_cast<std::int64_t>(h) * a.side * a.side;
  const std::int32_t writes = write_held(a), reads = read_held(a);
  const auto of_sequence = static_cast<std::int32_t>(t - a.batch.offsets_host[b]);
  for (std::int32_t i = 0; i < writes; ++i) {
    const std::int64_t flat_slot = head_slots + r.scratch.write_slots[head_row * writes + i];
    const SdmRowSource source = source_at(r, b, flat_slot, of_sequence, true);
    piece.write_sources[i] = source.at(first);
    piece.write_kinds[i] = source.kind;
    piece.write_rows[i] = sdm_row(a, table, table.row_of_slot[flat_slot]) + first * (dtype_bits(a.row_dtype) / 8);
  }
  for (std::int32_t i = 0; i < reads; ++i) {
    const SdmRowSource source =
        source_at(r, b, head_slots + r.scratch.read_slots[head_row * reads + i], of_sequence, false);
    piece.read_rows[i] = source.at(first);
    piece.read_kinds[i] = source.kind;
  }
  find_decays(r, head_row, piece.write_decays);
  const std::int64_t column = static_cast<std::int64_t>(h) * a.value_dim + first;
  r.kernels.sdm_rows({.columns = count,
                      .write_count = writes,
                      .read_count = reads,
                      .slot_residual = a.slot_residual,
                      .has_half_rows = a.row_dtype == DType::kBF16,
                      .beta = a.beta[head_row],
                      .write_rows = piece.write_rows,
                      .write_sources = piece.write_sources,
                      .write_kinds = piece.write_kinds,
                      .write_weights = r.scratch.write_weights + head_row * writes,
                      .write_decays = piece.write_decays,
                      .read_rows = piece.read_rows,
                      .read_kinds = piece.read_kinds,
                      .read_weights = r.scratch.read_weights + head_row * reads,
                      .value = row(a.v, t) + column,
                      .residual = a.residual.data ? row(a.residual, t) + column : piece.residual,
                      .out = row(a.out, t) + column});
}

void update_item(const SdmRun& r, std::int64_t item, std::byte* memory) {
  const SdmArgs& a = r.a;
  ScratchLayout layout(memory);
  const SdmPiece piece = carve_piece(a, layout);
  const auto first = static_cast<std::int32_t>(item % r.bands()) * r.columns;
  const std::int64_t head = item / r.bands();
  const auto h = static_cast<std::int32_t>(head % a.head_count), b = static_cast<std::int32_t>(head / a.head_count);
  const std::int32_t count = std::min(r.columns, a.value_dim - first);
  for (std::int32_t t = a.batch.offsets_host[b]; t < a.batch.offsets_host[b + 1]; ++t) {
    update_token(r, piece, b, t, h, first, count);
  }
}

std::size_t scratch_bytes(const SdmArgs& a) {
  ScratchLayout layout(nullptr);
  carve(a, layout);
  return layout.size_bytes() + static_cast<std::size_t>(scratch_pieces(most_items(a))) * piece_bytes(a);
}

void run(BackendQueue* queue, const SdmArgs& a, void* memory) {
  ThreadPool& pool = device_of(queue).pool;
  ScratchLayout layout(memory);
  const SdmRun r = {a, recurrent_kernels(device_of(queue).isa), carve(a, layout), band_columns(a, pool.thread_count())};
  std::byte* pieces = static_cast<std::byte*>(memory) + layout.size_bytes();
  run_items(pool, address_items(a), pieces, piece_bytes(a),
            [&](std::int64_t item, std::byte* own) { find_addresses(r, item, own); });
  take_rows(r, pool);
  run_items(pool, std::int64_t{a.batch.sequence_count} * a.head_count * r.bands(), pieces, piece_bytes(a),
            [&](std::int64_t item, std::byte* own) { update_item(r, item, own); });
}

}  // namespace

void override_sdm(OpTable& table) {
  table.sdm.scratch_bytes = scratch_bytes;
  table.sdm.run = run;
}

}  // namespace cairn::cpu
