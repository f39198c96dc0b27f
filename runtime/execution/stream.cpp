#include "runtime/execution/stream.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace cairn {
namespace {

constexpr std::int64_t kChunk = 64;
constexpr std::int32_t kMaxSequences = 65535;      // a GPU's grid in z, where kernels put the sequence
constexpr std::int32_t kHostChunkTokens = 512;    // a step of tens of milliseconds: cancelling stays prompt
constexpr std::size_t kMaxRecordedSteps = 16;
constexpr std::int32_t kDeviceChunkTokens = 8192;  // long enough to fill a GPU

}  // namespace

Stream::Stream(std::shared_ptr<const Plan> plan, const StreamOptions& options, std::unique_ptr<Queue> queue)
    : plan_(std::move(plan)), options_(options), queue_(std::move(queue)),
      step_(plan_->device()->ops(), plan_->activations()), inputs_(plan_) {
  if (options_.prefill_chunk_tokens == 0) {
    options_.prefill_chunk_tokens = plan_->device()->backend().host_memory ? kHostChunkTokens : kDeviceChunkTokens;
  }
  can_record_ = plan_->device()->backend().begin_recording != nullptr;
  recorded_.reserve(kMaxRecordedSteps);
}

Result<std::unique_ptr<Stream>> Stream::create(std::shared_ptr<const Plan> plan, const StreamOptions& options) {
  if (options.max_sequences < 1 || options.max_sequences > kMaxSequences) {
    return Status::invalid_argument("max_sequences %d is outside [1, %d]", options.max_sequences, kMaxSequences);
  }
  if (options.prefill_chunk_tokens < 0 || options.prefill_chunk_tokens % kChunk != 0 || options.prefill_chunk_tokens > (1 << 20)) {
    return Status::invalid_argument("prefill_chunk_tokens %d is not a multiple of 64 in [0, 1048576]", options.prefill_chunk_tokens);
  }
  CAIRN_TRY_ASSIGN(std::unique_ptr<Queue> queue, Queue::create(plan->device(), options.native_queue));
  return std::unique_ptr<Stream>(new Stream(std::move(plan), options, std::move(queue)));
}

std::int64_t Stream::Reading::wanted_rows() const {
  if (input.logits == LogitsWanted::kNone || input.tokens.empty()) return 0;
  return input.logits == LogitsWanted::kLast ? 1 : static_cast<std::int64_t>(input.tokens.size());
}

std::span<const float> Stream::logits(std::int64_t row) const {
  const auto vocab = static_cast<std::size_t>(plan_->description().vocab_size);
  return {logits_.as<float>() + static_cast<std::size_t>(row) * vocab, vocab};
}

// ---------------------------------------------------------------- checks: after these no argument error exists

Status Stream::check(std::span<const SequenceInput> sequences) const {
  if (sequences.empty() || sequences.size() > static_cast<std::size_t>(options_.max_sequences)) {
    return Status::invalid_argument("sequence_count %zu is outside [1, %d]", sequences.size(), options_.max_sequences);
  }
  const std::int32_t vocab = plan_->description().vocab_size;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const State& state = *sequences[i].state;
    if (&state.layout() != plan_->state_layout().get()) {
      return Status::invalid_argument("sequence %zu: the state belongs to another model than the stream", i);
    }
    if (!state.is_valid()) {
      return Status::error(CAIRN_STATUS_STATE_INVALID, "sequence %zu: the state is invalid: reset, restore or rewind it first", i);
    }
    if (sequences[i].tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
      return Status::invalid_argument("sequence %zu: %zu tokens, more than %d in one call", i, sequences[i].tokens.size(),
                                      std::numeric_limits<std::int32_t>::max());
    }
    for (std::size_t t = 0; t < sequences[i].tokens.size(); ++t) {
      const std::int32_t token = sequences[i].tokens[t];
      if (token < 0 || token >= vocab) {
        return Status::invalid_argument("sequence %zu: token %zu is %d, outside [0, %d)", i, t, token, vocab);
      }
    }
  }
  return {};
}

Status Stream::reserve_states(std::span<const SequenceInput> sequences) {
  seen_.clear();
  for (const SequenceInput& sequence : sequences) seen_.push_back(sequence.state);
  std::sort(seen_.begin(), seen_.end());
  if (std::adjacent_find(seen_.begin(), seen_.end()) != seen_.end()) {
    return Status::invalid_argument("a state is named twice in one batch");
  }
  for (const SequenceInput& sequence : sequences) {
    CAIRN_TRY(sequence.state->reserve(*queue_, static_cast<std::int64_t>(sequence.tokens.size())));
  }
  return {};
}

// ---------------------------------------------------------------- memory

