// Handles of the C API to things that a test made inside, for rooms that look at both sides.
#pragma once

#include "runtime/api/objects.h"
#include "tests/support/agent_bench.h"

namespace cairn::test {

/// A state handle that owns `state`.
inline cairn_state* handle_of(const AgentBench& bench, std::unique_ptr<State> state) {
  auto object = std::make_shared<api::StateObject>();
  object->plan = bench.plan;
  object->queue = AgentBench::take(Queue::create(bench.device));
  object->state = std::move(state);
  cairn_state* handle = nullptr;
  AgentBench::require_ok(api::give_out(std::move(object), &handle));
  return handle;
}

/// The state behind a live handle.
inline State& state_of(const cairn_state* handle) {
  return *AgentBench::take(api::pin<api::StateObject>(handle))->state;
}

}  // namespace cairn::test
