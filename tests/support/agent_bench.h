// A small model on a device, and the shortest way to states, prefill, decode and snapshots of it.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "runtime/execution/stream.h"
#include "runtime/state/snapshot_reader.h"
#include "runtime/state/snapshot_writer.h"
#include "runtime/support/byte_source.h"
#include "tests/support/model_builder.h"

namespace cairn::test {

using Bytes = std::vector<std::byte>;

struct AgentBench {
  std::shared_ptr<const Device> device;
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Queue> queue;

  explicit AgentBench(const char* backend = "reference",
                      std::shared_ptr<const ModelDescription> model = every_mechanism_model(1),
                      const PlanOptions& options = {}) {
    device = take(Device::open(backend, {}));
    plan = take(Plan::build(std::move(model), device, options));
    stream = take(Stream::create(plan, {}));
    queue = take(Queue::create(device));
  }

  template <class T>
  static T take(Result<T> result) {
    REQUIRE_MESSAGE(result.ok(), result.status().message());
    return std::move(result).value();
  }
  static void require_ok(const Status& status) { REQUIRE_MESSAGE(status.ok(), status.message()); }

  std::unique_ptr<State> state(const StateOptions& options = {}) const {
    return take(State::create(plan->state_layout(), device, options));
  }
  std::unique_ptr<State> fork(State& state) const { return take(state.fork(*queue)); }

  Status try_prefill(State& state, std::span<const std::int32_t> tokens, const SparsePrefill& sparse = {}) const {
    const SequenceInput input{&state, tokens, LogitsWanted::kLast};
    return stream->prefill({&input, 1}, sparse, nullptr);
  }
  void prefill(State& state, std::span<const std::int32_t> tokens) const { require_ok(try_prefill(state, tokens)); }
  void sparse_prefill(State& state, std::span<const std::int32_t> tokens) const {
    SparsePrefill sparse;
    sparse.enabled = true;
    sparse.min_chunks = 1;
    require_ok(try_prefill(state, tokens, sparse));
  }
  void decode(State& state, std::span<const std::int32_t> tokens) const {
    State* const one = &state;
    for (const std::int32_t token : tokens) require_ok(stream->decode({&one, 1}, {&token, 1}));
  }
  Status try_rewind(State& state, std::int64_t position) const {
    auto replay = state.rewind_to_checkpoint(*queue, position);
    if (!replay.ok()) return replay.status();
    const Status replayed = plan->replay(state, replay.value());
    const Status finished = state.finish_rewind(*queue, replayed.ok());
    return replayed.ok() ? finished : replayed;
  }
  void rewind(State& state, std::int64_t position) const { require_ok(try_rewind(state, position)); }

  Bytes save(const State& state, bool include_rewind = false) const {
    SnapshotWriter writer = take(SnapshotWriter::prepare(state, *queue, include_rewind));
    VectorSink sink;
    require_ok(writer.write(sink));
    CHECK(sink.bytes().size() == writer.total_bytes());
    return std::move(sink.bytes());
  }
  Status try_restore(State& state, const Bytes& bytes, const SnapshotReadOptions& options = {}) const {
    return SnapshotReader::restore(memory_source(bytes.data(), bytes.size()), options, *queue, state);
  }
  void restore(State& state, const Bytes& bytes) const { require_ok(try_restore(state, bytes)); }
};

/// Of a state that can be rewound.
inline StateOptions with_window(std::int64_t window = 256, std::int32_t spacing = 64) {
  StateOptions options;
  options.rewind_window_tokens = window;
  options.rewind_spacing_tokens = spacing;
  return options;
}

inline std::vector<std::int32_t> random_tokens(std::size_t count, std::uint64_t seed = 3) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 40);
  return tokens;
}

}  // namespace cairn::test