std::size_t Stream::kind_of(Phase phase, const SparsePrefill& sparse) {
  if (phase == Phase::kDecode) return 0;
  if (!sparse.enabled) return 1;
  return 2 + 2 * static_cast<std::size_t>(sparse.policy) + (sparse.full_inverse ? 1 : 0);
}

Status Stream::plan_memory(std::int32_t tokens, std::int32_t sequences, std::int32_t rows, Phase phase,
                           const SparsePrefill& sparse) {
  Planned& planned = planned_[kind_of(phase, sparse)];
  const bool is_planned = tokens <= planned.tokens && sequences <= planned.sequences && rows <= planned.rows;
  if (is_planned && inputs_.has_room(tokens, sequences, rows)) return {};
  const Planned next{std::max(tokens, planned.tokens), std::max(sequences, planned.sequences), std::max(rows, planned.rows)};
  CAIRN_TRY_ASSIGN(const StepMemory memory, plan_->measure(next.tokens, next.sequences, phase, sparse, next.rows));
  recorded_.clear();  // they hold the old addresses
  CAIRN_TRY(grow(activations_, memory.activation_bytes));
  CAIRN_TRY(grow(scratch_, memory.scratch_bytes));
  const std::size_t row_bytes = static_cast<std::size_t>(plan_->description().vocab_size) * sizeof(float);
  CAIRN_TRY(grow(step_logits_, static_cast<std::size_t>(next.rows) * row_bytes));
  CAIRN_TRY(inputs_.reserve(next.tokens, next.sequences, next.rows));
  planned = next;
  return {};
}

/// At least this much, wiped on release. The old memory goes first: nothing counts as planned until the new is there.
Status Stream::grow(DeviceBuffer& buffer, std::size_t size_bytes) {
  if (size_bytes <= buffer.size_bytes()) return {};
  planned_ = {};
  buffer = {};
  CAIRN_TRY_ASSIGN(buffer, plan_->device()->allocate(size_bytes));
  buffer.zero_on_release();
  return {};
}

Status Stream::reserve_logits(std::int64_t rows) {
  logits_rows_ = 0;
  const std::size_t size_bytes = static_cast<std::size_t>(rows) * static_cast<std::size_t>(plan_->description().vocab_size) * sizeof(float);
  if (size_bytes > logits_.size_bytes()) {
    logits_ = {};
    CAIRN_TRY_ASSIGN(logits_, plan_->device()->allocate(size_bytes, MemoryKind::kPinnedHost));
    logits_.zero_on_release();
  }
  return {};
}

// ---------------------------------------------------------------- prefill

Status Stream::prefill(std::span<const SequenceInput> sequences, const SparsePrefill& sparse, const StepProgress& progress) {
  CAIRN_TRY(check(sequences));
  readings_.clear();
  std::int64_t rows = 0;
  for (const SequenceInput& input : sequences) {
    Reading reading;
    reading.input = input;
    reading.begin = input.state->position();
    reading.first_row = rows;
    const auto chunks = (static_cast<std::int64_t>(input.tokens.size()) + kChunk - 1) / kChunk;
    reading.sparse = sparse.enabled && chunks >= sparse.min_chunks;
    rows += reading.wanted_rows();
    readings_.push_back(reading);
  }
  CAIRN_TRY(plan_call(sparse));
  CAIRN_TRY(reserve_logits(rows));
  CAIRN_TRY(reserve_states(sequences));
  CAIRN_TRY(read_all(sparse, progress));
  logits_rows_ = rows;
  return {};
}

/// Memory for the largest step of the call, before the first one changes a state.
Status Stream::plan_call(const SparsePrefill& sparse) {
  for (const bool is_sparse : {false, true}) {
    std::int64_t tokens = 0, longest = 0, rows = 0, sequences = 0;
    for (const Reading& reading : readings_) {
      if (reading.sparse != is_sparse || reading.remaining() == 0) continue;
      tokens += reading.remaining();
      longest = std::max(longest, reading.remaining());
      rows += reading.wanted_rows();
      ++sequences;
    }
    if (sequences == 0) continue;
    const std::int64_t budget = is_sparse ? std::max<std::int64_t>(options_.prefill_chunk_tokens, longest) : options_.prefill_chunk_tokens;
    SparsePrefill mode = sparse;
    mode.enabled = is_sparse;
    const std::int64_t step_tokens = std::min(tokens, budget);
    CAIRN_TRY(plan_memory(static_cast<std::int32_t>(step_tokens), static_cast<std::int32_t>(sequences),
                          static_cast<std::int32_t>(std::min(rows, std::max(step_tokens, sequences))), Phase::kPrefill, mode));
  }
  return {};
}

