// The memory of one agent: a dense buffer, slot tables, a position, and what rewinding needs.
//
// Reading protocol (runtime/execution/stream.cpp is the one caller):
//   1. reserve(tokens)    everything that can fail for want of room fails here, and changes nothing
//   2. the operators run on slot pointers
//   3. advance(span)      position, journal, and a checkpoint when one is due
// Prefill stops at tokens_to_next_stop() so that checkpoints fall between operator runs.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/state/slot_table.h"
#include "runtime/state/state_layout.h"

namespace cairn {

struct StateOptions {
  std::int64_t kv_capacity_tokens = 4096;
  std::int64_t rewind_window_tokens = 0;
  std::int32_t rewind_spacing_tokens = 0;  ///< 0: chosen
  bool keep_last_logits = true;
};

/// How a run of tokens was read. Replaying it the same way gives the same bits; a sparse span cannot be cut.
struct ReadSpan {
  std::int64_t begin = 0, count = 0;  ///< positions; a prefill span is one call: chunks count from `begin`
  Phase phase = Phase::kPrefill;
  bool sparse = false;
};

/// What is left to read again after a checkpoint was put back.
struct Replay {
  std::vector<ReadSpan> spans;
  std::vector<std::int32_t> tokens;  ///< of all spans, in order
};

class State {
 public:
  static Result<std::unique_ptr<State>> create(std::shared_ptr<const StateLayout> layout,
                                               std::shared_ptr<const Device> device, const StateOptions& options);
  ~State();  ///< zeroes its memory

  Result<std::unique_ptr<State>> fork(Queue& queue);
  Status reset(Queue& queue);

  const StateLayout& layout() const { return *layout_; }
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
  /// Puts the newest checkpoint at or before `position` back and tells what to read again to get there.
  Result<Replay> rewind_to_checkpoint(Queue& queue, std::int64_t position);

  /// Host copy of the logits after the last token; empty when not known.
  std::vector<float>& last_logits() { return last_logits_; }

 private:
  // Owned by the state room; the layout of private members is its business.
  friend class SnapshotWriter;
  friend class SnapshotReader;
  State() = default;
  std::shared_ptr<const StateLayout> layout_;
  std::shared_ptr<const Device> device_;
  StateOptions options_;
  DeviceBuffer dense_;
  std::vector<std::unique_ptr<SlotTable>> tables_;  ///< by slot index; null where the slot is dense
  std::int64_t position_ = 0;
  bool is_valid_ = true, has_sparse_prefill_ = false;
  std::vector<float> last_logits_;
};

}  // namespace cairn
