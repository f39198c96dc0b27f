#include "runtime/layers/delta_rule_layer.h"

#include <cmath>

namespace cairn {
namespace {

FeatureMap feature_map_of(QkActivation activation) {
  switch (activation) {
    case QkActivation::kRelu: return FeatureMap::kRelu;
    case QkActivation::kEluPlusOne: return FeatureMap::kEluPlusOne;
    default: return FeatureMap::kSilu;
  }
}

}  // namespace

Status DeltaRuleLayer::bind_shared(const LayerBuild& build, std::vector<std::string> extra) {
  config_ = build.config.delta;
  qk_channels_ = 2 * config_.key_heads * config_.key_dim;
  v_channels_ = config_.value_heads * config_.value_dim;
  CAIRN_TRY_ASSIGN(output_, GatedOutput::bind(build, config_.value_heads, config_.value_dim, config_.gate_rank));
  CAIRN_TRY_ASSIGN(routing_, CrossLayerRouting::bind(build, config_.value_heads, config_.value_dim));

  std::vector<std::string> names = {build.mixer("q"), build.mixer("k"), build.mixer("v")};
  if (output_.has_full_gate()) names.push_back(build.mixer("z"));
  first_extra_ = names.size();
  for (const std::string& name : extra) names.push_back(build.mixer(name.c_str()));
  CAIRN_TRY_ASSIGN(group_, build.weights.linear_group(names));

  state_slot_ = build.add_slot("state", SlotKind::kRecurrent, {config_.value_heads, config_.key_dim, config_.value_dim});
  const std::int32_t n = config_.conv_kernel;
  if (n == 0) return {};
  joint_convolution_ = config_.qk_activation == QkActivation::kSilu;
  std::vector<std::string> weights = {build.mixer("conv_q.weight"), build.mixer("conv_k.weight")};
  std::vector<std::string> biases = {build.mixer("conv_q.bias"), build.mixer("conv_k.bias")};
  const std::vector<std::string> v_weight = {build.mixer("conv_v.weight")}, v_bias = {build.mixer("conv_v.bias")};
  if (joint_convolution_) {
    weights.push_back(v_weight[0]);
    biases.push_back(v_bias[0]);
    conv_slot_ = build.add_slot("conv", SlotKind::kConvTail, {n - 1, qk_channels_ + v_channels_});
  } else {
    conv_slot_ = build.add_slot("conv_qk", SlotKind::kConvTail, {n - 1, qk_channels_});
    conv_v_slot_ = build.add_slot("conv_v", SlotKind::kConvTail, {n - 1, v_channels_});
    CAIRN_TRY_ASSIGN(conv_v_, build.weights.joined_vector(v_weight));
    if (config_.conv_bias) {
      CAIRN_TRY_ASSIGN(conv_v_bias_, build.weights.joined_vector(v_bias));
    }
  }
  CAIRN_TRY_ASSIGN(conv_, build.weights.joined_vector(weights));
  if (config_.conv_bias) {
    CAIRN_TRY_ASSIGN(conv_bias_, build.weights.joined_vector(biases));
  }
  return {};
}

ShortConvArgs DeltaRuleLayer::convolution(Step& step, Rows in, Rows out, std::int32_t slot, const float* weight,
                                          const float* bias, GateKind activation, std::int32_t channels) const {
  return {step.dtype(), activation, step.batch, channels, config_.conv_kernel, weight, bias, in, step.states.dense[slot], out};
}

DeltaInputs DeltaRuleLayer::project(Step& step, ConstRows x) const {
  DeltaInputs inputs;
  inputs.projected = step.rows(group_.width);
  run_group(step, group_, x, inputs.projected);
  inputs.qkv = step.rows(qk_channels_ + v_channels_);
  inputs.q = inputs.qkv;
  inputs.k = columns(inputs.qkv, qk_channels_ / 2, step.dtype());
  inputs.v = columns(inputs.qkv, qk_channels_, step.dtype());
  const ConstRows full_gate =
      output_.has_full_gate() ? ConstRows(columns(inputs.projected, group_.offsets[3], step.dtype())) : ConstRows();
  inputs.gate = output_.gate(step, x, full_gate);
  return inputs;
}

/// Convolution, norm and gates as one operator, in decode; false: the mechanism has no such form.
bool DeltaRuleLayer::describe_fused_inputs(Step& step, DeltaInputs& inputs, DeltaInputsArgs& args) const {
  if (step.phase != Phase::kDecode || config_.conv_kernel == 0 || !joint_convolution_ || config_.qk_norm != QkNorm::kL2) return false;
  args.conv = convolution(step, inputs.projected, inputs.qkv, conv_slot_, conv_, conv_bias_, GateKind::kSilu,
                          qk_channels_ + v_channels_);
  args.key_heads = config_.key_heads;
  args.key_dim = config_.key_dim;
  args.norm = FeatureMap::kL2;
  return describe_gates(step, inputs, args);
}

/// The rule on q, k and v; its gates are still to come.
DeltaRuleArgs DeltaRuleLayer::rule_args(Step& step, const DeltaInputs& inputs, Rows out) const {
  DeltaRuleArgs args{};
  args.dtype = step.dtype();
  args.phase = step.phase;
  args.batch = step.batch;
  args.key_heads = config_.key_heads;
  args.value_heads = config_.value_heads;
  args.key_dim = config_.key_dim;
  args.value_dim = config_.value_dim;
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.key_dim)));
  args.q = inputs.q;
  args.k = inputs.k;
  args.v = inputs.v;
  args.states = step.states.dense[state_slot_];
  args.out = out;
  return args;
}

