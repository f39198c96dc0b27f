// Kimi Delta Attention: one decay per key row.
#include "runtime/layers/delta_rule_layer.h"

namespace cairn {
namespace {

class KdaLayer : public DeltaRuleLayer {
 public:
  Status bind(const LayerBuild& build) {
    std::vector<std::string> extra = {"b"};
    if (DecayGate::is_projected(build.config.delta)) extra.push_back("a");
    has_projected_decay_ = extra.size() == 2;
    CAIRN_TRY(bind_shared(build, extra));
    CAIRN_TRY_ASSIGN(decay_, DecayGate::bind(build, config_.value_heads, config_.key_dim));
    return {};
  }

 private:
  void add_gates(Step& step, ConstRows x, const DeltaInputs& inputs, DeltaRuleArgs& args) override {
    args.beta = run_beta(step, inputs);
    args.log_decay = decay_.run(step, x, has_projected_decay_ ? extra(step, inputs, 1) : ConstRows());
  }
  void run_rule(Step& step, const DeltaInputs&, const DeltaRuleArgs& args) override {
    step.run(step.ops().kda, args, "kda");
  }

  DecayGate decay_;
  bool has_projected_decay_ = false;
};

}  // namespace

Result<std::unique_ptr<Mixer>> make_kda(const LayerBuild& build) {
  auto layer = std::make_unique<KdaLayer>();
  CAIRN_TRY(layer->bind(build));
  return std::unique_ptr<Mixer>(std::move(layer));
}

}  // namespace cairn
