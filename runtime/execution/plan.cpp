#include "runtime/execution/plan.h"

#include "runtime/execution/stream.h"

namespace cairn {
namespace {

/// Heads times value width of the layer's mixer, as routing sees it.
std::int32_t value_width(const LayerConfig& layer) {
  switch (layer.mechanism) {
    case Mechanism::kSse: return layer.sse.heads * layer.sse.value_dim;
    case Mechanism::kSdm: return layer.sdm.heads * layer.sdm.value_dim;
    default: return layer.delta.value_heads * layer.delta.value_dim;
  }
}

}  // namespace

Result<std::shared_ptr<const Plan>> Plan::build(std::shared_ptr<const ModelDescription> description,
                                                std::shared_ptr<const Device> device, const PlanOptions& options) {
  CAIRN_TRY(validate(*description, options.limits));
  CAIRN_TRY(check_tensors(*description));
  std::shared_ptr<Plan> plan(new Plan());
  plan->description_ = std::move(description);
  plan->device_ = std::move(device);
  plan->options_ = options;
  plan->weights_ = std::make_unique<Weights>(plan->device_, *plan->description_);
  CAIRN_TRY(plan->bind());
  CAIRN_TRY(plan->check_operators());
  plan->options_.progress = nullptr;
  return std::shared_ptr<const Plan>(std::move(plan));
}

Status Plan::bind() {
  const ModelDescription& model = *description_;
  std::vector<StateSlot> slots;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (options_.progress && !options_.progress(i, model.layers.size())) {
      return Status::error(CAIRN_STATUS_CANCELLED, "model load was cancelled at layer %zu of %zu", i, model.layers.size());
    }
    const LayerConfig& config = model.layers[i];
    const LayerBuild build{static_cast<std::int32_t>(i), model, config, *weights_, slots};
    auto block = Block::bind(build);
    if (!block.ok()) return block.status().with_context("layer " + std::to_string(i));
    blocks_.push_back(std::move(block).value());
    if (config.routing.kind != Routing::kCler) continue;
    const std::int32_t width = value_width(config);
    if (bus_width_ != 0 && width != bus_width_) {
      return Status::format_error("layer %zu: cler routes rows of %d values, the layer below routes %d", i, width, bus_width_);
    }
    bus_width_ = width;
  }
  CAIRN_TRY_ASSIGN(embedding_, weights_->table("embed.weight"));
  CAIRN_TRY_ASSIGN(final_norm_, weights_->vector("final_norm.weight", model.norm_zero_centered ? 1.0F : 0.0F));
  CAIRN_TRY_ASSIGN(head_, weights_->linear(model.tied_embedding ? "embed" : "head"));
  for (const TensorEntry& tensor : model.tensors) {
    std::uint64_t count = 1;
    for (std::int64_t dim : tensor.shape) count *= static_cast<std::uint64_t>(dim);
    parameter_count_ += count;
  }
  for (StateSlot& slot : slots) {
    if (slot.kind == SlotKind::kSlotTable) slot.row_dtype = options_.sdm_rows;
  }
  CAIRN_TRY_ASSIGN(StateLayout layout, StateLayout::plan(std::move(slots), model.fingerprint, model.name, model.vocab_size,
                                                         static_cast<std::int32_t>(model.layers.size())));
  layout_ = std::make_shared<const StateLayout>(std::move(layout));
  return {};
}

Status Plan::check_operators() const {
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    CAIRN_TRY(measure(1, 1, phase, {}, 1).status());
  }
  SparsePrefill sparse;
  sparse.enabled = true;
  return measure(1, 1, Phase::kPrefill, sparse, 1).status();
}

Result<StepMemory> Plan::measure(std::int32_t token_count, std::int32_t sequence_count, Phase phase,
                                 const SparsePrefill& sparse, std::int32_t logits_rows) const {
  // One long sequence and empty ones: operators size their scratch by the counts.
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(sequence_count) + 1, token_count);
  offsets[0] = 0;
  if (phase == Phase::kDecode) {
    for (std::int32_t b = 0; b <= sequence_count; ++b) offsets[b] = b;
  }
  const std::vector<std::int64_t> starts(static_cast<std::size_t>(sequence_count), 0);
  Step step(device_->ops(), options_.activations);
  step.phase = phase;
  step.batch = {sequence_count, token_count, offsets.data(), offsets.data()};
  step.starts = step.starts_host = starts.data();
  step.sparse = sparse;
  const std::size_t slot_count = layout_->slots().size();
  const auto nowhere = [](auto*& pointer) {  // not null, never followed: see step.h
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(Step::kNowhere);
  };
  step.states.dense.resize(slot_count);
  step.states.caches.resize(slot_count);
  step.states.tables.resize(slot_count);
  for (std::size_t i = 0; i < slot_count; ++i) {
    nowhere(step.states.dense[i]);
    nowhere(step.states.caches[i]);
    nowhere(step.states.tables[i]);
  }
  step.states.rows_per_slab.assign(slot_count, 1);
  step.states.row_dtypes.assign(slot_count, options_.sdm_rows);
  step.start_planning();
  forward(step, nullptr, nullptr, logits_rows, nullptr);
  CAIRN_TRY(step.plan_status());
  return StepMemory{step.activation_bytes(), step.scratch_bytes()};
}

}  // namespace cairn