/// From the projections to the normalised output as one operator; false: nothing was done.
bool DeltaRuleLayer::run_fused_step(Step& step, const DeltaInputs& inputs, const DeltaInputsArgs& fused,
                                    Rows out) const {
  if (routing_.is_wanted() || step.sparse.enabled) return false;
  DeltaStepArgs args{fused, rule_args(step, inputs, out), output_.norm_args(step, out, inputs.gate)};
  args.rule.beta = inputs.beta;
  args.rule.log_decay = inputs.log_decay;
  return step.run_if_fused(step.ops().delta_step, args, "delta_step");
}

/// q | k | v from their projections: convolution, activation, norm.
void DeltaRuleLayer::run_parts(Step& step, Rows raw, Rows qkv) const {
  const auto convolve = [&](const ShortConvArgs& args) { step.run(step.ops().short_conv, args, "short_conv"); };
  const Rows raw_v = columns(raw, qk_channels_, step.dtype()), v = columns(qkv, qk_channels_, step.dtype());
  const FeatureMap activation = feature_map_of(config_.qk_activation);
  const bool has_activation = config_.qk_activation != QkActivation::kIdentity;
  if (config_.conv_kernel > 0 && joint_convolution_) {
    convolve(convolution(step, raw, qkv, conv_slot_, conv_, conv_bias_, GateKind::kSilu, qk_channels_ + v_channels_));
  } else if (config_.conv_kernel > 0) {
    convolve(convolution(step, raw, qkv, conv_slot_, conv_, conv_bias_, GateKind::kNone, qk_channels_));
    convolve(convolution(step, raw_v, v, conv_v_slot_, conv_v_, conv_v_bias_, GateKind::kSilu, v_channels_));
    if (has_activation) run_feature_map(step, activation, 1, qk_channels_, qkv, qkv);
  } else {
    run_feature_map(step, FeatureMap::kSilu, 1, v_channels_, raw_v, v);
    if (has_activation) {
      run_feature_map(step, activation, 1, qk_channels_, raw, qkv);
    } else {
      AddArgs copy{step.dtype(), step.token_count(), qk_channels_, nullptr, {nullptr, 0}, raw, qkv};
      step.run(step.ops().add, copy, "add");
    }
  }
  if (config_.qk_norm == QkNorm::kNone) return;
  const FeatureMap norm = config_.qk_norm == QkNorm::kL2 ? FeatureMap::kL2 : FeatureMap::kSumNorm;
  run_feature_map(step, norm, 2 * config_.key_heads, config_.key_dim, qkv, qkv);
}