/// Steps until every sequence is read: dense ones in chunks, sparse ones whole, since they select over the call.
Status Stream::read_all(const SparsePrefill& sparse, const StepProgress& progress) {
  std::uint64_t done = 0, total = 0;
  for (const Reading& reading : readings_) total += reading.input.tokens.size();
  for (const bool is_sparse : {false, true}) {
    SparsePrefill mode = sparse;
    mode.enabled = is_sparse;
    for (;;) {
      choose_parts(is_sparse, options_.prefill_chunk_tokens);
      if (parts_.empty()) break;
      CAIRN_TRY(run_step(Phase::kPrefill, mode));
      for (const StepPart& part : parts_) done += static_cast<std::uint64_t>(part.token_count);
      if (progress && !progress(done, total) && done < total) {
        return Status::error(CAIRN_STATUS_CANCELLED, "prefill was cancelled after %llu of %llu tokens",
                             static_cast<unsigned long long>(done), static_cast<unsigned long long>(total));
      }
    }
  }
  return {};
}

/// The next step's sequences, in order, within the budget of tokens. Pieces end at multiples of 64 from the call's start.
void Stream::choose_parts(bool sparse, std::int64_t budget) {
  parts_.clear();
  part_reading_.clear();
  for (std::size_t i = 0; i < readings_.size(); ++i) {
    Reading& reading = readings_[i];
    const std::int64_t remaining = reading.remaining();
    if (reading.sparse != sparse || remaining == 0) continue;
    std::int64_t count = remaining;
    if (!sparse) {
      const std::int64_t end = reading.begin + static_cast<std::int64_t>(reading.input.tokens.size());
      count = std::min(count, reading.input.state->tokens_to_next_stop(reading.begin, end));
      if (count > budget) count = budget / kChunk * kChunk;
    } else if (count > budget && !parts_.empty()) {
      continue;
    }
    if (count <= 0) continue;
    const std::int64_t wanted = reading.input.logits == LogitsWanted::kAll    ? count
                                : reading.input.logits == LogitsWanted::kLast ? (count == remaining ? 1 : 0)
                                                                              : 0;
    parts_.push_back({reading.input.state, reading.input.tokens.data() + reading.done, static_cast<std::int32_t>(count),
                      static_cast<std::int32_t>(wanted)});
    part_reading_.push_back(i);
    budget = std::max<std::int64_t>(0, budget - count);
    if (budget == 0) break;
  }
}

// ---------------------------------------------------------------- one step

/// Whatever ends a step early, an exception too, leaves its states half updated. No work on them stays in flight: the
/// caller may give them back.
struct Stream::StepGuard {
  Stream& stream;
  bool is_finished = false;
  ~StepGuard() {
    if (is_finished) return;
    (void)stream.queue_->synchronize().ok();
    for (const StepPart& part : stream.parts_) part.state->invalidate();
  }
};

/// parts_ through the network; states advance and logits rows reach their places.
Status Stream::run_step(Phase phase, const SparsePrefill& sparse) {
  std::int32_t tokens = 0, rows = 0;
  for (const StepPart& part : parts_) {
    tokens += part.token_count;
    rows += part.logits_count;
  }
  CAIRN_TRY(plan_memory(tokens, static_cast<std::int32_t>(parts_.size()), rows, phase, sparse));
  step_.phase = phase;
  step_.sparse = sparse;
  CAIRN_TRY(inputs_.fill(*queue_, parts_, step_));
  StepGuard guard{*this};
  step_.start_running(queue_->handle(), activations_.data(), scratch_.data());
  CAIRN_TRY(run_network(phase, rows));
  CAIRN_TRY(finish_step(phase));
  guard.is_finished = true;
  return {};
}

/// What host numbers a recorded decode step depends on: the largest position, rounded up to a power of two.
std::int64_t Stream::recorded_reach() const {
  std::uint64_t largest = 1;
  for (const StepPart& part : parts_) largest = std::max(largest, static_cast<std::uint64_t>(part.state->position()) + 1);
  return plan_->state_layout()->has_full_attention() ? static_cast<std::int64_t>(std::bit_ceil(largest)) : 0;
}

