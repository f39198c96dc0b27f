// Softmax attention, full or sliding-window, with grouped queries (spec 7).
#include <cmath>

#include "runtime/layers/layer.h"

namespace cairn {
namespace {

class SoftmaxAttentionLayer : public Mixer {
 public:
  Status bind(const LayerBuild& build) {
    config_ = build.config.attention;
    eps_ = config_.qk_norm_eps > 0 ? config_.qk_norm_eps : build.model.norm_eps;
    std::vector<std::string> names = {build.mixer("q"), build.mixer("k"), build.mixer("v")};
    if (config_.output_gate) names.push_back(build.mixer("z"));
    CAIRN_TRY_ASSIGN(group_, build.weights.linear_group(names));
    CAIRN_TRY_ASSIGN(out_, build.weights.linear(build.mixer("o")));
    if (config_.qk_norm || config_.qk_norm_full) {
      const bool is_zero_centered = config_.qk_norm_centering == NormCentering::kAsModel
                                        ? build.model.norm_zero_centered
                                        : config_.qk_norm_centering == NormCentering::kZeroCentered;
      const float add = is_zero_centered ? 1.0F : 0.0F;
      CAIRN_TRY_ASSIGN(q_norm_, build.weights.vector(build.mixer("q_norm.weight"), add));
      CAIRN_TRY_ASSIGN(k_norm_, build.weights.vector(build.mixer("k_norm.weight"), add));
    }
    const SlotKind kind = config_.window > 0 ? SlotKind::kKvRing : SlotKind::kKvFull;
    const std::vector<std::int64_t> shape = {config_.window, config_.kv_heads, config_.head_dim};
    keys_slot_ = build.add_slot("keys", kind, shape);
    build.add_slot("values", kind, shape);  // the slot after the keys, by convention
    return {};
  }

  void run(Step& step, ConstRows x, const MixerOutput& output) override {
    const Step::Scope scope(step);
    const Rows projected = step.rows(group_.width);
    run_group(step, group_, x, projected);
    const auto column = [&](int i) { return columns(projected, group_.offsets[i], step.dtype()); };
    normalise(step, column(0), config_.query_heads, q_norm_);
    normalise(step, column(1), config_.kv_heads, k_norm_);
    if (group_.offsets[1] == group_.offsets[0] + config_.query_heads * config_.head_dim) {
      rotate(step, column(0), config_.query_heads + config_.kv_heads);  // keys follow queries: one launch
    } else {
      rotate(step, column(0), config_.query_heads);
      rotate(step, column(1), config_.kv_heads);
    }

    const std::int32_t width = config_.query_heads * config_.head_dim;
    const Rows o = step.rows(width);
    SoftmaxAttentionArgs args{};
    args.dtype = step.dtype();
    args.phase = step.phase;
    args.batch = step.batch;
    args.query_heads = config_.query_heads;
    args.kv_heads = config_.kv_heads;
    args.key_dim = args.value_dim = config_.head_dim;
    args.window = config_.window;
    args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
    args.starts = step.starts;
    args.starts_host = step.starts_host;
    args.caches = step.states.caches[keys_slot_];
    args.q = column(0);
    args.k = column(1);
    args.v = column(2);
    args.out = o;
    step.run(step.ops().softmax_attention, args, "softmax_attention");
    if (config_.output_gate) {
      GateArgs gate{step.dtype(), GateKind::kSigmoid, step.token_count(), width, o, column(3), o};
      step.run(step.ops().gate, gate, "gate");
    }
    run_linear(step, *out_, o, output.out, output.accumulate);
  }

 private:
  /// Queries or keys, in place.
  void normalise(Step& step, Rows rows, std::int32_t heads, const float* norm) const {
    if (config_.qk_norm) run_rms_norm(step, norm, eps_, heads, config_.head_dim, rows, rows);
    if (config_.qk_norm_full) run_rms_norm(step, norm, eps_, 1, heads * config_.head_dim, rows, rows);
  }
  void rotate(Step& step, Rows rows, std::int32_t heads) const {
    if (config_.rotary_dim == 0) return;
    RopeArgs rope{step.dtype(), step.batch, heads, config_.head_dim, config_.rotary_dim, config_.rope_theta, step.starts, rows};
    step.run(step.ops().rope, rope, "rope");
  }

  AttentionConfig config_;
  LinearGroup group_;  // q, k, v, z
  const LinearWeight* out_ = nullptr;
  const float *q_norm_ = nullptr, *k_norm_ = nullptr;
  float eps_ = 1e-6F;
  std::int32_t keys_slot_ = -1;
};

}  // namespace

Result<std::unique_ptr<Mixer>> make_softmax_attention(const LayerBuild& build) {
  auto layer = std::make_unique<SoftmaxAttentionLayer>();
  CAIRN_TRY(layer->bind(build));
  return std::unique_ptr<Mixer>(std::move(layer));
}

}  // namespace cairn
