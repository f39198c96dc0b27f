// A model made ready on a device: blocks bound to weights, the layout of its states, and how much memory a step needs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/layers/block.h"
#include "runtime/model/model_limits.h"
#include "runtime/state/state.h"

namespace cairn {

struct PlanOptions {
  DType activations = DType::kF32;
  DType sdm_rows = DType::kF32;  ///< of slot tables' rows in states: f32 or bf16
  ModelLimits limits;            ///< that the description keeps
  /// Called while weights are placed, with (done, total) layers; false cancels. May be empty.
  std::function<bool(std::uint64_t, std::uint64_t)> progress;
};

/// Memory that a step of a given size needs.
struct StepMemory {
  std::size_t activation_bytes = 0, scratch_bytes = 0;
};

/// Immutable and shared by states and streams. Blocks keep no per-step data, so streams may run at the same time.
class Plan : public std::enable_shared_from_this<Plan> {
 public:
  /// Checks the description, binds every layer, and asks every operator whether the device can run it; the error names
  /// the layer's operator and the reason.
  static Result<std::shared_ptr<const Plan>> build(std::shared_ptr<const ModelDescription> description,
                                                   std::shared_ptr<const Device> device, const PlanOptions& options);

  const ModelDescription& description() const { return *description_; }
  const std::shared_ptr<const Device>& device() const { return device_; }
  const std::shared_ptr<const StateLayout>& state_layout() const { return layout_; }
  DType activations() const { return options_.activations; }
  std::uint64_t weight_bytes() const { return weights_->bytes_held(); }
  std::uint64_t parameter_count() const { return parameter_count_; }

  /// How much memory `forward` takes for this batch. No step of fewer tokens, sequences and rows takes more.
  Result<StepMemory> measure(std::int32_t token_count, std::int32_t sequence_count, Phase phase,
                             const SparsePrefill& sparse, std::int32_t logits_rows) const;

  /// Reads `replay` into `state` exactly as it was read before: the second half of a rewind.
  Status replay(State& state, const Replay& replay) const;

  /// The whole network on one batch (forward.cpp).
  ///   tokens [T] i32, device; logits_row [R] i32 rows of the batch, device; logits [R, vocab] f32, device.
  void forward(Step& step, const std::int32_t* tokens, const std::int32_t* logits_row, std::int32_t logits_rows,
               float* logits) const;

  const std::vector<std::unique_ptr<Block>>& blocks() const { return blocks_; }

 private:
  Plan() = default;
  Status bind();
  Status check_operators() const;

  std::shared_ptr<const ModelDescription> description_;
  std::shared_ptr<const Device> device_;
  PlanOptions options_;
  std::unique_ptr<Weights> weights_;
  std::shared_ptr<const StateLayout> layout_;
  std::vector<std::unique_ptr<Block>> blocks_;
  WeightTable embedding_;
  const float* final_norm_ = nullptr;
  const LinearWeight* head_ = nullptr;
  std::int32_t bus_width_ = 0;  ///< widest CLER residual; 0: no layer routes by CLER
  std::uint64_t parameter_count_ = 0;
};

}  // namespace cairn
