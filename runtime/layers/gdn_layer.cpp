// Gated DeltaNet: one decay per head; its prefill may run chunk-sparse (SparseGDN).
#include "runtime/layers/delta_rule_layer.h"

namespace cairn {
namespace {

class GdnLayer : public DeltaRuleLayer {
 public:
  Status bind(const LayerBuild& build) {
    CAIRN_TRY(bind_shared(build, {"b", "a"}));
    CAIRN_TRY_ASSIGN(decay_, DecayGate::bind(build, config_.value_heads, 1));
    return {};
  }

 private:
  bool describe_gates(Step& step, DeltaInputs& inputs, DeltaInputsArgs& args) const override {
    if (!config_.has_beta) return false;
    float* beta = step.floats(static_cast<std::int64_t>(step.token_count()) * config_.value_heads);
    args.beta = beta_args(step, inputs, beta);
    args.decay = decay_.args(step, extra(step, inputs, 1));
    inputs.beta = beta;
    inputs.log_decay = args.decay.out;
    return true;
  }

  void add_gates(Step& step, ConstRows x, const DeltaInputs& inputs, DeltaRuleArgs& args) override {
    args.beta = inputs.beta ? inputs.beta : run_beta(step, inputs);
    args.log_decay = inputs.log_decay ? inputs.log_decay : decay_.run(step, x, extra(step, inputs, 1));
  }

  void run_rule(Step& step, const DeltaInputs& inputs, const DeltaRuleArgs& args) override {
    // The residual is undefined where events are skipped: layers that route it stay dense (spec 6).
    if (!step.sparse.enabled || routing_.wants_residual()) return step.run(step.ops().gdn, args, "gdn");
    SparseGdnArgs sparse{};
    sparse.delta = args;
    sparse.policy = step.sparse.policy;
    sparse.full_inverse = step.sparse.full_inverse;
    sparse.seed = step.sparse.seed;
    sparse.gate = inputs.gate;
    sparse.norm_weight = output_.norm_weight();
    step.run(step.ops().sparse_gdn, sparse, "sparse_gdn");
  }

  DecayGate decay_;
};

}  // namespace

Result<std::unique_ptr<Mixer>> make_gdn(const LayerBuild& build) {
  auto layer = std::make_unique<GdnLayer>();
  CAIRN_TRY(layer->bind(build));
  return std::unique_ptr<Mixer>(std::move(layer));
}

}  // namespace cairn
