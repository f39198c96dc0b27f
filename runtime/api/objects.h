// What stands behind the handles of the C API.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "cairn/cairn.h"
#include "runtime/api/guard.h"
#include "runtime/device/device.h"
#include "runtime/state/state.h"

namespace cairn {
class Plan;
class Stream;
class Tokenizer;
}  // namespace cairn

namespace cairn::api {

struct DeviceObject {
  static constexpr HandleKind kHandleKind = HandleKind::kDevice;
  std::shared_ptr<const Device> device;
};

struct ModelObject {
  static constexpr HandleKind kHandleKind = HandleKind::kModel;
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Tokenizer> tokenizer;  ///< null: the model carries none
};

struct StateObject;

/// A state held for the length of a call.
struct HeldState {
  Pin<StateObject> object;
  BusyLock lock;

  State& state() const;
  Queue& queue() const;
};

struct StreamObject {
  static constexpr HandleKind kHandleKind = HandleKind::kStream;
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<Stream> stream;
  std::atomic<bool> busy{false};
  std::vector<HeldState> held_states;  ///< of the decode in progress; kept for their room: decode allocates nothing
  std::vector<State*> states;
};

struct StateObject {
  static constexpr HandleKind kHandleKind = HandleKind::kState;
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<State> state;
  std::unique_ptr<Queue> queue;  ///< of the calls on the state itself: fork, rewind, save, ...
  std::atomic<bool> busy{false};
};

inline State& HeldState::state() const { return *object->state; }
inline Queue& HeldState::queue() const { return *object->queue; }

/// INVALID_HANDLE or BUSY. No work is under way on a held state: streams return when theirs is done.
Result<HeldState> hold_state(const cairn_state* handle);

/// NULL: the defaults.
Status read_limits(const cairn_limits* from, cairn_limits& limits);

/// STATE_INVALID unless the state is valid.
Status require_valid(const State& state);

}  // namespace cairn::api
