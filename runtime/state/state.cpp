#include "runtime/state/state.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "runtime/support/checked_math.h"

namespace cairn {
namespace {

constexpr std::int64_t kChunk = 64;
constexpr std::int64_t kMaxKvCapacity = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxWindow = std::int64_t{1} << 40;
constexpr std::int32_t kMaxSpacing = 1 << 20;

Status check_options(const StateLayout& layout, const StateOptions& options) {
  if (options.kv_capacity_tokens < 0 || options.kv_capacity_tokens > kMaxKvCapacity) {
    return Status::invalid_argument("kv_capacity_tokens %lld is outside [0, %lld]",
                                    static_cast<long long>(options.kv_capacity_tokens), static_cast<long long>(kMaxKvCapacity));
  }
  if (options.rewind_window_tokens < 0 || options.rewind_window_tokens > kMaxWindow) {
    return Status::invalid_argument("rewind_window_tokens %lld is outside [0, 2^40]",
                                    static_cast<long long>(options.rewind_window_tokens));
  }
  if (options.rewind_spacing_tokens < 0 || options.rewind_spacing_tokens > kMaxSpacing || options.rewind_spacing_tokens % kChunk != 0) {
    return Status::invalid_argument("rewind_spacing_tokens %d is not a multiple of 64 in [0, %d]", options.rewind_spacing_tokens,
                                    kMaxSpacing);
  }
  const auto kv_bytes = checked_mul(layout.kv_bytes_per_token(), static_cast<std::uint64_t>(options.kv_capacity_tokens));
  if (!kv_bytes || *kv_bytes > std::uint64_t{1} << 46) {
    return Status::limit_exceeded("kv_capacity_tokens %lld times %llu bytes is more than 2^46 bytes",
                                  static_cast<long long>(options.kv_capacity_tokens),
                                  static_cast<unsigned long long>(layout.kv_bytes_per_token()));
  }
  return {};
}

bool is_table(const StateSlot& slot) { return slot.kind == SlotKind::kSlotTable; }

/// What a fresh state's journal begins with.
CheckpointList empty_checkpoint() {
  CheckpointList list;
  list.push_back(std::make_unique<Checkpoint>());
  list.back()->is_empty = true;
  return list;
}

}  // namespace

// ---------------------------------------------------------------- making, forking, clearing

State::State(std::shared_ptr<const StateLayout> layout, std::shared_ptr<const Device> device, const StateOptions& options)
    : layout_(std::move(layout)), device_(std::move(device)), options_(options),
      journal_(options.rewind_window_tokens, options.rewind_spacing_tokens) {}

Result<std::unique_ptr<State>> State::create(std::shared_ptr<const StateLayout> layout, std::shared_ptr<const Device> device,
                                             const StateOptions& options) {
  CAIRN_TRY(check_options(*layout, options));
  std::unique_ptr<State> state(new State(std::move(layout), std::move(device), options));
  CAIRN_TRY_ASSIGN(const std::unique_ptr<Queue> queue, Queue::create(state->device_));  // ends before the state does
  CAIRN_TRY(state->allocate_dense(*queue));
  CAIRN_TRY(state->make_tables(*queue));
  CAIRN_TRY(state->start_journal(*queue));
  CAIRN_TRY(queue->synchronize());
  return state;
}

Status State::allocate_dense(Queue& queue) {
  const std::int64_t capacity = options_.kv_capacity_tokens;
  const auto size_bytes = checked_cast<std::size_t>(layout_->dense_bytes(capacity));
  if (!size_bytes) return Status::out_of_memory("state: %llu bytes", static_cast<unsigned long long>(layout_->dense_bytes(capacity)));
  CAIRN_TRY_ASSIGN(dense_, device_->allocate(*size_bytes));
  dense_.zero_on_release();
  CAIRN_TRY(queue.zero(dense_.data(), dense_.size_bytes()));
  const auto slot_count = static_cast<std::int32_t>(layout_->slots().size());
  for (std::int32_t i = 0; i < slot_count; ++i) {
    const bool is_dense = !is_table(layout_->slots()[static_cast<std::size_t>(i)]);
    dense_pointers_.push_back(is_dense ? reinterpret_cast<float*>(dense_.as<std::byte>() + layout_->offset_bytes(i, capacity)) : nullptr);
  }
  if (options_.keep_last_logits) {
    CAIRN_TRY_ASSIGN(last_logits_, make_last_logits());
  }
  tables_.resize(layout_->slots().size());
  return {};
}

Result<DeviceBuffer> State::make_last_logits() const {
  CAIRN_TRY_ASSIGN(DeviceBuffer buffer, device_->allocate(static_cast<std::size_t>(layout_->vocab_size()) * sizeof(float)));
  buffer.zero_on_release();
  return buffer;
}

Status State::make_tables(Queue& queue) {
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (!is_table(layout_->slots()[i])) continue;
    CAIRN_TRY_ASSIGN(tables_[i], SlotTable::create(device_, layout_->slots()[i], queue));
  }
  return {};
}

