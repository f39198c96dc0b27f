// The memory of one agent: a dense buffer, slot tables, a position, and what rewinding needs.
//
// Reading protocol (runtime/execution/stream.cpp is the one caller):
//   1. reserve(tokens)    everything that can fail for want of room fails here, and changes nothing
//   2. the operators run on slot pointers
//   3. advance(span)      position, journal, and a checkpoint when one is due
// Prefill stops at tokens_to_next_stop() so that checkpoints fall between operator runs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/state/rewind_journal.h"
#include "runtime/state/slot_table.h"
#include "runtime/state/state_layout.h"

namespace cairn {

struct StateOptions {
  std::int64_t kv_capacity_tokens = 4096;
  std::int64_t rewind_window_tokens = 0;
  std::int32_t rewind_spacing_tokens = 0;  ///< 0: chosen
  bool keep_last_logits = true;
};

/// What a state's memory comes to, in bytes.
struct StateMemory {
  std::uint64_t held = 0, shared = 0, rewind = 0;
};

class State {
 public:
  static Result<std::unique_ptr<State>> create(std::shared_ptr<const StateLayout> layout,
                                               std::shared_ptr<const Device> device, const StateOptions& options);
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() = default;  ///< zeroes its memory

  Result<std::unique_ptr<State>> fork(Queue& queue);
  Status reset(Queue& queue);

  const StateLayout& layout() const { return *layout_; }
  const std::shared_ptr<const Device>& device() const { return device_; }
  const StateOptions& options() const { return options_; }
  std::int64_t position() const { return position_; }
  bool is_valid() const { return is_valid_; }
  bool has_sparse_prefill() const { return has_sparse_prefill_; }

  /// Device pointer of a dense slot (any kind but kSlotTable).
  float* dense(std::int32_t slot) const;
  /// Rows that the slot's buffer holds (kKvFull: the capacity; kKvRing: the window).
  std::int32_t rows(std::int32_t slot) const;
  /// Device view of a slot table, valid until the next reserve(), fork() or rewind.
  SdmTable table(std::int32_t slot) const;
  std::int32_t rows_per_slab(std::int32_t slot) const;
  const SlotTable* slot_table(std::int32_t slot) const { return tables_[static_cast<std::size_t>(slot)].get(); }

  Status reserve(Queue& queue, std::int64_t token_count);
  /// Tokens of the call that began at `call_begin` and ends at `call_end` that may be read before the next checkpoint is
  /// due, counted from the current position; at most call_end - position.
  std::int64_t tokens_to_next_stop(std::int64_t call_begin, std::int64_t call_end) const;
  /// The operators have been queued for span's tokens (a piece of a call: span.begin is where the CALL began; count is
  /// what this piece adds). Never fails for lack of memory: reserve() has taken it.
  Status advance(Queue& queue, const ReadSpan& piece, const std::int32_t* tokens);
  /// A device error struck while work was in flight.
  void invalidate() { is_valid_ = false; }

  std::int64_t oldest_rewind_position() const;
  bool can_rewind(std::int64_t position) const;
  /// Puts a checkpoint at or before `position` back and tells what to read again to get there. Unchanged on failure.
  Result<Replay> rewind_to_checkpoint(Queue& queue, std::int64_t position);
  /// After the replay. Not successful: the state is again as before the rewind, or invalid when the device cannot. Takes
  /// no memory.
  Status finish_rewind(Queue& queue, bool is_successful);

  /// Whether the logits after the last token are known.
  bool has_last_logits() const { return has_last_logits_; }
  /// Those logits, which must be known, to host memory [vocab]. Waits for the queue.
  Status read_last_logits(Queue& queue, float* logits) const;
  /// Queues a copy of a device row [vocab], where the options ask for it.
  Status keep_last_logits(Queue& queue, const float* row);
  void forget_last_logits() { has_last_logits_ = false; }

  /// Tokens that every kKvFull slot holds; 0 without such slots.
  std::int64_t kv_used_tokens() const { return layout_->has_full_attention() ? position_ : 0; }
  StateMemory memory() const;
  const RewindJournal& journal() const { return journal_; }

 private:
  friend class SnapshotReader;
  friend class SnapshotWriter;
  State(std::shared_ptr<const StateLayout> layout, std::shared_ptr<const Device> device, const StateOptions& options);
  Status allocate_dense(Queue& queue);
  Status make_tables(Queue& queue);
  Result<DeviceBuffer> make_last_logits() const;

  /// A checkpoint with memory, from the pool or new.
  Result<std::unique_ptr<Checkpoint>> take_checkpoint();
  Status prepare(Checkpoint& checkpoint) const;
  Status prepare_checkpoints(std::int64_t count);
  Status capture(Queue& queue, Checkpoint& checkpoint);
  Status put_back(Queue& queue, const Checkpoint& checkpoint);
  Status start_journal(Queue& queue);
  Status add_checkpoint(Queue& queue);
  void recycle(CheckpointList& dropped) noexcept;
  void recycle(std::unique_ptr<Checkpoint> checkpoint) noexcept;
  /// Trades places with a state of the same layout and options; valid afterwards.
  void swap_contents(State& other);
  Status clear_kv(Queue& queue, std::int64_t begin, std::int64_t end);

  /// A rewind between its two halves.
  struct Rewind {
    bool is_open = false;
    std::unique_ptr<Checkpoint> before;  ///< null when the state was invalid
    RewindJournal::Tail tail;
    std::int64_t position = 0;
    bool has_last_logits = false;
    DeviceBuffer last_logits;
  };
  Result<Rewind> prepare_rewind(Queue& queue, const Checkpoint& checkpoint);

  std::shared_ptr<const StateLayout> layout_;
  std::shared_ptr<const Device> device_;
  StateOptions options_;
  DeviceBuffer dense_;
  std::vector<float*> dense_pointers_;              ///< by slot index; null for slot tables
  std::vector<std::unique_ptr<SlotTable>> tables_;  ///< by slot index; null where the slot is dense
  std::int64_t position_ = 0;
  bool is_valid_ = true, has_sparse_prefill_ = false, has_last_logits_ = false;
  DeviceBuffer last_logits_;  ///< f32 [vocab]; empty unless the options ask for it
  RewindJournal journal_;
  CheckpointList pool_;     ///< checkpoints to use again
  CheckpointList dropped_;  ///< on their way to the pool
  Rewind rewind_;
};

}  // namespace cairn
