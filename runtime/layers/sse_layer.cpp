// Sparse state expansion: routed partitions plus a shared one (spec 4, 8).
#include "runtime/layers/layer.h"

namespace cairn {
namespace {

/// Decay (and beta) of the routed partitions, or of the shared one where it has its own.
struct SseGates {
  const LinearWeight *down = nullptr, *up = nullptr, *full = nullptr, *beta = nullptr;
  const float *a_log = nullptr, *bias = nullptr;
};

class SseLayer : public Mixer {
 public:
  Status bind(const LayerBuild& build);
  void run(Step& step, ConstRows x, const MixerOutput& output) override;

 private:
  Result<SseGates> bind_gates(const LayerBuild& build, const std::string& prefix) const;
  const float* run_decay(Step& step, const SseGates& gates, ConstRows x) const;
  const float* run_beta(Step& step, const SseGates& gates, ConstRows x) const;
  Rows adapted(Step& step, const LinearWeight* down, const LinearWeight* up, ConstRows x, ConstRows base) const;
  Rows convolved(Step& step, std::int32_t slot, const float* weight, ConstRows in) const;
  ConstRows query(Step& step, ConstRows raw) const;
  ConstRows key(Step& step, ConstRows raw) const;

  SseConfig config_;
  GatedOutput output_;
  CrossLayerRouting routing_;
  LinearGroup group_;  // q, k, v, and the gate when it is full
  const LinearWeight *router_ = nullptr, *q_down_ = nullptr, *q_up_ = nullptr, *k_down_ = nullptr, *k_up_ = nullptr;
  const float *conv_q_ = nullptr, *conv_k_ = nullptr;
  SseGates gates_, shared_gates_;
  std::int32_t state_slot_ = -1, shared_slot_ = -1, conv_q_slot_ = -1, conv_k_slot_ = -1;
};

Status SseLayer::bind(const LayerBuild& build) {
  config_ = build.config.sse;
  Weights& weights = build.weights;
  CAIRN_TRY_ASSIGN(output_, GatedOutput::bind(build, config_.heads, config_.value_dim, config_.gate_rank));
  CAIRN_TRY_ASSIGN(routing_, CrossLayerRouting::bind(build, config_.heads, config_.value_dim));
  std::vector<std::string> names = {build.mixer("q"), build.mixer("k"), build.mixer("v")};
  if (output_.has_full_gate()) names.push_back(build.mixer("z"));
  CAIRN_TRY_ASSIGN(group_, weights.linear_group(names));
  CAIRN_TRY_ASSIGN(router_, weights.linear(build.mixer("e")));
  if (config_.adapter_rank > 0) {
    CAIRN_TRY_ASSIGN(q_down_, weights.linear(build.mixer("q_down")));
    CAIRN_TRY_ASSIGN(q_up_, weights.linear(build.mixer("q_up")));
    CAIRN_TRY_ASSIGN(k_down_, weights.linear(build.mixer("k_down")));
    CAIRN_TRY_ASSIGN(k_up_, weights.linear(build.mixer("k_up")));
  }
  CAIRN_TRY_ASSIGN(gates_, bind_gates(build, ""));
  const std::int64_t heads = config_.heads, key_dim = config_.key_dim, value_dim = config_.value_dim;
  state_slot_ = build.add_slot("state", SlotKind::kRecurrent, {config_.partitions, heads, key_dim, value_dim});
  if (!config_.has_shared) return {};
  shared_slot_ = build.add_slot("shared_state", SlotKind::kRecurrent, {heads, key_dim, value_dim});
  if (config_.separate_shared_gates) {
    CAIRN_TRY_ASSIGN(shared_gates_, bind_gates(build, "shared_"));
  }
  if (config_.shared_conv_kernel > 0) {
    CAIRN_TRY_ASSIGN(conv_q_, weights.vector(build.mixer("conv_q.weight")));
    CAIRN_TRY_ASSIGN(conv_k_, weights.vector(build.mixer("conv_k.weight")));
    conv_q_slot_ = build.add_slot("conv_q", SlotKind::kConvTail, {config_.shared_conv_kernel - 1, heads * key_dim});
    conv_k_slot_ = build.add_slot("conv_k", SlotKind::kConvTail, {config_.shared_conv_kernel - 1, heads * key_dim});
  }
  return {};
}

Result<SseGates> SseLayer::bind_gates(const LayerBuild& build, const std::string& prefix) const {
  Weights& weights = build.weights;
  const auto name = [&](const char* part) { return build.mixer((prefix + part).c_str()); };
  SseGates gates;
  if (config_.transition == SseTransition::kGdn) {
    CAIRN_TRY_ASSIGN(gates.full, weights.linear(name("a")));
    CAIRN_TRY_ASSIGN(gates.a_log, weights.vector(name("a_log")));
    CAIRN_TRY_ASSIGN(gates.bias, weights.vector(name("dt_bias")));
  } else {
    if (config_.decay_rank > 0) {
      CAIRN_TRY_ASSIGN(gates.down, weights.linear(name("a_down")));
      CAIRN_TRY_ASSIGN(gates.up, weights.linear(name("a_up")));
    } else {
      CAIRN_TRY_ASSIGN(gates.full, weights.linear(name("a")));
    }
    CAIRN_TRY_ASSIGN(gates.bias, weights.vector(name("a_bias")));
  }
  if (config_.transition != SseTransition::kGla) {
    CAIRN_TRY_ASSIGN(gates.beta, weights.linear(name("b")));
  }
  return gates;
}

const float* SseLayer::run_decay(Step& step, const SseGates& gates, ConstRows x) const {
  const LinearWeight& last = gates.up ? *gates.up : *gates.full;
  const Rows raw = step.rows(last.out_dim);
  if (gates.down) {
    const Rows narrow = step.rows(gates.down->out_dim);
    run_linear(step, *gates.down, x, narrow);
    run_linear(step, *gates.up, narrow, raw);
  } else {
    run_linear(step, *gates.full, x, raw);
  }
  const bool is_gdn = config_.transition == SseTransition::kGdn;
  float* log_decay = step.floats(static_cast<std::int64_t>(step.token_count()) * last.out_dim);
  DecayGateArgs args{step.dtype(), is_gdn ? DecayKind::kSoftplus : DecayKind::kLogSigmoid, config_.decay_root,
                     step.token_count(), config_.heads, is_gdn ? 1 : config_.key_dim, gates.a_log, gates.bias, raw, log_decay};
  step.run(step.ops().decay_gate, args, "decay_gate");
  return log_decay;
}

const float* SseLayer::run_beta(Step& step, const SseGates& gates, ConstRows x) const {
  if (!gates.beta) return nullptr;
  const Rows raw = step.rows(config_.heads);
  run_linear(step, *gates.beta, x, raw);
  float* beta = step.floats(static_cast<std::int64_t>(step.token_count()) * config_.heads);
  run_sigmoid_f32(step, config_.heads, 1, raw, beta);
  return beta;
}

/// base + up(down(x)).
Rows SseLayer::adapted(Step& step, const LinearWeight* down, const LinearWeight* up, ConstRows x, ConstRows base) const {
  const Rows narrow = step.rows(down->out_dim);
  run_linear(step, *down, x, narrow);
  const Rows sum = step.rows(up->out_dim);
  run_linear(step, *up, narrow, sum);
  AddArgs args{step.dtype(), step.token_count(), up->out_dim, nullptr, sum, base, sum};
  step.run(step.ops().add, args, "add");
  return sum;
}

Rows SseLayer::convolved(Step& step, std::int32_t slot, const float* weight, ConstRows in) const {
  const std::int32_t channels = config_.heads * config_.key_dim;
  const Rows out = step.rows(channels);
  ShortConvArgs args{step.dtype(), GateKind::kNone, step.batch, channels, config_.shared_conv_kernel, weight, nullptr,
                     in, step.states.dense[slot], out};
  step.run(step.ops().short_conv, args, "short_conv");
  return out;
}

ConstRows SseLayer::query(Step& step, ConstRows raw) const {
  const std::int32_t width = config_.heads * config_.key_dim;
  ConstRows q = raw;
  const auto map = [&](FeatureMap kind, std::int32_t heads, std::int32_t dim) {
    const Rows out = step.rows(width);
    run_feature_map(step, kind, heads, dim, q, out);
    q = out;
  };
  if (config_.query_softmax) {
    map(FeatureMap::kSoftmax, config_.heads, config_.key_dim);
  } else if (config_.qv_activation == QkActivation::kSilu) {
    map(FeatureMap::kSilu, 1, width);
  } else if (config_.qv_activation == QkActivation::kRelu) {
    map(FeatureMap::kRelu, 1, width);
  }
  if (config_.l2_after_gate) map(FeatureMap::kL2, config_.heads, config_.key_dim);
  return q;
}

ConstRows SseLayer::key(Step& step, ConstRows raw) const {
  const Rows k = step.rows(static_cast<std::int64_t>(config_.heads) * config_.key_dim);
  if (config_.key_softmax) {
    run_feature_map(step, FeatureMap::kSoftmax, config_.heads, config_.key_dim, raw, k);
  } else {
    const bool is_relu = config_.qv_activation == QkActivation::kRelu;
    run_feature_map(step, is_relu ? FeatureMap::kRelu : FeatureMap::kSilu, config_.heads, config_.key_dim, raw, k);
    run_feature_map(step, FeatureMap::kL2, config_.heads, config_.key_dim, k, k);
  }
  return k;
}

void SseLayer::run(Step& step, ConstRows x, const MixerOutput& output) {
  const Step::Scope scope(step);
  const std::int32_t value_width = config_.heads * config_.value_dim;
  const Rows projected = step.rows(group_.width);
  run_group(step, group_, x, projected);
  const auto column = [&](int i) { return columns(projected, group_.offsets[i], step.dtype()); };
  float* logits = step.floats(static_cast<std::int64_t>(step.token_count()) * config_.partitions);
  run_linear_f32(step, *router_, x, logits);

  Rows v = column(2);
  if (config_.qv_activation == QkActivation::kSilu) run_feature_map(step, FeatureMap::kSilu, 1, value_width, v, v);
  if (config_.qv_activation == QkActivation::kRelu) run_feature_map(step, FeatureMap::kRelu, 1, value_width, v, v);
  const ConstRows q_plain = column(0), k_plain = column(1);
  ConstRows q_adapted = q_plain, k_adapted = k_plain;
  if (config_.adapter_rank > 0) {
    q_adapted = adapted(step, q_down_, q_up_, x, q_plain);
    k_adapted = adapted(step, k_down_, k_up_, x, k_plain);
  }
  SseArgs args{};
  args.dtype = step.dtype();
  args.phase = step.phase;
  args.transition = config_.transition;
  args.gate_write = config_.gate_write && !config_.l2_after_gate;  // l2 of e k is l2 of k: e cancels
  args.gate_read = config_.gate_read && !config_.l2_after_gate;
  args.batch = step.batch;
  args.head_count = config_.heads;
  args.key_dim = config_.key_dim;
  args.value_dim = config_.value_dim;
  args.partition_count = config_.partitions;
  args.top_k = config_.top_k;
  args.route_logits = logits;
  args.q = query(step, config_.adapt_routed ? q_adapted : q_plain);
  args.k = key(step, config_.adapt_routed ? k_adapted : k_plain);
  args.v = v;
  args.log_decay = run_decay(step, gates_, x);
  args.beta = run_beta(step, gates_, x);
  args.states = step.states.dense[state_slot_];
  if (config_.has_shared) {
    ConstRows q_shared = config_.adapt_routed ? q_plain : q_adapted, k_shared = config_.adapt_routed ? k_plain : k_adapted;
    if (config_.shared_conv_kernel > 0) {
      q_shared = convolved(step, conv_q_slot_, conv_q_, q_shared);
      k_shared = convolved(step, conv_k_slot_, conv_k_, k_shared);
    }
    args.shared_q = query(step, q_shared);
    args.shared_k = key(step, k_shared);
    args.shared_states = step.states.dense[shared_slot_];
    if (config_.separate_shared_gates) {
      args.shared_log_decay = run_decay(step, shared_gates_, x);
      args.shared_beta = run_beta(step, shared_gates_, x);
    }
  }
  const Rows o = step.rows(value_width);
  args.out = o;
  step.run(step.ops().sse, args, "sse");

  const ConstRows full_gate = output_.has_full_gate() ? ConstRows(column(3)) : ConstRows();
  output_.run(step, o, output_.gate(step, x, full_gate), output);
  routing_.finish(step, v, {}, nullptr, output);
}

}  // namespace

Result<std::unique_ptr<Mixer>> make_sse(const LayerBuild& build) {
  auto layer = std::make_unique<SseLayer>();
  CAIRN_TRY(layer->bind(build));
  return std::unique_ptr<Mixer>(std::move(layer));
}

}  // namespace cairn
