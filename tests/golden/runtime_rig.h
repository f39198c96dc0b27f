// A model of the runtime on a device, step by step: one state, blocks one at a time, and a look at what SparseGDN
// selected.
#pragma once

#include <functional>

#include "runtime/execution/step_inputs.h"
#include "tests/golden/vector_model.h"

namespace cairn::test {

/// What one sparse_gdn call of a step decided.
struct SparseChoice {
  std::vector<std::uint8_t> mask;  ///< [n, C]
  std::vector<std::int32_t> tier;  ///< [n]
  std::vector<float> scores;       ///< [C, HV]
};

class RuntimeRig {
 public:
  static Result<std::unique_ptr<RuntimeRig>> create(std::shared_ptr<const ModelDescription> description,
                                                    const std::string& backend, std::int64_t capacity_tokens);

  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  State& state() { return *state_; }
  Queue& queue() { return *queue_; }
  const std::shared_ptr<Device>& device() const { return device_; }
  Status reset() { return state_->reset(*queue_); }

  /// Reads `count` tokens: `body` queues the work of the step. Memory for the whole network's step is there.
  Status read(std::int32_t count, Phase phase, const SparsePrefill& sparse, const std::function<void(Step&)>& body);
  /// In the order of the calls of the last read().
  const std::vector<SparseChoice>& sparse_choices() const { return choices_; }

  Result<DeviceBuffer> upload(const std::vector<float>& values);
  Result<std::vector<float>> download(const void* memory, std::size_t count);

 private:
  RuntimeRig() = default;
  std::shared_ptr<Device> device_;
  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<Queue> queue_;
  std::unique_ptr<State> state_;
  std::unique_ptr<StepInputs> inputs_;
  OpTable watched_ops_;
  std::vector<SparseChoice> choices_;
};

/// A layer's state against the tensors of the case named prefix + "S", "conv_q", "k", "slots", ...
Status compare_state(RuntimeRig& rig, std::int32_t layer, const std::string& prefix, const VectorCase& vectors,
                     class Comparison& result);

}  // namespace cairn::test
