// Gated DeltaNet-2: per-row decay, an erase gate b on the key and a write gate w on the value.
#include "runtime/layers/delta_rule_layer.h"

namespace cairn {
namespace {

class Gdn2Layer : public DeltaRuleLayer {
 public:
  Status bind(const LayerBuild& build) {
    std::vector<std::string> extra = {"b", "w"};
    if (DecayGate::is_projected(build.config.delta)) extra.push_back("a");
    has_projected_decay_ = extra.size() == 3;
    CAIRN_TRY(bind_shared(build, extra));
    CAIRN_TRY_ASSIGN(decay_, DecayGate::bind(build, config_.value_heads, config_.key_dim));
    return {};
  }

 private:
  void add_gates(Step& step, ConstRows x, const DeltaInputs& inputs, DeltaRuleArgs& args) override {
    const std::int32_t erase_width = config_.value_heads * config_.key_dim;
    const std::int32_t write_width = config_.value_heads * config_.value_dim;
    const Rows erase = step.rows(erase_width), write = step.rows(write_width);
    FeatureMapArgs sigmoid{step.dtype(), step.dtype(), FeatureMap::kSigmoid, step.token_count(), 1, erase_width,
                           1, config_.beta_scale, extra(step, inputs, 0), erase};
    step.run(step.ops().feature_map, sigmoid, "feature_map");
    run_feature_map(step, FeatureMap::kSigmoid, 1, write_width, extra(step, inputs, 1), write);
    args.erase = erase;
    args.write = write;
    args.log_decay = decay_.run(step, x, has_projected_decay_ ? extra(step, inputs, 2) : ConstRows());
  }
  void run_rule(Step& step, const DeltaInputs&, const DeltaRuleArgs& args) override {
    step.run(step.ops().gdn2, args, "gdn2");
  }

  DecayGate decay_;
  bool has_projected_decay_ = false;
};

}  // namespace

Result<std::unique_ptr<Mixer>> make_gdn2(const LayerBuild& build) {
  auto layer = std::make_unique<Gdn2Layer>();
  CAIRN_TRY(layer->bind(build));
  return std::unique_ptr<Mixer>(std::move(layer));
}

}  // namespace cairn