FeatureMapArgs DeltaRuleLayer::beta_args(Step& step, const DeltaInputs& inputs, float* beta) const {
  const ConstRows raw = config_.has_beta ? ConstRows(extra(step, inputs, 0)) : ConstRows(inputs.v);
  return {step.dtype(), DType::kF32, FeatureMap::kSigmoid, step.token_count(), 1, config_.value_heads,
          1, config_.beta_scale, raw, {beta, config_.value_heads}};
}

const float* DeltaRuleLayer::run_beta(Step& step, const DeltaInputs& inputs) const {
  float* beta = step.floats(static_cast<std::int64_t>(step.token_count()) * config_.value_heads);
  FeatureMapArgs args = beta_args(step, inputs, beta);
  if (!config_.has_beta) {  // 2 sigmoid(0 x) = 1
    args.scale = 0;
    args.out_scale = 2;
  }
  step.run(step.ops().feature_map, args, "feature_map");
  return beta;
}

void DeltaRuleLayer::run(Step& step, ConstRows x, const MixerOutput& output) {
  const Step::Scope scope(step);
  DeltaInputs inputs = project(step, x);
  const Rows o = step.rows(v_channels_);
  DeltaInputsArgs fused{};
  const bool can_fuse = describe_fused_inputs(step, inputs, fused);
  if (can_fuse && run_fused_step(step, inputs, fused, o)) return output_.project(step, o, output);
  if (!can_fuse || !step.run_if_fused(step.ops().delta_inputs, fused, "delta_inputs")) {
    inputs.beta = inputs.log_decay = nullptr;
    run_parts(step, inputs.projected, inputs.qkv);
  }
  const ConstRows raw_value = inputs.v;
  inputs.v = routing_.apply_to_value(step, inputs.v);
  const Rows residual = routing_.residual_rows(step);

  DeltaRuleArgs args = rule_args(step, inputs, o);
  args.residual = residual;
  add_gates(step, x, inputs, args);
  run_rule(step, inputs, args);

  output_.run(step, o, inputs.gate, output);
  routing_.finish(step, raw_value, residual, args.beta, output);
}

// ---------------------------------------------------------------- DecayGate

Result<DecayGate> DecayGate::bind(const LayerBuild& build, std::int32_t heads, std::int32_t rows) {
  const DeltaRuleConfig& config = build.config.delta;
  DecayGate gate;
  gate.kind_ = config.decay;
  gate.parameter_ = config.decay_lower_bound;
  gate.heads_ = heads;
  gate.rows_ = rows;
  CAIRN_TRY_ASSIGN(gate.a_log_, build.weights.vector(build.mixer("a_log")));
  CAIRN_TRY_ASSIGN(gate.dt_bias_, build.weights.vector(build.mixer("dt_bias")));
  if (!is_projected(config)) {
    CAIRN_TRY_ASSIGN(gate.down_, build.weights.linear(build.mixer("a_down")));
    CAIRN_TRY_ASSIGN(gate.up_, build.weights.linear(build.mixer("a_up")));
  }
  return gate;
}

const float* DecayGate::run(Step& step, ConstRows x, ConstRows projected) const {
  ConstRows in = projected;
  if (down_) {
    const Rows narrow = step.rows(down_->out_dim);
    run_linear(step, *down_, x, narrow);
    const Rows wide = step.rows(up_->out_dim);
    run_linear(step, *up_, narrow, wide);
    in = wide;
  }
  const DecayGateArgs gate = args(step, in);
  step.run(step.ops().decay_gate, gate, "decay_gate");
  return gate.out;
}

DecayGateArgs DecayGate::args(Step& step, ConstRows in) const {
  float* log_decay = step.floats(static_cast<std::int64_t>(step.token_count()) * heads_ * rows_);
  return {step.dtype(), kind_, parameter_, step.token_count(), heads_, rows_, a_log_, dt_bias_, in, log_decay};
}

}  // namespace cairn