Result<std::unique_ptr<State>> State::fork(Queue& queue) {
  std::unique_ptr<State> other(new State(layout_, device_, options_));
  const QueueDrain drain(queue);
  CAIRN_TRY(other->allocate_dense(queue));
  CAIRN_TRY(queue.copy(other->dense_.data(), dense_.data(), layout_->checkpoint_bytes(), CopyKind::kDeviceToDevice));
  const std::size_t token_count = static_cast<std::size_t>(kv_used_tokens());
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i]) {
      CAIRN_TRY_ASSIGN(other->tables_[i], tables_[i]->fork(queue));
    } else if (layout_->slots()[i].kind == SlotKind::kKvFull && token_count > 0) {
      const std::size_t size_bytes = layout_->slot_bytes(static_cast<std::int32_t>(i), 1) * token_count;
      CAIRN_TRY(queue.copy(other->dense_pointers_[i], dense_pointers_[i], size_bytes, CopyKind::kDeviceToDevice));
    }
  }
  other->position_ = position_;
  other->has_sparse_prefill_ = has_sparse_prefill_;
  if (has_last_logits_) CAIRN_TRY(other->keep_last_logits(queue, last_logits_.as<float>()));
  CAIRN_TRY(other->start_journal(queue));
  CAIRN_TRY(queue.synchronize());
  return other;
}

Status State::reset(Queue& queue) {
  CheckpointList first = empty_checkpoint();  // nothing after this takes memory
  is_valid_ = false;                          // until everything is cleared
  CAIRN_TRY(queue.synchronize());
  position_ = 0;
  has_sparse_prefill_ = false;
  has_last_logits_ = false;
  rewind_ = {};
  if (journal_.is_on()) first = journal_.start(std::move(first));
  recycle(first);  // the rows of old checkpoints go to the tables, which clear them
  pool_.clear();
  for (const std::unique_ptr<SlotTable>& table : tables_) {
    if (table) CAIRN_TRY(table->reset(queue));
  }
  CAIRN_TRY(queue.zero(dense_.data(), dense_.size_bytes()));
  if (last_logits_) CAIRN_TRY(queue.zero(last_logits_.data(), last_logits_.size_bytes()));
  CAIRN_TRY(queue.synchronize());
  is_valid_ = true;
  return {};
}

void State::swap_contents(State& other) {
  std::swap(dense_, other.dense_);
  dense_pointers_.swap(other.dense_pointers_);
  tables_.swap(other.tables_);
  std::swap(position_, other.position_);
  std::swap(has_sparse_prefill_, other.has_sparse_prefill_);
  std::swap(last_logits_, other.last_logits_);
  std::swap(has_last_logits_, other.has_last_logits_);
  std::swap(journal_, other.journal_);
  pool_.swap(other.pool_);
  rewind_ = {};
  is_valid_ = true;
}

Status State::clear_kv(Queue& queue, std::int64_t begin, std::int64_t end) {
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (layout_->slots()[i].kind != SlotKind::kKvFull || begin >= end) continue;
    const std::size_t row_bytes = layout_->slot_bytes(static_cast<std::int32_t>(i), 1);
    CAIRN_TRY(queue.zero(reinterpret_cast<std::byte*>(dense_pointers_[i]) + static_cast<std::size_t>(begin) * row_bytes,
                         static_cast<std::size_t>(end - begin) * row_bytes));
  }
  return {};
}

// ---------------------------------------------------------------- what operators use

float* State::dense(std::int32_t slot) const { return dense_pointers_[static_cast<std::size_t>(slot)]; }

std::int32_t State::rows(std::int32_t slot) const {
  const StateSlot& entry = layout_->slots()[static_cast<std::size_t>(slot)];
  return static_cast<std::int32_t>(entry.kind == SlotKind::kKvFull ? options_.kv_capacity_tokens : entry.shape[0]);
}

SdmTable State::table(std::int32_t slot) const { return tables_[static_cast<std::size_t>(slot)]->view(); }
std::int32_t State::rows_per_slab(std::int32_t slot) const { return tables_[static_cast<std::size_t>(slot)]->rows_per_slab(); }

