// What rewinding needs: checkpoints at spaced positions, and the tokens read since the oldest with how they were read.
// To go back to p: put the newest checkpoint at or before p back, then read the tokens up to p again the same way, which
// gives the same bits (dense prefill cut at multiples of 64 does; decode does). Sparse prefill selects over its call and
// cannot be cut, so a checkpoint is taken after each such span and none of its tokens is ever read again.
//
// Spacing. A checkpoint costs one copy of the dense state and the slot indexes, spread over `spacing` tokens; going back
// costs spacing / 2 tokens of reading; memory is window / spacing checkpoints. See README.md for the figures.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/state/slot_table.h"
#include "runtime/support/allocator.h"

namespace cairn {

/// How a run of tokens was read. Replaying it the same way gives the same bits; a sparse span cannot be cut.
struct ReadSpan {
  std::int64_t begin = 0, count = 0;  ///< positions; a prefill span is one call: chunks count from `begin`
  Phase phase = Phase::kPrefill;
  bool sparse = false;
  std::int64_t end() const { return begin + count; }
};

/// What is left to read again after a checkpoint was put back.
struct Replay {
  std::vector<ReadSpan> spans;
  std::vector<std::int32_t> tokens;  ///< of all spans, in order
};

/// A state at an earlier position. Key-value rows of full attention stay where they are: they never change.
struct Checkpoint {
  std::int64_t position = 0;
  bool has_sparse_prefill = false;
  bool is_empty = false;              ///< the fresh state: nothing is stored
  DeviceBuffer dense;
  std::vector<SlotTableImage> tables;  ///< by slot index; unused where the slot is dense
};
using CheckpointList = std::vector<std::unique_ptr<Checkpoint>>;

/// Tokens by position: those from begin() on are kept. Zeroed before its memory is given back.
class TokenLog {
 public:
  void start(std::int64_t position);
  std::int64_t begin() const { return begin_; }
  std::int64_t end() const { return begin_ + count_; }
  Status reserve(std::int64_t more);
  void append(const std::int32_t* tokens, std::int64_t count);
  const std::int32_t* at(std::int64_t position) const { return data() + (position - begin_); }
  void forget_before(std::int64_t position);
  void cut_at(std::int64_t position);
  std::uint64_t size_bytes() const { return memory_.size_bytes(); }

 private:
  std::int32_t* data() const { return memory_.as<std::int32_t>() + first_; }
  HostBuffer memory_;
  std::int64_t first_ = 0;  ///< index in memory_ of the token at begin_
  std::int64_t begin_ = 0, count_ = 0;
};

class RewindJournal {
 public:
  /// window 0: off. spacing 0: chosen by the window.
  RewindJournal(std::int64_t window_tokens, std::int32_t spacing_tokens);

  bool is_on() const { return window_ > 0; }
  std::int64_t window() const { return window_; }
  std::int32_t spacing() const { return spacing_; }
  /// Checkpoints that may become due during a call of this many tokens: those that its window will need.
  std::int64_t checkpoints_during(std::int64_t token_count) const;
  /// Checkpoints that the window needs at most.
  std::int64_t checkpoint_limit() const { return window_ / spacing_ + 3; }

  /// Position of the newest checkpoint plus the spacing; later where the call would leave it behind its window.
  std::int64_t next_due() const { return std::max(checkpoints_.back()->position + spacing_, first_due_); }
  const CheckpointList& checkpoints() const { return checkpoints_; }
  const std::vector<ReadSpan>& spans() const { return spans_; }
  const TokenLog& tokens() const { return tokens_; }

  /// Room for the tokens of a call that begins at `position`, so that append() cannot fail.
  Status reserve(std::int64_t position, std::int64_t token_count);
  /// `position` is where the tokens begin; piece.begin is where their call began.
  void append(const ReadSpan& piece, std::int64_t position, const std::int32_t* tokens);
  /// By position, newest last. Checkpoints that the window no longer needs move to `dropped`.
  void add(std::unique_ptr<Checkpoint> checkpoint, CheckpointList& dropped);

  /// The checkpoint to start from to reach `position`; null: cannot be reached. With prefer_tokens one that leaves
  /// tokens to read, where there is one: reading the last token brings its logits back.
  const Checkpoint* find(std::int64_t position, bool prefer_tokens) const;
  Replay replay_from(const Checkpoint& checkpoint, std::int64_t position) const;

  /// What cut() takes away, so that it can be put back. Cutting and putting back take no memory.
  struct Tail {
    CheckpointList checkpoints;  ///< empty before cut(), with room
    std::vector<ReadSpan> spans;
    std::vector<std::int32_t> tokens;
    std::int64_t position = 0;
  };
  /// Everything after `position`, where a checkpoint lies, for cut().
  Tail tail_after(std::int64_t position) const;
  /// Forgets everything after tail.position.
  void cut(Tail& tail);
  /// Undoes cut() and what was read since.
  void put_back(Tail tail);

  /// Starts anew at the one checkpoint of `first`; returns the earlier ones. Takes no memory.
  CheckpointList start(CheckpointList first);
  /// Takes over what a snapshot carried: checkpoints by position; spans and tokens from `begin` on, at or before the first.
  Status load(CheckpointList checkpoints, std::vector<ReadSpan> spans, std::int64_t begin, const std::vector<std::int32_t>& tokens);

 private:
  void forget_old(CheckpointList& dropped);
  void forget_tokens_before(std::int64_t position);

  std::int64_t window_;
  std::int32_t spacing_;
  std::int64_t first_due_ = 0;  ///< of the call: an earlier checkpoint would be dropped before it ends
  CheckpointList checkpoints_;
  std::vector<ReadSpan> spans_;
  TokenLog tokens_;
};

}  // namespace cairn
