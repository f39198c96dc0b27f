// What DeltaNet, GDN, KDA and GDN2 layers share: projections, short convolution, q/k normalisation, output, routing.
#pragma once

#include "runtime/layers/layer.h"

namespace cairn {

/// The inputs of a delta rule for one step.
struct DeltaInputs {
  Rows projected;        ///< the whole projection group [T, width]
  Rows qkv;              ///< q | k | v [T, 2 HK K + HV V]
  ConstRows q, k, v;     ///< after convolution, activation and normalisation
  ConstRows gate;        ///< output gate pre-activation
  const float *beta = nullptr, *log_decay = nullptr;  ///< [T, HV]: gates that came with q, k and v; null: still to be run
};

class DeltaRuleLayer : public Mixer {
 public:
  void run(Step& step, ConstRows x, const MixerOutput& output) override;

 protected:
  /// extra: names of further projections of x that the mechanism needs, after q, k, v and the full gate.
  Status bind_shared(const LayerBuild& build, std::vector<std::string> extra);
  /// Describes the gates for delta_inputs and sets those of `inputs`, if the rule is gdn with a beta.
  virtual bool describe_gates(Step&, DeltaInputs&, DeltaInputsArgs&) const { return false; }
  /// Fills in the mechanism's gates.
  virtual void add_gates(Step& step, ConstRows x, const DeltaInputs& inputs, DeltaRuleArgs& args) = 0;
  /// Queues the mechanism's operator.
  virtual void run_rule(Step& step, const DeltaInputs& inputs, const DeltaRuleArgs& args) = 0;

  /// Columns of extra projection i.
  ConstRows extra(Step& step, const DeltaInputs& inputs, int i) const {
    return columns(inputs.projected, group_.offsets[first_extra_ + i], step.dtype());
  }
  /// beta [T, HV] = scale * sigmoid(extra 0).
  FeatureMapArgs beta_args(Step& step, const DeltaInputs& inputs, float* beta) const;
  /// The same, queued; 1 for a mechanism without it.
  const float* run_beta(Step& step, const DeltaInputs& inputs) const;

  DeltaRuleConfig config_;
  GatedOutput output_;
  CrossLayerRouting routing_;

 private:
  DeltaInputs project(Step& step, ConstRows x) const;
  bool describe_fused_inputs(Step& step, DeltaInputs& inputs, DeltaInputsArgs& args) const;
  bool run_fused_step(Step& step, const DeltaInputs& inputs, const DeltaInputsArgs& fused, Rows out) const;
  DeltaRuleArgs rule_args(Step& step, const DeltaInputs& inputs, Rows out) const;
  void run_parts(Step& step, Rows raw, Rows qkv) const;
  ShortConvArgs convolution(Step& step, Rows in, Rows out, std::int32_t slot, const float* weight, const float* bias,
                            GateKind activation, std::int32_t channels) const;

  LinearGroup group_;
  std::size_t first_extra_ = 0;
  std::int32_t qk_channels_ = 0, v_channels_ = 0, state_slot_ = -1;
  bool joint_convolution_ = true;  ///< q, k and v pass the same activation: one convolution for all
  std::int32_t conv_slot_ = -1, conv_v_slot_ = -1;
  const float *conv_ = nullptr, *conv_bias_ = nullptr, *conv_v_ = nullptr, *conv_v_bias_ = nullptr;
};

/// Decay of GDN (one per head), KDA and GDN2 (one per key row), as log-decays [T, HV rows] f32.
class DecayGate {
 public:
  /// Of `rows` decays per head; low rank or full as the configuration says.
  static Result<DecayGate> bind(const LayerBuild& build, std::int32_t heads, std::int32_t rows);
  /// Whether "a" must be among the extra projections.
  static bool is_projected(const DeltaRuleConfig& config) { return config.decay_rank == 0; }
  const float* run(Step& step, ConstRows x, ConstRows projected) const;
  /// The operator's arguments, with room for its output.
  DecayGateArgs args(Step& step, ConstRows in) const;

 private:
  DecayKind kind_ = DecayKind::kSoftplus;
  float parameter_ = 0;
  std::int32_t heads_ = 0, rows_ = 1;
  const float *a_log_ = nullptr, *dt_bias_ = nullptr;
  const LinearWeight *down_ = nullptr, *up_ = nullptr;
};

}  // namespace cairn