Status State::reserve(Queue& queue, std::int64_t token_count) {
  if (token_count > kMaxPosition - position_) {
    return Status::limit_exceeded("position %lld plus %lld tokens is more than 2^62", static_cast<long long>(position_),
                                  static_cast<long long>(token_count));
  }
  if (layout_->has_full_attention() && token_count > options_.kv_capacity_tokens - position_) {
    return Status::error(CAIRN_STATUS_STATE_FULL, "%lld tokens do not fit: %lld of kv_capacity_tokens %lld are in use",
                         static_cast<long long>(token_count), static_cast<long long>(position_),
                         static_cast<long long>(options_.kv_capacity_tokens));
  }
  const std::int64_t checkpoint_count = journal_.checkpoints_during(token_count);
  for (const std::unique_ptr<SlotTable>& table : tables_) {
    if (!table) continue;
    if (Status status = table->reserve(queue, token_count, checkpoint_count); !status.ok()) {
      if (status.code() == CAIRN_STATUS_DEVICE) invalidate();
      return status;
    }
  }
  CAIRN_TRY(journal_.reserve(position_, token_count));
  return prepare_checkpoints(checkpoint_count);
}

std::int64_t State::tokens_to_next_stop(std::int64_t call_begin, std::int64_t call_end) const {
  if (!journal_.is_on()) return call_end - position_;
  const std::int64_t due = std::max(journal_.next_due(), position_ + 1);
  const std::int64_t chunks = (due - call_begin + kChunk - 1) / kChunk;
  return std::min(call_begin + chunks * kChunk, call_end) - position_;
}

Status State::advance(Queue& queue, const ReadSpan& piece, const std::int32_t* tokens) {
  journal_.append(piece, position_, tokens);
  position_ += piece.count;
  has_sparse_prefill_ = has_sparse_prefill_ || piece.sparse;
  if (!journal_.is_on() || piece.count == 0 || (position_ < journal_.next_due() && !piece.sparse)) return {};
  return add_checkpoint(queue);
}

// ---------------------------------------------------------------- checkpoints

Status State::prepare_checkpoints(std::int64_t count) {
  if (!journal_.is_on() || count == 0) return {};
  const auto live = static_cast<std::int64_t>(journal_.checkpoints().size());
  const std::int64_t wanted = std::min(count, std::max<std::int64_t>(1, journal_.checkpoint_limit() - live));
  for (const std::unique_ptr<Checkpoint>& checkpoint : pool_) CAIRN_TRY(prepare(*checkpoint));
  while (static_cast<std::int64_t>(pool_.size()) < wanted) {
    auto checkpoint = std::make_unique<Checkpoint>();
    CAIRN_TRY(prepare(*checkpoint));
    pool_.push_back(std::move(checkpoint));
  }
  dropped_.reserve(pool_.size() + static_cast<std::size_t>(live) + 1);
  pool_.reserve(pool_.size() + static_cast<std::size_t>(live) + 1);  // where those dropped go
  return {};
}

Status State::prepare(Checkpoint& checkpoint) const {
  if (!checkpoint.dense) {
    CAIRN_TRY_ASSIGN(checkpoint.dense, device_->allocate(layout_->checkpoint_bytes()));
    checkpoint.dense.zero_on_release();
  }
  checkpoint.tables.resize(tables_.size());
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i]) CAIRN_TRY(tables_[i]->prepare(checkpoint.tables[i]));
  }
  return {};
}

Result<std::unique_ptr<Checkpoint>> State::take_checkpoint() {
  if (pool_.empty()) CAIRN_TRY(prepare_checkpoints(1));
  std::unique_ptr<Checkpoint> checkpoint = std::move(pool_.back());
  pool_.pop_back();
  return checkpoint;
}

/// The queue is synchronised first: a checkpoint never holds the work of a failed device.
Status State::capture(Queue& queue, Checkpoint& checkpoint) {
  CAIRN_TRY(queue.synchronize());
  checkpoint.position = position_;
  checkpoint.has_sparse_prefill = has_sparse_prefill_;
  checkpoint.is_empty = false;
  CAIRN_TRY(queue.copy(checkpoint.dense.data(), dense_.data(), layout_->checkpoint_bytes(), CopyKind::kDeviceToDevice));
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i]) CAIRN_TRY(tables_[i]->capture(queue, checkpoint.tables[i]));
  }
  return queue.synchronize();
}

