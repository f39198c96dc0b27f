// cairn/stream.h: streams, prefill, decode, logits, sampling.
#include <vector>

#include "runtime/api/objects.h"
#include "runtime/execution/plan.h"
#include "runtime/execution/sampler.h"
#include "runtime/execution/stream.h"

namespace cairn::api {
namespace {

/// A stream held for the length of a call.
struct HeldStream {
  Pin<StreamObject> object;
  BusyLock lock;
  Stream& stream() const { return *object->stream; }
};

Result<HeldStream> hold_stream(const cairn_stream* handle) {
  CAIRN_TRY_ASSIGN(Pin<StreamObject> object, pin<StreamObject>(handle));
  CAIRN_TRY_ASSIGN(BusyLock lock, BusyLock::acquire(object->busy, "stream"));
  return HeldStream{std::move(object), std::move(lock)};
}

/// Before the arrays are looked at: a count that is too large may lead behind their ends.
Status check_count(std::int32_t count, const Stream& stream) {
  if (count >= 1 && count <= stream.max_sequences()) return {};
  return Status::invalid_argument("%d sequences, outside [1, %d]", count, stream.max_sequences());
}

/// The state of place `index` of a batch, held. One that an earlier place of the batch holds is no other call's business:
/// it is named twice.
template <class Get>
Result<HeldState> hold_one(std::int32_t index, Get handle_at) {
  Result<HeldState> held = hold_state(handle_at(index));
  if (held.ok() || held.status().code() != CAIRN_STATUS_BUSY) return held;
  for (std::int32_t i = 0; i < index; ++i) {
    if (handle_at(i) != handle_at(index)) continue;
    return Status::invalid_argument("sequences %d and %d of the batch name the same state", i, index);
  }
  return held;
}

Status read_sparse(const cairn_batch& batch, SparsePrefill& sparse) {
  if (batch.mode != CAIRN_PREFILL_DENSE && batch.mode != CAIRN_PREFILL_SPARSE) {
    return Status::invalid_argument("prefill mode %d is neither 0 (dense) nor 1 (sparse)", batch.mode);
  }
  if (batch.mode == CAIRN_PREFILL_DENSE) return {};
  cairn_sparse_options options = CAIRN_SPARSE_OPTIONS_INIT;
  CAIRN_TRY(read_options(batch.sparse, "cairn_sparse_options", options));
  if (options.policy < CAIRN_SPARSE_ADAPTIVE || options.policy > CAIRN_SPARSE_FIXED) {
    return Status::invalid_argument("sparse policy %d is outside [0, 3]", options.policy);
  }
  CAIRN_TRY(check_flag(options.full_inverse, "full_inverse"));
  CAIRN_TRY(check_reserved(options.reserved, "cairn_sparse_options"));
  if (options.min_chunks < 0) return Status::invalid_argument("min_chunks %d is negative", options.min_chunks);
  sparse.enabled = true;
  sparse.policy = static_cast<SparsePolicy>(options.policy);
  sparse.min_chunks = options.min_chunks == 0 ? 16 : options.min_chunks;
  sparse.full_inverse = options.full_inverse != 0;
  sparse.seed = options.seed;
  return {};
}

Result<SequenceInput> read_sequence(const cairn_sequence& sequence, std::int32_t index, State& state) {
  if (sequence.token_count < 0) {
    return Status::invalid_argument("sequence %d: token_count %lld is negative", index, static_cast<long long>(sequence.token_count));
  }
  if (sequence.token_count > 0 && !sequence.tokens) {
    return Status::invalid_argument("sequence %d: tokens is NULL, token_count is %lld", index, static_cast<long long>(sequence.token_count));
  }
  if (sequence.logits < CAIRN_LOGITS_LAST || sequence.logits > CAIRN_LOGITS_ALL) {
    return Status::invalid_argument("sequence %d: logits %d is outside [0, 2]", index, sequence.logits);
  }
  CAIRN_TRY(check_reserved(sequence.reserved, "cairn_sequence"));
  return SequenceInput{&state, {sequence.tokens, static_cast<std::size_t>(sequence.token_count)},
                       static_cast<LogitsWanted>(sequence.logits)};
}

Status prefill(cairn_stream* handle, const cairn_batch* batch_in) {
  if (!batch_in) return Status::invalid_argument("batch is NULL");
  cairn_batch batch = CAIRN_BATCH_INIT;
  CAIRN_TRY(read_options(batch_in, "cairn_batch", batch));
  CAIRN_TRY_ASSIGN(const HeldStream held, hold_stream(handle));
  CAIRN_TRY(check_count(batch.sequence_count, held.stream()));
  CAIRN_REQUIRE(batch.sequences);
  SparsePrefill sparse;
  CAIRN_TRY(read_sparse(batch, sparse));
  const auto handle_at = [&batch](std::int32_t i) { return batch.sequences[i].state; };
  std::vector<HeldState> states;
  std::vector<SequenceInput> inputs;
  for (std::int32_t i = 0; i < batch.sequence_count; ++i) {
    CAIRN_TRY_ASSIGN(HeldState state, hold_one(i, handle_at));
    CAIRN_TRY_ASSIGN(const SequenceInput input, read_sequence(batch.sequences[i], i, state.state()));
    states.push_back(std::move(state));
    inputs.push_back(input);
  }
  return held.stream().prefill(inputs, sparse, progress_of(batch.progress, batch.progress_user));
}

Status decode(cairn_stream* handle, cairn_state* const* state_handles, const std::int32_t* tokens, std::int32_t count) {
  CAIRN_TRY_ASSIGN(const HeldStream held, hold_stream(handle));
  CAIRN_TRY(check_count(count, held.stream()));
  CAIRN_REQUIRE(state_handles);
  CAIRN_REQUIRE(tokens);
  StreamObject& object = *held.object;
  object.held_states.clear();
  object.states.clear();
  struct Clear {  // the states are let go in any case
    StreamObject& object;
    ~Clear() { object.held_states.clear(); }
  } const clear{object};
  for (std::int32_t i = 0; i < count; ++i) {
    CAIRN_TRY_ASSIGN(HeldState state, hold_one(i, [state_handles](std::int32_t place) { return state_handles[place]; }));
    object.states.push_back(&state.state());
    object.held_states.push_back(std::move(state));
  }
  return held.stream().decode(object.states, {tokens, static_cast<std::size_t>(count)});
}

Result<SamplerOptions> sampler_options(const cairn_sampler_options& from) {
  CAIRN_TRY(check_reserved(from.reserved, "cairn_sampler_options"));
  if (from.recent_token_count > 0 && !from.recent_tokens) {
    return Status::invalid_argument("recent_tokens is NULL, recent_token_count is %zu", from.recent_token_count);
  }
  SamplerOptions options;
  options.temperature = from.temperature;
  options.top_k = from.top_k;
  options.top_p = from.top_p;
  options.min_p = from.min_p;
  options.repetition_penalty = from.repetition_penalty;
  options.seed = from.seed;
  options.draw = from.draw;
  options.recent_tokens = {from.recent_tokens, from.recent_token_count};
  return options;
}

}  // namespace
}  // namespace cairn::api

