// CLER, CLER-H and CLVR: what a layer's residual or value does for the layers above (spec 6).
#include "runtime/layers/layer.h"

namespace cairn {

Result<CrossLayerRouting> CrossLayerRouting::bind(const LayerBuild& build, std::int32_t heads, std::int32_t dim) {
  const RoutingConfig& config = build.config.routing;
  CrossLayerRouting routing;
  routing.kind_ = config.kind;
  routing.scaled_ = config.scaled;
  routing.after_block_ = config.after_block;
  routing.heads_ = heads;
  routing.dim_ = dim;
  routing.rank_ = config.rank;
  if (config.kind == Routing::kNone) return routing;
  if (config.kind == Routing::kCler) {
    routing.gamma_head_stride_ = config.gamma == RoutingGamma::kScalar ? 0 : config.gamma == RoutingGamma::kHead ? 1 : dim;
    routing.gamma_dim_stride_ = config.gamma == RoutingGamma::kChannel ? 1 : 0;
    CAIRN_TRY_ASSIGN(routing.gamma_, build.weights.vector(build.name("routing.gamma")));
    return routing;
  }
  if (config.rank > 0) {
    CAIRN_TRY_ASSIGN(routing.down_, build.weights.linear(build.name("routing.down")));
    CAIRN_TRY_ASSIGN(routing.up_, build.weights.linear(build.name("routing.up")));
  } else {
    CAIRN_TRY_ASSIGN(routing.full_, build.weights.linear(build.name("routing.p")));
  }
  return routing;
}

ConstRows CrossLayerRouting::apply_to_value(Step& step, ConstRows value) const {
  if (kind_ != Routing::kCler || step.bus.width == 0) return value;
  const Rows routed = step.rows(static_cast<std::int64_t>(heads_) * dim_);
  CrossLayerAddArgs args{step.dtype(), step.token_count(), heads_, dim_, gamma_, gamma_head_stride_, gamma_dim_stride_,
                         value, step.bus.residual, routed};
  step.run(step.ops().cross_layer_add, args, "cross_layer_add");
  return routed;
}

Rows CrossLayerRouting::residual_rows(Step& step) const {
  if (!wants_residual()) return {};
  if (kind_ == Routing::kClerH) return step.rows(static_cast<std::int64_t>(heads_) * dim_);
  Rows rows = step.bus.buffers[step.bus.next];
  rows.stride = static_cast<std::int64_t>(heads_) * dim_;
  return rows;
}

void CrossLayerRouting::finish(Step& step, ConstRows value, Rows residual, const float* beta,
                               const MixerOutput& output) const {
  if (kind_ == Routing::kNone) return;
  if (wants_residual() && scaled_) {  // beta r: one factor per token and head
    AddArgs scale{step.dtype(), step.token_count() * heads_, dim_, beta, {nullptr, dim_}, {residual.data, dim_}, {residual.data, dim_}};
    step.run(step.ops().add, scale, "add");
  }
  if (kind_ == Routing::kCler) {
    step.bus.residual = residual;
    step.bus.width = heads_ * dim_;
    step.bus.next = 1 - step.bus.next;
    return;
  }
  const ConstRows signal = kind_ == Routing::kClvr ? value : ConstRows(residual);
  const Rows target = after_block_ ? step.after_block : output.out;
  if (full_) return run_linear(step, *full_, signal, target, !after_block_);
  const Rows narrow = step.rows(rank_);
  run_linear(step, *down_, signal, narrow);
  run_linear(step, *up_, narrow, target, !after_block_);
}

}  // namespace cairn
