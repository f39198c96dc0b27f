// delta_step on sm_90: gdn_step, one kernel. Takes bf16, K = V = 128, 4 taps, HV / HK <= 4, rms norm. On other chips,
// where rows are not aligned, and for larger batches the parts are run, whose bits it has.
#include <algorithm>

#include "backends/cuda/cuda_overrides.h"
#include "backends/cuda/gdn_step_sm90.cuh"
#include "backends/gpu/gpu_launch.h"

namespace cairn::gpu {
namespace {

using namespace sm90;

// Of the states of a step. Above, their traffic is all that counts, and the parts are faster.
constexpr std::size_t kMostBytes = std::size_t{32} << 20;

/// The operators that delta_step stands for.
struct Parts {
  Op<DeltaInputsArgs> inputs;
  Op<DeltaRuleArgs> rule;
  Op<GatedRmsNormArgs> norm;
} parts;

bool takes_shape(const DeltaStepArgs& a) {
  const DeltaRuleArgs& rule = a.rule;
  const std::int32_t key_heads = rule.key_heads, value_heads = rule.value_heads;
  const bool takes_rule = rule.dtype == DType::kBF16 && rule.phase == Phase::kDecode && rule.key_dim == kDim &&
                          rule.value_dim == kDim && key_heads > 0 && value_heads % key_heads == 0 &&
                          value_heads / key_heads <= kStepMostHeads && !rule.residual.data &&
                          rule.checkpoint_chunks == 0;
  const bool takes_inputs = a.inputs.conv.dtype == DType::kBF16 && a.inputs.decay.dtype == DType::kBF16 &&
                            a.inputs.beta.dtype == DType::kBF16 && a.inputs.key_heads == key_heads &&
                            a.inputs.key_dim == kDim &&
                            a.inputs.conv.channel_count == (2 * key_heads + value_heads) * kDim &&
                            a.inputs.decay.head_count == value_heads && a.inputs.beta.dim == value_heads;
  const bool takes_norm = a.norm.dtype == DType::kBF16 && a.norm.norm == NormKind::kRms &&
                          a.norm.head_count == value_heads && a.norm.dim == kDim && a.norm.gate.stride % 8 == 0 &&
                          a.norm.out.stride % 8 == 0;
  return takes_rule && takes_inputs && takes_norm;
}

const char* unsupported_reason(const DeltaStepArgs& a) {
  if (!takes_shape(a)) return kNoFusedForm;
  return first_reason({parts.inputs.unsupported_reason(a.inputs), parts.rule.unsupported_reason(a.rule),
                       parts.norm.unsupported_reason(a.norm)});
}

std::size_t scratch_bytes(const DeltaStepArgs& a) {
  return std::max(
      {parts.inputs.scratch_bytes(a.inputs), parts.rule.scratch_bytes(a.rule), parts.norm.scratch_bytes(a.norm)});
}

bool takes_pointers(const DeltaStepArgs& a) {
  const bool has_gate = a.norm.gate_kind != GateKind::kNone;
  return is_in_eights(a.inputs.conv.in) && is_in_eights(a.inputs.conv.weight, 0) &&
         (!has_gate || is_in_eights(a.norm.gate)) && is_in_eights(a.norm.weight, 0) && is_in_eights(a.norm.out);
}

std::size_t states_bytes(const DeltaStepArgs& a) {
  return sizeof(float) * kDim * kDim * a.rule.value_heads * a.rule.batch.sequence_count;
}

const unsigned short* halves(const ConstRows& rows) { return static_cast<const unsigned short*>(rows.data); }

GdnStepArgs kernel_args_of(const DeltaStepArgs& a) {
  const ShortConvArgs& conv = a.inputs.conv;
  const DecayGateArgs& decay = a.inputs.decay;
  const FeatureMapArgs& beta = a.inputs.beta;
  GdnStepArgs args = {};
  args.x = halves(conv.in), args.x_stride = conv.in.stride;
  args.decay_in = halves(decay.in), args.decay_stride = decay.in.stride;
  args.beta_in = halves(beta.in), args.beta_stride = beta.in.stride;
  args.gate = halves(a.norm.gate), args.gate_stride = a.norm.gate.stride;
  args.out = static_cast<unsigned short*>(a.norm.out.data), args.out_stride = a.norm.out.stride;
  args.tails = conv.tails, args.states = a.rule.states;
  args.conv_weight = conv.weight, args.conv_bias = conv.bias;
  args.a_log = decay.a_log, args.dt_bias = decay.bias;
  args.norm_weight = a.norm.weight, args.norm_bias = a.norm.bias;
  args.key_heads = a.rule.key_heads, args.channels = conv.channel_count;
  args.scale = a.rule.scale, args.eps = a.norm.eps;
  args.decay_parameter = decay.parameter, args.decay_kind = decay.kind;
  args.beta_scale = beta.scale, args.beta_out_scale = beta.out_scale, args.beta_map = beta.map;
  args.gate_kind = a.norm.gate_kind;
  return args;
}

void run(BackendQueue* queue, const DeltaStepArgs& a, void* scratch) {
  if (queue_of(queue).device->properties.major != 9 || !takes_pointers(a) || states_bytes(a) > kMostBytes) {
    parts.inputs.run(queue, a.inputs, scratch);
    parts.rule.run(queue, a.rule, scratch);
    parts.norm.run(queue, a.norm, scratch);
    return;
  }
  const auto cluster = static_cast<unsigned>(a.rule.value_heads / a.rule.key_heads * kHeadBlocks);
  const dim3 grid(cluster, static_cast<unsigned>(a.rule.key_heads), static_cast<unsigned>(a.rule.batch.sequence_count));
  Launcher(queue, "delta_step").early(gdn_step_kernel, grid, dim3(kStepThreads), 0, kernel_args_of(a), cluster);
}

}  // namespace

void override_delta_step_for_sm90(OpTable& ops) {
  parts = {ops.delta_inputs, ops.gdn, ops.gated_rms_norm};
  ops.delta_step = {unsupported_reason, scratch_bytes, run};
}

}  // namespace cairn::gpu