using namespace cairn;
using namespace cairn::api;

cairn_status cairn_stream_create(cairn_model* model, const cairn_stream_options* options_in, cairn_stream** stream) {
  return guarded([&]() -> Status {
    CAIRN_REQUIRE(stream);
    *stream = nullptr;
    cairn_stream_options options = CAIRN_STREAM_OPTIONS_INIT;
    CAIRN_TRY(read_options(options_in, "cairn_stream_options", options));
    CAIRN_TRY_ASSIGN(const Pin<ModelObject> held, pin<ModelObject>(model));
    StreamOptions inner;
    inner.native_queue = options.native_queue;
    inner.max_sequences = options.max_sequences == 0 ? 256 : options.max_sequences;
    inner.prefill_chunk_tokens = options.prefill_chunk_tokens;
    auto object = std::make_shared<StreamObject>();
    object->plan = held->plan;
    CAIRN_TRY_ASSIGN(object->stream, Stream::create(held->plan, inner));
    return give_out(std::move(object), stream);
  });
}

cairn_status cairn_prefill(cairn_stream* stream, const cairn_batch* batch) {
  return guarded([&] { return prefill(stream, batch); });
}

cairn_status cairn_decode(cairn_stream* stream, cairn_state* const* states, const int32_t* tokens, int32_t count) {
  return guarded([&] { return decode(stream, states, tokens, count); });
}

cairn_status cairn_stream_synchronize(cairn_stream* stream) {
  return guarded([&]() -> Status {
    CAIRN_TRY_ASSIGN(const HeldStream held, hold_stream(stream));
    return held.stream().synchronize();
  });
}

cairn_status cairn_stream_get_logits(cairn_stream* stream, int64_t row, const float** logits, size_t* count) {
  return guarded([&]() -> Status {
    CAIRN_REQUIRE(logits);
    CAIRN_REQUIRE(count);
    CAIRN_TRY_ASSIGN(const HeldStream held, hold_stream(stream));
    const std::int64_t rows = held.stream().logits_rows();
    if (row < 0 || row >= rows) {
      return Status::invalid_argument("logits row %lld is outside [0, %lld)", static_cast<long long>(row), static_cast<long long>(rows));
    }
    const std::span<const float> values = held.stream().logits(row);
    *logits = values.data();
    *count = values.size();
    return {};
  });
}

cairn_status cairn_stream_get_logits_row_count(cairn_stream* stream, int64_t* row_count) {
  return guarded([&]() -> Status {
    CAIRN_REQUIRE(row_count);
    CAIRN_TRY_ASSIGN(const HeldStream held, hold_stream(stream));
    *row_count = held.stream().logits_rows();
    return {};
  });
}

cairn_status cairn_sample(const float* logits, size_t count, const cairn_sampler_options* options_in, int32_t* token) {
  return guarded([&]() -> Status {
    CAIRN_REQUIRE(logits);
    CAIRN_REQUIRE(token);
    if (count == 0 || count > static_cast<std::size_t>(INT32_MAX)) {
      return Status::invalid_argument("%zu logits, outside [1, %d]", count, INT32_MAX);
    }
    cairn_sampler_options options = CAIRN_SAMPLER_OPTIONS_INIT;
    CAIRN_TRY(read_options(options_in, "cairn_sampler_options", options));
    CAIRN_TRY_ASSIGN(const SamplerOptions own, sampler_options(options));
    CAIRN_TRY_ASSIGN(*token, sample({logits, count}, own));
    return {};
  });
}

void cairn_stream_release(cairn_stream* stream) { give_back<StreamObject>(stream); }
