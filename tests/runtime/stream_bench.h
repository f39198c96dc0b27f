// A model's plan and a stream on it, and what two runs are compared by.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/execution/stream.h"
#include "tests/support/agent_bench.h"
#include "tests/support/model_builder.h"

namespace cairn::test {

/// None when not known.
inline std::vector<float> last_logits(const State& state) {
  if (!state.has_last_logits()) return {};
  auto queue = Queue::create(state.device());
  REQUIRE(queue.ok());
  std::vector<float> logits(static_cast<std::size_t>(state.layout().vocab_size()));
  REQUIRE(state.read_last_logits(*queue.value(), logits.data()).ok());
  return logits;
}

struct StreamBench {
  std::shared_ptr<const Device> device;
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<Stream> stream;

  explicit StreamBench(const char* backend, std::shared_ptr<const ModelDescription> model = every_mechanism_model(1)) {
    auto opened = Device::open(backend, {});
    REQUIRE_MESSAGE(opened.ok(), opened.status().message());
    device = opened.value();
    auto built = Plan::build(std::move(model), device, {});
    REQUIRE_MESSAGE(built.ok(), built.status().message());
    plan = built.value();
    auto created = Stream::create(plan, {});
    REQUIRE_MESSAGE(created.ok(), created.status().message());
    stream = std::move(created).value();
  }

  std::unique_ptr<State> state(const StateOptions& options = {}) const {
    auto created = State::create(plan->state_layout(), device, options);
    REQUIRE_MESSAGE(created.ok(), created.status().message());
    return std::move(created).value();
  }

  void prefill(State& state, std::span<const std::int32_t> tokens) const {
    const SequenceInput input{&state, tokens, LogitsWanted::kLast};
    const Status status = stream->prefill({&input, 1}, {}, nullptr);
    REQUIRE_MESSAGE(status.ok(), status.message());
  }

  void decode(State& state, std::int32_t token) const {
    State* const one = &state;
    const Status status = stream->decode({&one, 1}, {&token, 1});
    REQUIRE_MESSAGE(status.ok(), status.message());
  }
};

inline double largest_difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
  return largest;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

/// `model` with `change` applied to one tensor's elements.
inline std::shared_ptr<const ModelDescription> changed_model(const ModelDescription& original, const std::string& name,
                                                             const std::function<void(std::vector<float>&)>& change) {
  auto model = std::make_shared<ModelDescription>(original);
  for (TensorEntry& tensor : model->tensors) {
    if (tensor.name != name) continue;
    const auto* from = static_cast<const float*>(tensor.data);
    auto values = std::make_shared<std::vector<float>>(from, from + tensor.size_bytes / sizeof(float));
    change(*values);
    tensor.data = values->data();
    model->storage.push_back(values);
  }
  return model;
}

}  // namespace cairn::test
