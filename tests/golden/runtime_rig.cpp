#include "tests/golden/runtime_rig.h"

#include <algorithm>

namespace cairn::test {
namespace {

/// Where the watched sparse_gdn puts what it saw: function pointers carry no context.
struct Watch {
  const OpTable* ops = nullptr;
  Queue* queue = nullptr;
  const Device* device = nullptr;
  std::vector<SparseChoice>* choices = nullptr;
};
thread_local Watch watch;

template <class T>
std::vector<T> fetch(const DeviceBuffer& buffer) {
  std::vector<T> host(buffer.size_bytes() / sizeof(T));
  if (!watch.queue->copy(host.data(), buffer.data(), buffer.size_bytes(), CopyKind::kDeviceToHost).ok() ||
      !watch.queue->synchronize().ok())
    host.clear();
  return host;
}

void watched_sparse_gdn(BackendQueue* queue, const SparseGdnArgs& args, void* scratch) {
  const std::size_t C = (args.delta.batch.token_count + 63) / 64, n = args.delta.key_heads, HV = args.delta.value_heads;
  auto mask = watch.device->allocate(n * C), tier = watch.device->allocate(n * sizeof(std::int32_t)),
       scores = watch.device->allocate(C * HV * sizeof(float));
  if (args.delta.batch.sequence_count != 1 || !mask.ok() || !tier.ok() || !scores.ok())
    return watch.ops->sparse_gdn.run(queue, args, scratch);
  SparseGdnTrace trace{};
  trace.mask = mask.value().as<std::uint8_t>();
  trace.tier = tier.value().as<std::int32_t>();
  trace.scores = scores.value().as<float>();
  SparseGdnArgs traced = args;
  traced.trace = &trace;
  watch.ops->sparse_gdn.run(queue, traced, scratch);
  watch.choices->push_back(
      {fetch<std::uint8_t>(mask.value()), fetch<std::int32_t>(tier.value()), fetch<float>(scores.value())});
}

}  // namespace

Result<std::unique_ptr<RuntimeRig>> RuntimeRig::create(std::shared_ptr<const ModelDescription> description,
                                                       const std::string& backend, std::int64_t capacity_tokens) {
  std::unique_ptr<RuntimeRig> rig(new RuntimeRig());
  CAIRN_TRY_ASSIGN(rig->device_, Device::open(backend, {}));
  CAIRN_TRY_ASSIGN(rig->plan_, Plan::build(std::move(description), rig->device_, {}));
  CAIRN_TRY_ASSIGN(rig->queue_, Queue::create(rig->device_));
  StateOptions options;
  options.kv_capacity_tokens = capacity_tokens;
  CAIRN_TRY_ASSIGN(rig->state_, State::create(rig->plan_->state_layout(), rig->device_, options));
  rig->inputs_ = std::make_unique<StepInputs>(rig->plan_);
  rig->watched_ops_ = rig->device_->ops();
  rig->watched_ops_.sparse_gdn.run = watched_sparse_gdn;
  return rig;
}

Status RuntimeRig::read(std::int32_t count, Phase phase, const SparsePrefill& sparse,
                        const std::function<void(Step&)>& body) {
  const std::vector<std::int32_t> tokens(count, 0);
  const StepPart part{state_.get(), tokens.data(), count, 0};
  SparsePrefill mode = sparse;
  mode.enabled = sparse.enabled && phase == Phase::kPrefill && (count + 63) / 64 >= sparse.min_chunks;
  CAIRN_TRY(state_->reserve(*queue_, count));
  CAIRN_TRY(inputs_->reserve(count, 1, 1));
  CAIRN_TRY_ASSIGN(const StepMemory memory, plan_->measure(count, 1, phase, mode, 0));
  CAIRN_TRY_ASSIGN(const DeviceBuffer activations,
                   device_->allocate(std::max<std::size_t>(memory.activation_bytes, 256)));
  CAIRN_TRY_ASSIGN(const DeviceBuffer scratch, device_->allocate(std::max<std::size_t>(memory.scratch_bytes, 256)));
  Step step(watched_ops_, plan_->activations());
  step.phase = phase;
  step.sparse = mode;
  CAIRN_TRY(inputs_->fill(*queue_, {&part, 1}, step));
  choices_.clear();
  watch = {&device_->ops(), queue_.get(), device_.get(), &choices_};
  step.start_running(queue_->handle(), activations.data(), scratch.data());
  body(step);
  CAIRN_TRY(queue_->synchronize());
  return state_->advance(*queue_, {state_->position(), count, phase, mode.enabled}, tokens.data());
}

Result<DeviceBuffer> RuntimeRig::upload(const std::vector<float>& values) {
  CAIRN_TRY_ASSIGN(DeviceBuffer buffer, device_->allocate(std::max<std::size_t>(values.size() * sizeof(float), 256)));
  CAIRN_TRY(queue_->copy(buffer.data(), values.data(), values.size() * sizeof(float), CopyKind::kHostToDevice));
  CAIRN_TRY(queue_->synchronize());
  return buffer;
}

Result<std::vector<float>> RuntimeRig::download(const void* memory, std::size_t count) {
  std::vector<float> host(count);
  CAIRN_TRY(queue_->copy(host.data(), memory, count * sizeof(float), CopyKind::kDeviceToHost));
  CAIRN_TRY(queue_->synchronize());
  return host;
}

}  // namespace cairn::test
