#include "runtime/layers/block.h"

namespace cairn {

Result<std::unique_ptr<Mixer>> make_mixer(const LayerBuild& build) {
  switch (build.config.mechanism) {
    case Mechanism::kDeltaNet: return make_delta_net(build);
    case Mechanism::kGdn: return make_gdn(build);
    case Mechanism::kKda: return make_kda(build);
    case Mechanism::kGdn2: return make_gdn2(build);
    case Mechanism::kSse: return build.config.has_side_attention ? make_sse_with_attention(build) : make_sse(build);
    case Mechanism::kSdm: return make_sdm(build);
    case Mechanism::kSoftmaxAttention: return make_softmax_attention(build);
    case Mechanism::kLatentAttention: return make_latent_attention(build);
  }
  return Status::unsupported("layer %d: mechanism %d is not known", build.index, static_cast<int>(build.config.mechanism));
}

Result<std::unique_ptr<Block>> Block::bind(const LayerBuild& build) {
  auto block = std::make_unique<Block>();
  block->dim_ = build.model.model_dim;
  block->eps_ = build.model.norm_eps;
  block->norm_after_ = build.config.norm_after;
  const Routing routing = build.config.routing.kind;  // CLER leaves its residual to the layers above: nothing to add here
  block->routes_after_block_ = build.config.routing.after_block && (routing == Routing::kClerH || routing == Routing::kClvr);
  const float add = build.model.norm_zero_centered ? 1.0F : 0.0F;
  CAIRN_TRY_ASSIGN(block->norm1_, build.weights.vector(build.name("norm1.weight"), add));
  CAIRN_TRY_ASSIGN(block->mixer_, make_mixer(build));
  if (build.config.mlp.kind == MlpKind::kNone) return block;
  CAIRN_TRY_ASSIGN(block->norm2_, build.weights.vector(build.name("norm2.weight"), add));
  if (build.config.mlp.kind == MlpKind::kSwiglu) {
    CAIRN_TRY_ASSIGN(block->mlp_, make_swiglu_mlp(build));
  } else {
    CAIRN_TRY_ASSIGN(block->mlp_, make_moe_mlp(build));
  }
  return block;
}

/// h += part(norm(h)), or h += norm(part(h)).
void Block::run_part(Step& step, Rows h, const float* norm, bool is_mlp) {
  const Step::Scope scope(step);
  const Rows x = step.rows(dim_);
  const auto run = [&](ConstRows in, const MixerOutput& output) {
    is_mlp ? mlp_->run(step, in, output) : mixer_->run(step, in, output);
  };
  if (!norm_after_) {
    run_rms_norm(step, norm, eps_, 1, dim_, h, x);
    return run(x, {h, true});
  }
  run(h, {x, false});
  run_rms_norm(step, norm, eps_, 1, dim_, x, x);
  AddArgs add{step.dtype(), step.token_count(), dim_, nullptr, h, x, h};
  step.run(step.ops().add, add, "add");
}

void Block::run(Step& step, Rows h) {
  const Step::Scope scope(step);
  if (routes_after_block_) step.after_block = step.rows(dim_);
  run_part(step, h, norm1_, false);
  if (mlp_) run_part(step, h, norm2_, true);
  if (!routes_after_block_) return;
  AddArgs add{step.dtype(), step.token_count(), dim_, nullptr, h, step.after_block, h};
  step.run(step.ops().add, add, "add");
  step.after_block = {};
}

}  // namespace cairn
