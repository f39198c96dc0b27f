// Multi-head latent attention without rotation (Kimi Linear): the cache holds one latent and one shared key per token.
#include <cmath>

#include "runtime/layers/layer.h"

namespace cairn {
namespace {

class LatentAttentionLayer : public Mixer {
 public:
  Status bind(const LayerBuild& build) {
    config_ = build.config.latent;
    CAIRN_TRY_ASSIGN(group_, build.weights.linear_group({build.mixer("q"), build.mixer("kv_a")}));
    CAIRN_TRY_ASSIGN(kv_b_, build.weights.linear(build.mixer("kv_b")));
    CAIRN_TRY_ASSIGN(out_, build.weights.linear(build.mixer("o")));
    CAIRN_TRY_ASSIGN(latent_norm_, build.weights.vector(build.mixer("kv_a_norm.weight")));
    keys_slot_ = build.add_slot("latents", SlotKind::kKvFull, {0, 1, config_.rank + config_.shared_dim});
    return {};
  }

  void run(Step& step, ConstRows x, const MixerOutput& output) override {
    const Step::Scope scope(step);
    const Rows projected = step.rows(group_.width);
    run_group(step, group_, x, projected);
    const Rows latent = columns(projected, group_.offsets[1], step.dtype());
    run_rms_norm(step, latent_norm_, config_.latent_norm_eps, 1, config_.rank, latent, latent);

    const Rows o = step.rows(static_cast<std::int64_t>(config_.heads) * config_.value_dim);
    LatentAttentionArgs args{};
    args.dtype = step.dtype();
    args.phase = step.phase;
    args.batch = step.batch;
    args.head_count = config_.heads;
    args.nope_dim = config_.nope_dim;
    args.shared_dim = config_.shared_dim;
    args.value_dim = config_.value_dim;
    args.rank = config_.rank;
    args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.nope_dim + config_.shared_dim)));
    args.kv_b = kv_b_;
    args.starts = step.starts;
    args.starts_host = step.starts_host;
    args.caches = step.states.caches[keys_slot_];
    args.q = projected;
    args.latent = latent;
    args.shared_key = columns(latent, config_.rank, step.dtype());
    args.out = o;
    step.run(step.ops().latent_attention, args, "latent_attention");
    run_linear(step, *out_, o, output.out, output.accumulate);
  }

 private:
  LatentAttentionConfig config_;
  LinearGroup group_;  // q, kv_a
  const LinearWeight *kv_b_ = nullptr, *out_ = nullptr;
  const float* latent_norm_ = nullptr;
  std::int32_t keys_slot_ = -1;
};

}  // namespace

Result<std::unique_ptr<Mixer>> make_latent_attention(const LayerBuild& build) {
  auto layer = std::make_unique<LatentAttentionLayer>();
  CAIRN_TRY(layer->bind(build));
  return std::unique_ptr<Mixer>(std::move(layer));
}

}  // namespace cairn