Status State::put_back(Queue& queue, const Checkpoint& checkpoint) {
  if (checkpoint.is_empty) {
    CAIRN_TRY(queue.zero(dense_.data(), layout_->checkpoint_bytes()));
  } else {
    CAIRN_TRY(queue.copy(dense_.data(), checkpoint.dense.data(), layout_->checkpoint_bytes(), CopyKind::kDeviceToDevice));
  }
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i]) CAIRN_TRY(checkpoint.is_empty ? tables_[i]->reset(queue) : tables_[i]->restore(queue, checkpoint.tables[i]));
  }
  CAIRN_TRY(queue.synchronize());
  position_ = checkpoint.position;
  has_sparse_prefill_ = checkpoint.has_sparse_prefill;
  has_last_logits_ = false;
  return {};
}

/// The journal begins at the current position.
Status State::start_journal(Queue& queue) {
  if (!journal_.is_on()) return {};
  CheckpointList first = empty_checkpoint();
  if (position_ > 0) {
    CAIRN_TRY_ASSIGN(first[0], take_checkpoint());
    CAIRN_TRY(capture(queue, *first[0]));
  }
  first = journal_.start(std::move(first));
  recycle(first);
  return {};
}

/// Without memory for it there is none: the next chunk border tries again, and rewinding reads more tokens.
Status State::add_checkpoint(Queue& queue) {
  auto checkpoint = take_checkpoint();
  if (!checkpoint.ok()) return {};
  CAIRN_TRY(capture(queue, *checkpoint.value()));
  journal_.add(std::move(checkpoint).value(), dropped_);
  recycle(dropped_);
  return {};
}

void State::recycle(CheckpointList& dropped) noexcept {
  for (std::unique_ptr<Checkpoint>& checkpoint : dropped) recycle(std::move(checkpoint));
  dropped.clear();
}

/// To the pool, where it has room.
void State::recycle(std::unique_ptr<Checkpoint> checkpoint) noexcept {
  for (std::size_t i = 0; i < checkpoint->tables.size(); ++i) {
    if (tables_[i]) tables_[i]->recycle(checkpoint->tables[i]);
  }
  if (checkpoint->is_empty) return;
  try {
    pool_.push_back(std::move(checkpoint));
  } catch (const std::bad_alloc&) {
    // It is given back.
  }
}

// ---------------------------------------------------------------- logits

Status State::keep_last_logits(Queue& queue, const float* row) {
  if (!options_.keep_last_logits) return {};
  CAIRN_TRY(queue.copy(last_logits_.data(), row, last_logits_.size_bytes(), CopyKind::kDeviceToDevice));
  has_last_logits_ = true;
  return {};
}

Status State::read_last_logits(Queue& queue, float* logits) const {
  assert(has_last_logits_);
  CAIRN_TRY(queue.copy(logits, last_logits_.data(), last_logits_.size_bytes(), CopyKind::kDeviceToHost));
  return queue.synchronize();
}

// ---------------------------------------------------------------- accounting

StateMemory State::memory() const {
  StateMemory memory;
  std::uint64_t in_tables = 0;  // held for rewinding, but in slabs that the tables reach as well
  std::unordered_map<const Slab*, std::pair<long, std::uint64_t>> references;  // ours, and the slab's size
  std::unordered_map<const Slab*, long> owners;
  std::unordered_set<const Slab*> current;
  const auto count = [&](const SlabList& slabs) {
    for (const std::shared_ptr<Slab>& slab : slabs) {
      auto& entry = references[slab.get()];
      ++entry.first;
      entry.second = slab->size_bytes();
      owners[slab.get()] = slab.use_count();
    }
  };
  memory.held = dense_.size_bytes() + last_logits_.size_bytes();
  for (const std::unique_ptr<SlotTable>& table : tables_) {
    if (!table) continue;
    memory.held += table->array_bytes();
    if (journal_.is_on()) in_tables += table->bytes_beyond_slots();
    count(table->slabs());
    count(table->spare_slabs());
    for (const SlabList* list : {&table->slabs(), &table->spare_slabs()}) {
      for (const std::shared_ptr<Slab>& slab : *list) current.insert(slab.get());
    }
  }
  memory.rewind = journal_.tokens().size_bytes();
  for (const CheckpointList* list : {&journal_.checkpoints(), &pool_}) {
    for (const std::unique_ptr<Checkpoint>& checkpoint : *list) {
      memory.rewind += checkpoint->dense.size_bytes();
      for (const SlotTableImage& image : checkpoint->tables) {
        memory.rewind += image.index.size_bytes();
        count(image.slabs);
      }
    }
  }
  for (const auto& [slab, entry] : references) {
    memory.held += current.contains(slab) ? entry.second : 0;
    memory.rewind += current.contains(slab) ? 0 : entry.second;
    if (owners[slab] > entry.first) memory.shared += entry.second;
  }
  memory.held += memory.rewind;
  memory.rewind += in_tables;
  return memory;
}

}  // namespace cairn
