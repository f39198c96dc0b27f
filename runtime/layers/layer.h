// A layer: a mixer with its cross-layer routing, or an MLP, bound to weights and state slots.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/layers/step.h"
#include "runtime/model/weights.h"
#include "runtime/state/state_layout.h"

namespace cairn {

/// Where a layer is built: its place, its configuration, and what it binds to.
struct LayerBuild {
  std::int32_t index;
  const ModelDescription& model;
  const LayerConfig& config;
  Weights& weights;
  std::vector<StateSlot>& slots;  ///< the layer appends its own
  const char* part_of = "mixer.";  ///< what its tensors' names begin with

  std::string name(const char* part) const { return "layers." + std::to_string(index) + "." + part; }
  std::string mixer(const char* part) const { return name(part_of) + part; }
  /// Declares a slot and returns its index.
  std::int32_t add_slot(const char* part, SlotKind kind, std::vector<std::int64_t> shape) const;
};

/// Adds to `out` when accumulate, else overwrites it.
struct MixerOutput {
  Rows out;
  bool accumulate;
};

class Mixer {
 public:
  virtual ~Mixer() = default;
  /// x [T, D], normalised; out [T, D].
  virtual void run(Step& step, ConstRows x, const MixerOutput& output) = 0;
};

Result<std::unique_ptr<Mixer>> make_delta_net(const LayerBuild& build);
Result<std::unique_ptr<Mixer>> make_gdn(const LayerBuild& build);
Result<std::unique_ptr<Mixer>> make_kda(const LayerBuild& build);
Result<std::unique_ptr<Mixer>> make_gdn2(const LayerBuild& build);
Result<std::unique_ptr<Mixer>> make_sse(const LayerBuild& build);
Result<std::unique_ptr<Mixer>> make_sdm(const LayerBuild& build);
Result<std::unique_ptr<Mixer>> make_softmax_attention(const LayerBuild& build);
Result<std::unique_ptr<Mixer>> make_latent_attention(const LayerBuild& build);
/// SSE with attention beside it: out = norm(sse(x)) + norm(attention(x)).
Result<std::unique_ptr<Mixer>> make_sse_with_attention(const LayerBuild& build);
/// By config.mechanism.
Result<std::unique_ptr<Mixer>> make_mixer(const LayerBuild& build);

/// h += mlp(x). Absent when config.mlp.kind is kNone.
class Mlp {
 public:
  virtual ~Mlp() = default;
  virtual void run(Step& step, ConstRows x, const MixerOutput& output) = 0;
};

Result<std::unique_ptr<Mlp>> make_swiglu_mlp(const LayerBuild& build);
Result<std::unique_ptr<Mlp>> make_moe_mlp(const LayerBuild& build);

// ---- pieces that layers share

void run_linear(Step& step, const LinearWeight& weight, ConstRows in, Rows out, bool accumulate = false);
/// Output in f32, densely packed [T, out].
void run_linear_f32(Step& step, const LinearWeight& weight, ConstRows in, float* out);
void run_group(Step& step, const LinearGroup& group, ConstRows in, Rows out);
/// A group of gate and up into `both` [T, width], then swiglu: its output is the first half of the columns.
void run_swiglu_group(Step& step, const LinearGroup& group, ConstRows in, Rows both);
void run_rms_norm(Step& step, const float* weight, float eps, std::int32_t heads, std::int32_t dim, ConstRows in, Rows out);
void run_feature_map(Step& step, FeatureMap map, std::int32_t heads, std::int32_t dim, ConstRows in, Rows out);
/// f32 out [T, count] = scale * sigmoid(in).
void run_sigmoid_f32(Step& step, std::int32_t count, float scale, ConstRows in, float* out);

/// The output of every recurrent mixer: norm per head, weight, gate, then the output projection.
class GatedOutput {
 public:
  /// z is bound as part of the caller's group when its rank is 0 (see gate_name()).
  static Result<GatedOutput> bind(const LayerBuild& build, std::int32_t heads, std::int32_t dim, std::int32_t gate_rank);
  bool has_gate() const { return gate_kind_ != GateKind::kNone; }
  bool has_full_gate() const { return has_gate() && !gate_down_; }
  const float* norm_weight() const { return norm_weight_; }
  /// The gate's pre-activation [T, H V]: `full_gate` when the caller has projected it, else from x through the low rank.
  ConstRows gate(Step& step, ConstRows x, ConstRows full_gate) const;
  /// o [T, H V] is overwritten.
  void run(Step& step, Rows o, ConstRows gate, const MixerOutput& output) const;
  /// Its two halves: the norm in place, and the projection.
  GatedRmsNormArgs norm_args(Step& step, Rows o, ConstRows gate) const;
  void project(Step& step, Rows normalised, const MixerOutput& output) const;

 private:
  std::int32_t heads_ = 0, dim_ = 0;
  NormKind norm_ = NormKind::kRms;
  GateKind gate_kind_ = GateKind::kSilu;
  float eps_ = 1e-6F;
  const float *norm_weight_ = nullptr, *norm_bias_ = nullptr;
  const LinearWeight *gate_down_ = nullptr, *gate_up_ = nullptr, *out_ = nullptr;
};

/// Cross-layer routing of one layer (spec 6): what it takes from the bus, gives to it, and adds to the stream.
class CrossLayerRouting {
 public:
  static Result<CrossLayerRouting> bind(const LayerBuild& build, std::int32_t heads, std::int32_t dim);
  bool is_wanted() const { return kind_ != Routing::kNone; }
  bool wants_residual() const { return kind_ == Routing::kCler || kind_ == Routing::kClerH; }
  /// CLER: v~ = v + gamma r of the layer below, into new rows; otherwise v itself.
  ConstRows apply_to_value(Step& step, ConstRows value) const;
  /// Rows for the operator's residual; null data when it is not wanted. On the bus for CLER.
  Rows residual_rows(Step& step) const;
  /// After the operator and the output projection: beta [T, H] is for the scaled variant. Puts r on the bus (CLER) or
  /// adds P r, P v to the output (CLER-H, CLVR), unless that waits for the end of the block.
  void finish(Step& step, ConstRows value, Rows residual, const float* beta, const MixerOutput& output) const;

 private:
  Routing kind_ = Routing::kNone;
  bool scaled_ = false, after_block_ = false;
  std::int32_t heads_ = 0, dim_ = 0, gamma_head_stride_ = 0, gamma_dim_stride_ = 0, rank_ = 0;
  const float* gamma_ = nullptr;
  const LinearWeight *down_ = nullptr, *up_ = nullptr, *full_ = nullptr;
};

}  // namespace cairn
