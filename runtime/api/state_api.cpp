// cairn/state.h: creating, forking, clearing, rewinding, and looking at states.
#include <algorithm>
#include <cstring>

#include "runtime/api/objects.h"
#include "runtime/execution/plan.h"
#include "runtime/state/state_statistics.h"

namespace cairn::api {

Result<HeldState> hold_state(const cairn_state* handle) {
  CAIRN_TRY_ASSIGN(Pin<StateObject> object, pin<StateObject>(handle));
  CAIRN_TRY_ASSIGN(BusyLock lock, BusyLock::acquire(object->busy, "state"));
  return HeldState{std::move(object), std::move(lock)};
}

Status require_valid(const State& state) {
  if (state.is_valid()) return {};
  return Status::error(CAIRN_STATUS_STATE_INVALID, "the state is invalid since a device error: reset, restore or rewind it first");
}

namespace {

constexpr std::int64_t kDefaultKvCapacity = 4096;

Status create(cairn_model* model, const cairn_state_options* options_in, cairn_state** state) {
  CAIRN_REQUIRE(state);
  *state = nullptr;
  cairn_state_options options = CAIRN_STATE_OPTIONS_INIT;
  CAIRN_TRY(read_options(options_in, "cairn_state_options", options));
  CAIRN_TRY(check_flag(options.no_last_logits, "no_last_logits"));
  CAIRN_TRY_ASSIGN(const Pin<ModelObject> held, pin<ModelObject>(model));
  StateOptions own;
  own.kv_capacity_tokens = options.kv_capacity_tokens == 0 ? kDefaultKvCapacity : options.kv_capacity_tokens;
  own.rewind_window_tokens = options.rewind_window_tokens;
  own.rewind_spacing_tokens = options.rewind_spacing_tokens;
  own.keep_last_logits = options.no_last_logits == 0;
  auto object = std::make_shared<StateObject>();
  object->plan = held->plan;
  CAIRN_TRY_ASSIGN(object->queue, Queue::create(object->plan->device()));
  CAIRN_TRY_ASSIGN(object->state, State::create(object->plan->state_layout(), object->plan->device(), own));
  return give_out(std::move(object), state);
}

Status fork(cairn_state* state, cairn_state** fork) {
  CAIRN_REQUIRE(fork);
  *fork = nullptr;
  CAIRN_TRY_ASSIGN(const HeldState held, hold_state(state));
  CAIRN_TRY(require_valid(held.state()));
  auto object = std::make_shared<StateObject>();
  object->plan = held.object->plan;
  CAIRN_TRY_ASSIGN(object->queue, Queue::create(object->plan->device()));
  CAIRN_TRY_ASSIGN(object->state, held.state().fork(held.queue()));
  return give_out(std::move(object), fork);
}

/// Ends a rewind that was begun, also when an exception passes.
class OpenRewind {
 public:
  explicit OpenRewind(const HeldState& held) : held_(held) {}
  ~OpenRewind() {
    try {
      if (is_open_) (void)held_.state().finish_rewind(held_.queue(), false).ok();
    } catch (...) {  // NOLINT: the state stays invalid
    }
  }
  OpenRewind(const OpenRewind&) = delete;
  OpenRewind& operator=(const OpenRewind&) = delete;
  Status finish(bool is_successful) {
    is_open_ = false;
    return held_.state().finish_rewind(held_.queue(), is_successful);
  }

