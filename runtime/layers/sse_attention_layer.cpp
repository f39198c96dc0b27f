// SSE and softmax attention side by side, as SpikingBrain 2 has them: each reads the layer's input, has a norm of its own
// over the model's width, and both are added.
#include "runtime/layers/layer.h"

namespace cairn {
namespace {

class SseAttentionLayer : public Mixer {
 public:
  Status bind(const LayerBuild& build) {
    dim_ = build.model.model_dim;
    eps_ = build.model.norm_eps;
    CAIRN_TRY_ASSIGN(sse_, make_sse(build));
    CAIRN_TRY_ASSIGN(sse_norm_, build.weights.vector(build.name("merge_mixer.weight")));
    LayerConfig config = build.config;
    config.mechanism = Mechanism::kSoftmaxAttention;
    config.attention = config.side_attention;
    const LayerBuild side{build.index, build.model, config, build.weights, build.slots, "side."};
    CAIRN_TRY_ASSIGN(attention_, make_softmax_attention(side));
    CAIRN_TRY_ASSIGN(attention_norm_, build.weights.vector(build.name("merge_side.weight")));
    return {};
  }

  void run(Step& step, ConstRows x, const MixerOutput& output) override {
    const Step::Scope scope(step);
    const Rows sse = step.rows(dim_), attention = step.rows(dim_);
    sse_->run(step, x, {sse, false});
    run_rms_norm(step, sse_norm_, eps_, 1, dim_, sse, sse);
    attention_->run(step, x, {attention, false});
    run_rms_norm(step, attention_norm_, eps_, 1, dim_, attention, attention);
    AddArgs both{step.dtype(), step.token_count(), dim_, nullptr, sse, attention, output.accumulate ? sse : output.out};
    step.run(step.ops().add, both, "add");
    if (!output.accumulate) return;
    AddArgs add{step.dtype(), step.token_count(), dim_, nullptr, output.out, sse, output.out};
    step.run(step.ops().add, add, "add");
  }

 private:
  std::int32_t dim_ = 0;
  float eps_ = 1e-6F;
  std::unique_ptr<Mixer> sse_, attention_;
  const float *sse_norm_ = nullptr, *attention_norm_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Mixer>> make_sse_with_attention(const LayerBuild& build) {
  auto layer = std::make_unique<SseAttentionLayer>();
  CAIRN_TRY(layer->bind(build));
  return std::unique_ptr<Mixer>(std::move(layer));
}

}  // namespace cairn
