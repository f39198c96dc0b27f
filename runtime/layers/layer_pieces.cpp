// The pieces that layers share, each one operator or a fixed few of them.
#include "runtime/layers/layer.h"

namespace cairn {

std::int32_t LayerBuild::add_slot(const char* part, SlotKind kind, std::vector<std::int64_t> shape) const {
  StateSlot slot;
  slot.name = name(part);
  slot.layer = index;
  slot.kind = kind;
  slot.shape = std::move(shape);
  slots.push_back(std::move(slot));
  return static_cast<std::int32_t>(slots.size()) - 1;
}

namespace {

LinearArgs linear_args(const Step& step, const LinearWeight& weight, ConstRows in, Rows out, bool accumulate) {
  LinearArgs args{};
  args.dtype = args.out_dtype = step.dtype();
  args.phase = step.phase;
  args.accumulate = accumulate;
  args.token_count = step.token_count();
  args.weight = &weight;
  args.in = in;
  args.out = out;
  return args;
}

}  // namespace

void run_linear(Step& step, const LinearWeight& weight, ConstRows in, Rows out, bool accumulate) {
  step.run(step.ops().linear, linear_args(step, weight, in, out, accumulate), "linear");
}

void run_linear_f32(Step& step, const LinearWeight& weight, ConstRows in, float* out) {
  LinearArgs args{};
  args.dtype = step.dtype();
  args.out_dtype = DType::kF32;
  args.phase = step.phase;
  args.token_count = step.token_count();
  args.weight = &weight;
  args.in = in;
  args.out = {out, weight.out_dim};
  step.run(step.ops().linear, args, "linear");
}

void run_group(Step& step, const LinearGroup& group, ConstRows in, Rows out) {
  for (const LinearGroup::Part& part : group.parts) {
    run_linear(step, *part.weight, in, columns(out, part.offset, step.dtype()));
  }
}

void run_swiglu_group(Step& step, const LinearGroup& group, ConstRows in, Rows both) {
  if (group.parts.size() == 1) {
    const LinearArgs fused = linear_args(step, *group.parts[0].weight, in, both, false);
    if (step.run_if_fused(step.ops().linear_swiglu, fused, "linear_swiglu")) return;
  }
  run_group(step, group, in, both);
  const auto half = static_cast<std::int32_t>(group.width / 2);
  SwigluArgs args{step.dtype(), step.token_count(), half, both, columns(both, half, step.dtype()), both};
  step.run(step.ops().swiglu, args, "swiglu");
}

void run_rms_norm(Step& step, const float* weight, float eps, std::int32_t heads, std::int32_t dim, ConstRows in, Rows out) {
  RmsNormArgs args{step.dtype(), step.token_count(), heads, dim, eps, weight, in, out};
  step.run(step.ops().rms_norm, args, "rms_norm");
}

void run_feature_map(Step& step, FeatureMap map, std::int32_t heads, std::int32_t dim, ConstRows in, Rows out) {
  FeatureMapArgs args{step.dtype(), step.dtype(), map, step.token_count(), heads, dim, 1, 1, in, out};
  step.run(step.ops().feature_map, args, "feature_map");
}

void run_sigmoid_f32(Step& step, std::int32_t count, float scale, ConstRows in, float* out) {
  FeatureMapArgs args{step.dtype(), DType::kF32, FeatureMap::kSigmoid, step.token_count(), 1, count, 1, scale, in, {out, count}};
  step.run(step.ops().feature_map, args, "feature_map");
}

// ---------------------------------------------------------------- GatedOutput

Result<GatedOutput> GatedOutput::bind(const LayerBuild& build, std::int32_t heads, std::int32_t dim, std::int32_t gate_rank) {
  GatedOutput output;
  output.heads_ = heads;
  output.dim_ = dim;
  output.norm_ = build.config.output.norm;
  output.gate_kind_ = build.config.output.gate;
  output.eps_ = build.config.output.eps;
  CAIRN_TRY_ASSIGN(output.norm_weight_, build.weights.vector(build.mixer("norm.weight")));
  if (output.norm_ == NormKind::kLayerNorm) {
    CAIRN_TRY_ASSIGN(output.norm_bias_, build.weights.vector(build.mixer("norm.bias")));
  }
  if (output.has_gate() && gate_rank > 0) {
    CAIRN_TRY_ASSIGN(output.gate_down_, build.weights.linear(build.mixer("z_down")));
    CAIRN_TRY_ASSIGN(output.gate_up_, build.weights.linear(build.mixer("z_up")));
  }
  CAIRN_TRY_ASSIGN(output.out_, build.weights.linear(build.mixer("o")));
  return output;
}

ConstRows GatedOutput::gate(Step& step, ConstRows x, ConstRows full_gate) const {
  if (!gate_down_) return full_gate;
  const Rows narrow = step.rows(gate_down_->out_dim);
  run_linear(step, *gate_down_, x, narrow);
  const Rows gate = step.rows(gate_up_->out_dim);
  run_linear(step, *gate_up_, narrow, gate);
  return gate;
}

GatedRmsNormArgs GatedOutput::norm_args(Step& step, Rows o, ConstRows gate) const {
  return {step.dtype(), norm_, gate_kind_, step.token_count(), heads_, dim_, eps_,
          norm_weight_, norm_bias_, o, gate, o};
}

void GatedOutput::project(Step& step, Rows normalised, const MixerOutput& output) const {
  run_linear(step, *out_, normalised, output.out, output.accumulate);
}

void GatedOutput::run(Step& step, Rows o, ConstRows gate, const MixerOutput& output) const {
  step.run(step.ops().gated_rms_norm, norm_args(step, o, gate), "gated_rms_norm");
  project(step, o, output);
}

}  // namespace cairn