/// Queues the operators; a decode step of a shape that comes again is recorded and then replayed.
Status Stream::run_network(Phase phase, std::int32_t rows) {
  const auto queue_operators = [&] {
    plan_->forward(step_, inputs_.tokens(), inputs_.logits_row(), rows, step_logits_.as<float>());
  };
  if (phase == Phase::kPrefill || !can_record_ || step_.observer) {
    queue_operators();
    return {};
  }
  const std::int64_t reach = recorded_reach();
  auto found = std::find_if(recorded_.begin(), recorded_.end(), [&](const RecordedStep& step) {
    return step.sequences == parts_.size() && step.reach == reach;
  });
  const Backend& backend = plan_->device()->backend();
  BackendError error;
  if (found != recorded_.end() && !found->recording) {
    if (backend.begin_recording(queue_->handle(), &error)) {
      queue_operators();
      found->recording = Recording(backend, backend.end_recording(queue_->handle(), &error));
    }
    can_record_ = static_cast<bool>(found->recording);  // a queue that cannot record goes on without
    if (!can_record_) recorded_.clear();
  }
  if (can_record_ && found != recorded_.end()) {
    found->last_use = ++use_count_;
    if (backend.replay_recording(queue_->handle(), found->recording.handle(), &error)) return {};
    return Status(error.status, error.text);
  }
  queue_operators();
  if (!can_record_) return {};
  if (recorded_.size() == kMaxRecordedSteps) {
    const auto oldest = std::min_element(recorded_.begin(), recorded_.end(), [](const RecordedStep& a, const RecordedStep& b) {
      return a.last_use < b.last_use;
    });
    recorded_.erase(oldest);
  }
  recorded_.push_back({parts_.size(), reach, ++use_count_, {}});
  return {};
}

Status Stream::finish_step(Phase phase) {
  const std::size_t row_bytes = static_cast<std::size_t>(plan_->description().vocab_size) * sizeof(float);
  std::int64_t from = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const StepPart& part = parts_[i];
    part.state->forget_last_logits();
    if (part.logits_count == 0) continue;
    std::int64_t to = static_cast<std::int64_t>(i);
    bool is_last = true;
    if (phase == Phase::kPrefill) {
      const Reading& reading = readings_[part_reading_[i]];
      to = reading.first_row + (reading.input.logits == LogitsWanted::kAll ? reading.done : 0);
      is_last = reading.remaining() == part.token_count;
    }
    CAIRN_TRY(queue_->copy(logits_.as<std::byte>() + to * row_bytes, step_logits_.as<std::byte>() + from * row_bytes,
                           part.logits_count * row_bytes, CopyKind::kDeviceToHost));
    from += part.logits_count;
    const auto* row = reinterpret_cast<const float*>(step_logits_.as<std::byte>() + (from - 1) * row_bytes);
    if (is_last) CAIRN_TRY(part.state->keep_last_logits(*queue_, row));
  }
  CAIRN_TRY(queue_->synchronize());
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const StepPart& part = parts_[i];
    ReadSpan piece{part.state->position(), part.token_count, phase, step_.sparse.enabled};
    if (phase == Phase::kPrefill) piece.begin = readings_[part_reading_[i]].begin;
    CAIRN_TRY(part.state->advance(*queue_, piece, part.tokens));
    if (phase == Phase::kPrefill) readings_[part_reading_[i]].done += part.token_count;
  }
  return {};
}

// ---------------------------------------------------------------- decode, replay

Status Stream::decode(std::span<State* const> states, std::span<const std::int32_t> tokens) {
  decode_inputs_.clear();
  for (std::size_t i = 0; i < states.size(); ++i) decode_inputs_.push_back({states[i], tokens.subspan(i, 1), LogitsWanted::kLast});
  CAIRN_TRY(check(decode_inputs_));
  CAIRN_TRY(reserve_logits(static_cast<std::int64_t>(states.size())));
  CAIRN_TRY(reserve_states(decode_inputs_));
  parts_.clear();
  for (std::size_t i = 0; i < states.size(); ++i) parts_.push_back({states[i], &tokens[i], 1, 1});
  CAIRN_TRY(run_step(Phase::kDecode, {}));
  logits_rows_ = static_cast<std::int64_t>(states.size());
  return {};
}

Status Stream::replay(State& state, const Replay& replay) {
  std::size_t next = 0;
  for (const ReadSpan& span : replay.spans) {
    const std::span<const std::int32_t> tokens(replay.tokens.data() + next, static_cast<std::size_t>(span.count));
    next += static_cast<std::size_t>(span.count);
    if (span.phase == Phase::kPrefill) {
      const SequenceInput input{&state, tokens, LogitsWanted::kLast};
      CAIRN_TRY(prefill({&input, 1}, {}, nullptr));
      continue;
    }
    for (const std::int32_t& token : tokens) {
      State* const one = &state;
      CAIRN_TRY(decode({&one, 1}, {&token, 1}));
    }
  }
  return {};
}

Status Plan::replay(State& state, const Replay& replay) const {
  if (replay.spans.empty()) return {};
  CAIRN_TRY_ASSIGN(std::unique_ptr<Stream> stream, Stream::create(shared_from_this(), {}));
  return stream->replay(state, replay);
}

}  // namespace cairn
