// A queue of work with its planned memory: prefill and decode.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/execution/step_inputs.h"

namespace cairn {

struct StreamOptions {
  void* native_queue = nullptr;
  std::int32_t max_sequences = 256;
  std::int32_t prefill_chunk_tokens = 0;  ///< a multiple of 64; 0: chosen by the device
};

enum class LogitsWanted : std::uint8_t { kLast = 0, kNone = 1, kAll = 2 };

struct SequenceInput {
  State* state;
  std::span<const std::int32_t> tokens;
  LogitsWanted logits = LogitsWanted::kLast;
};

/// done and total tokens; false cancels.
using StepProgress = std::function<bool(std::uint64_t, std::uint64_t)>;

/// One user at a time. Calls return when their work is done; states are valid and synchronised then, or invalid.
class Stream {
 public:
  static Result<std::unique_ptr<Stream>> create(std::shared_ptr<const Plan> plan, const StreamOptions& options);

  /// See cairn_prefill. Sequences of fewer than sparse.min_chunks chunks run dense.
  Status prefill(std::span<const SequenceInput> sequences, const SparsePrefill& sparse, const StepProgress& progress);
  /// See cairn_decode. No allocation once a batch of this size has run.
  Status decode(std::span<State* const> states, std::span<const std::int32_t> tokens);
  /// A rewind's second half: reads the spans as they were read before.
  Status replay(State& state, const Replay& replay);
  Status synchronize() { return queue_->synchronize(); }

  std::int64_t logits_rows() const { return logits_rows_; }
  /// [vocab], valid until the next call.
  std::span<const float> logits(std::int64_t row) const;

  const Plan& plan() const { return *plan_; }
  std::int32_t max_sequences() const { return options_.max_sequences; }
  /// Null: none. Must outlive its use.
  void set_observer(StepObserver* observer) { step_.observer = observer; }

 private:
  Stream(std::shared_ptr<const Plan> plan, const StreamOptions& options, std::unique_ptr<Queue> queue);

  /// One sequence on its way through a prefill call.
  struct Reading {
    SequenceInput input;
    std::int64_t begin = 0;      ///< position where the call began
    std::int64_t done = 0;       ///< tokens read
    std::int64_t first_row = 0;  ///< of its logits
    bool sparse = false;
    std::int64_t remaining() const { return static_cast<std::int64_t>(input.tokens.size()) - done; }
    std::int64_t wanted_rows() const;
  };
  /// Planned sizes that memory has been taken for.
  struct Planned {
    std::int32_t tokens = 0, sequences = 0, rows = 0;
  };
  /// Kinds of steps, whose operators size their scratch differently: decode, dense prefill, and sparse prefill by
  /// policy and inverse.
  static constexpr std::size_t kStepKinds = 2 + 2 * (static_cast<std::size_t>(SparsePolicy::kGiven) + 1);
  static std::size_t kind_of(Phase phase, const SparsePrefill& sparse);

  Status check(std::span<const SequenceInput> sequences) const;
  Status reserve_states(std::span<const SequenceInput> sequences);
  Status plan_memory(std::int32_t tokens, std::int32_t sequences, std::int32_t rows, Phase phase, const SparsePrefill& sparse);
  Status grow(DeviceBuffer& buffer, std::size_t size_bytes);
  Status plan_call(const SparsePrefill& sparse);
  Status reserve_logits(std::int64_t rows);
  void choose_parts(bool sparse, std::int64_t budget);
  Status run_step(Phase phase, const SparsePrefill& sparse);
  Status finish_step(Phase phase);
  Status run_network(Phase phase, std::int32_t rows);
  std::int64_t recorded_reach() const;
  Status read_all(const SparsePrefill& sparse, const StepProgress& progress);
  struct StepGuard;

  std::shared_ptr<const Plan> plan_;
  StreamOptions options_;
  std::unique_ptr<Queue> queue_;
  Step step_;
  StepInputs inputs_;
  std::array<Planned, kStepKinds> planned_{};
  DeviceBuffer activations_, scratch_, step_logits_, logits_;
  std::int64_t logits_rows_ = 0;
  /// A decode step kept for replay, for this many sequences at positions below `reach`.
  struct RecordedStep {
    std::size_t sequences;
    std::int64_t reach;
    std::uint64_t last_use;
    Recording recording;  ///< empty: seen once, recorded the next time
  };
  std::vector<RecordedStep> recorded_;
  std::uint64_t use_count_ = 0;
  bool can_record_ = false;
  std::vector<Reading> readings_;
  std::vector<SequenceInput> decode_inputs_;
  std::vector<StepPart> parts_;
  std::vector<std::size_t> part_reading_;  ///< reading of each part
  std::vector<State*> seen_;
};

}  // namespace cairn
