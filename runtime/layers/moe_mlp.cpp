// Mixture of experts: routed experts plus an optional shared one, gated or not (public-models.md 2.1, 2.3, 2.5).
#include "runtime/layers/layer.h"

namespace cairn {
namespace {

class MoeMlp : public Mlp {
 public:
  Status bind(const LayerBuild& build) {
    config_ = build.config.mlp;
    dim_ = build.model.model_dim;
    Weights& weights = build.weights;
    CAIRN_TRY_ASSIGN(router_, weights.linear(build.name("mlp.router")));
    if (config_.correction_bias) {
      CAIRN_TRY_ASSIGN(correction_bias_, weights.vector(build.name("mlp.router_bias")));
    }
    for (std::int32_t e = 0; e < config_.expert_count; ++e) {
      const std::string expert = build.name("mlp.experts.") + std::to_string(e);
      CAIRN_TRY_ASSIGN(const LinearWeight* gate, weights.linear(expert + ".gate"));
      CAIRN_TRY_ASSIGN(const LinearWeight* up, weights.linear(expert + ".up"));
      CAIRN_TRY_ASSIGN(const LinearWeight* down, weights.linear(expert + ".down"));
      gate_.push_back(*gate);
      up_.push_back(*up);
      down_.push_back(*down);
    }
    if (config_.shared_hidden_dim == 0) return {};
    CAIRN_TRY_ASSIGN(shared_, weights.linear_group({build.name("mlp.shared.gate"), build.name("mlp.shared.up")}));
    CAIRN_TRY_ASSIGN(shared_down_, weights.linear(build.name("mlp.shared.down")));
    if (config_.shared_gate) {
      CAIRN_TRY_ASSIGN(shared_gate_, weights.linear(build.name("mlp.shared_gate")));
    }
    return {};
  }

  void run(Step& step, ConstRows x, const MixerOutput& output) override {
    const Step::Scope scope(step);
    float* logits = step.floats(static_cast<std::int64_t>(step.token_count()) * config_.expert_count);
    run_linear_f32(step, *router_, x, logits);
    const Rows routed = step.rows(dim_);
    MoeArgs args{step.dtype(), step.phase, config_.router, config_.renormalize, config_.routed_scale, step.token_count(),
                 dim_, config_.hidden_dim, config_.expert_count, config_.top_k, config_.group_count, config_.top_groups,
                 logits, correction_bias_, gate_.data(), up_.data(), down_.data(), x, routed};
    step.run(step.ops().moe, args, "moe");
    if (config_.shared_hidden_dim > 0) add_shared(step, x, routed);
    AddArgs add{step.dtype(), step.token_count(), dim_, nullptr,
                output.accumulate ? ConstRows(output.out) : ConstRows(nullptr, dim_), routed, output.out};
    step.run(step.ops().add, add, "add");
  }

 private:
  /// routed += sigma(x w) shared(x), or shared(x) alone.
  void add_shared(Step& step, ConstRows x, Rows routed) const {
    const Rows both = step.rows(shared_.width);
    run_swiglu_group(step, shared_, x, both);
    if (!shared_gate_) return run_linear(step, *shared_down_, both, routed, true);
    const Rows shared = step.rows(dim_);
    run_linear(step, *shared_down_, both, shared);
    const Rows raw = step.rows(1);
    run_linear(step, *shared_gate_, x, raw);
    float* factor = step.floats(step.token_count());
    run_sigmoid_f32(step, 1, 1, raw, factor);
    AddArgs add{step.dtype(), step.token_count(), dim_, factor, routed, shared, routed};
    step.run(step.ops().add, add, "add");
  }

  MlpConfig config_;
  std::int32_t dim_ = 0;
  const LinearWeight *router_ = nullptr, *shared_down_ = nullptr, *shared_gate_ = nullptr;
  const float* correction_bias_ = nullptr;
  std::vector<LinearWeight> gate_, up_, down_;
  LinearGroup shared_;
};

}  // namespace

Result<std::unique_ptr<Mlp>> make_moe_mlp(const LayerBuild& build) {
  auto mlp = std::make_unique<MoeMlp>();
  CAIRN_TRY(mlp->bind(build));
  return std::unique_ptr<Mlp>(std::move(mlp));
}

}  // namespace cairn
