// DeltaNet: no decay.  S += beta k (v - S^T k)^T.
#include "runtime/layers/delta_rule_layer.h"

namespace cairn {
namespace {

class DeltaNetLayer : public DeltaRuleLayer {
 public:
  Status bind(const LayerBuild& build) {
    return bind_shared(build, build.config.delta.has_beta ? std::vector<std::string>{"b"} : std::vector<std::string>{});
  }

 private:
  void add_gates(Step& step, ConstRows, const DeltaInputs& inputs, DeltaRuleArgs& args) override {
    args.beta = run_beta(step, inputs);
  }
  void run_rule(Step& step, const DeltaInputs&, const DeltaRuleArgs& args) override {
    step.run(step.ops().delta_net, args, "delta_net");
  }
};

}  // namespace

Result<std::unique_ptr<Mixer>> make_delta_net(const LayerBuild& build) {
  auto layer = std::make_unique<DeltaNetLayer>();
  CAIRN_TRY(layer->bind(build));
  return std::unique_ptr<Mixer>(std::move(layer));
}

}  // namespace cairn