 private:
  const HeldState& held_;
  bool is_open_ = true;
};

Status rewind(cairn_state* state, std::int64_t position) {
  CAIRN_TRY_ASSIGN(const HeldState held, hold_state(state));
  CAIRN_TRY_ASSIGN(const Replay replay, held.state().rewind_to_checkpoint(held.queue(), position));
  OpenRewind open(held);
  const Status replayed = held.object->plan->replay(held.state(), replay);
  const Status finished = open.finish(replayed.ok());
  return replayed.ok() ? finished : replayed;
}

Status can_rewind(cairn_state* state, std::int64_t position, std::int32_t* can) {
  CAIRN_REQUIRE(can);
  CAIRN_TRY_ASSIGN(const HeldState held, hold_state(state));
  *can = held.state().can_rewind(position) ? 1 : 0;
  return {};
}

Status get_info(cairn_state* handle, cairn_state_info* out) {
  CAIRN_TRY(check_info(out, "cairn_state_info"));
  CAIRN_TRY_ASSIGN(const HeldState held, hold_state(handle));
  State& state = held.state();
  const StateMemory memory = state.memory();
  cairn_state_info info = CAIRN_STATE_INFO_INIT;
  info.position = state.position();
  info.oldest_rewind_position = state.oldest_rewind_position();
  info.kv_capacity_tokens = state.layout().has_full_attention() ? state.options().kv_capacity_tokens : 0;
  info.kv_used_tokens = state.kv_used_tokens();
  info.bytes_held = memory.held;
  info.bytes_shared = memory.shared;
  info.rewind_bytes = memory.rewind;
  info.is_valid = state.is_valid() ? 1 : 0;
  info.has_last_logits = state.has_last_logits() ? 1 : 0;
  info.has_sparse_prefill = state.has_sparse_prefill() ? 1 : 0;
  return write_info(info, "cairn_state_info", out);
}

Status get_statistics(cairn_state* handle, std::int32_t layer, cairn_state_statistics* out) {
  CAIRN_TRY(check_info(out, "cairn_state_statistics"));
  CAIRN_TRY_ASSIGN(const HeldState held, hold_state(handle));
  CAIRN_TRY(require_valid(held.state()));
  CAIRN_TRY_ASSIGN(const StateStatistics statistics, read_statistics(held.state(), held.queue(), layer));
  cairn_state_statistics info = CAIRN_STATE_STATISTICS_INIT;
  info.max_abs = statistics.max_abs;
  info.norm = statistics.norm;
  info.non_finite_count = statistics.non_finite_count;
  info.slots_written = statistics.slots_written;
  info.slots_total = statistics.slots_total;
  return write_info(info, "cairn_state_statistics", out);
}

Status get_written_slots(cairn_state* handle, std::int32_t layer, std::uint8_t* written, std::size_t* count) {
  CAIRN_REQUIRE(count);
  CAIRN_TRY_ASSIGN(const HeldState held, hold_state(handle));
  CAIRN_TRY(require_valid(held.state()));
  if (const std::int64_t need = slot_count(held.state(), layer); need > 0) {
    CAIRN_TRY(check_room(written, static_cast<std::size_t>(need), "written", count));
  }
  CAIRN_TRY_ASSIGN(const std::vector<std::uint8_t> flags, read_written_slots(held.state(), held.queue(), layer));
  std::copy(flags.begin(), flags.end(), written);
  return {};
}

Status get_last_logits(cairn_state* handle, float* logits, std::size_t* count) {
  CAIRN_REQUIRE(count);
  CAIRN_TRY_ASSIGN(const HeldState held, hold_state(handle));
  CAIRN_TRY(require_valid(held.state()));
  if (!held.state().has_last_logits()) {
    return Status::error(CAIRN_STATUS_WRONG_STATE, "no logits are known at position %lld: nothing was read with logits, or no_last_logits is set",
                         static_cast<long long>(held.state().position()));
  }
  CAIRN_TRY(check_room(logits, static_cast<std::size_t>(held.state().layout().vocab_size()), "logits", count));
  return held.state().read_last_logits(held.queue(), logits);
}

}  // namespace
}  // namespace cairn::api

using namespace cairn;
using namespace cairn::api;

extern "C" {

cairn_status cairn_state_create(cairn_model* model, const cairn_state_options* options, cairn_state** state) {
  return guarded([&] { return create(model, options, state); });
}

cairn_status cairn_state_fork(cairn_state* state, cairn_state** fork) {
  return guarded([&] { return cairn::api::fork(state, fork); });
}

cairn_status cairn_state_reset(cairn_state* state) {
  return guarded([&]() -> Status {
    CAIRN_TRY_ASSIGN(const HeldState held, hold_state(state));
    return held.state().reset(held.queue());
  });
}

cairn_status cairn_state_rewind(cairn_state* state, int64_t position) {
  return guarded([&] { return cairn::api::rewind(state, position); });
}

cairn_status cairn_state_can_rewind(cairn_state* state, int64_t position, int32_t* can) {
  return guarded([&] { return can_rewind(state, position, can); });
}

cairn_status cairn_state_get_info(cairn_state* state, cairn_state_info* info) {
  return guarded([&] { return get_info(state, info); });
}

cairn_status cairn_state_get_statistics(cairn_state* state, int32_t layer, cairn_state_statistics* statistics) {
  return guarded([&] { return get_statistics(state, layer, statistics); });
}

cairn_status cairn_state_get_written_slots(cairn_state* state, int32_t layer, uint8_t* written, size_t* count) {
  return guarded([&] { return get_written_slots(state, layer, written, count); });
}

cairn_status cairn_state_get_last_logits(cairn_state* state, float* logits, size_t* count) {
  return guarded([&] { return get_last_logits(state, logits, count); });
}

void cairn_state_release(cairn_state* state) { give_back<StateObject>(state); }

}  // extern "C"
