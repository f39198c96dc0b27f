// Every number of a description against its range and against the others.
#include <bit>
#include <cmath>

#include "runtime/model/container_format.h"
#include "runtime/model/element_conversion.h"
#include "runtime/model/model_limits.h"

namespace cairn {
namespace {

constexpr std::int64_t kMaxHeads = 65536;
constexpr std::int64_t kMaxHeadDim = 65536;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 24;  // heads * dim, model dim, MLP width: no product nears 2^63
constexpr std::int64_t kMaxWindow = std::int64_t{1} << 24;

/// Checks of one layer or of the model; the first failure stays.
class Checks {
 public:
  explicit Checks(std::string where) : where_(std::move(where)) {}

  void range(const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
    if (value >= low && value <= high) return;
    fail(Status::format_error("%s: %s is %lld (%lld to %lld)", where_.c_str(), field, static_cast<long long>(value),
                              static_cast<long long>(low), static_cast<long long>(high)));
  }
  void positive(const char* field, float value, float high) {
    if (value > 0 && value <= high) return;  // false for NaN
    fail(Status::format_error("%s: %s is %g (above 0, at most %g)", where_.c_str(), field, static_cast<double>(value),
                              static_cast<double>(high)));
  }
  void finite(const char* field, float value) {
    if (std::isfinite(value)) return;
    fail(Status::format_error("%s: %s is not finite", where_.c_str(), field));
  }
  void divides(const char* part_field, std::int64_t part, const char* whole_field, std::int64_t whole) {
    if (!status_.ok() || whole % part == 0) return;
    fail(Status::format_error("%s: %s (%lld) does not divide %s (%lld)", where_.c_str(), part_field,
                              static_cast<long long>(part), whole_field, static_cast<long long>(whole)));
  }
  template <class Enum>
  void choice(const char* field, Enum value, Enum last) {
    if (static_cast<int>(value) <= static_cast<int>(last)) return;
    fail(Status::format_error("%s: %s has the unknown value %d", where_.c_str(), field, static_cast<int>(value)));
  }
  /// `claim` must hold; `message` says what is wrong.
  void require(bool claim, const char* message) {
    if (!claim) fail(Status::format_error("%s: %s", where_.c_str(), message));
  }
  Status status() const { return status_; }

 private:
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  std::string where_;
  Status status_;
};

void check_conv_kernel(Checks& checks, const char* field, std::int32_t kernel) {
  if (kernel != 0) checks.range(field, kernel, 1, 32);
}

void check_delta_rule(Checks& checks, const LayerConfig& layer) {
  const DeltaRuleConfig& c = layer.delta;
  checks.range("key_heads", c.key_heads, 1, kMaxHeads);
  checks.range("value_heads", c.value_heads, 1, kMaxHeads);
  checks.divides("key_heads", c.key_heads, "value_heads", c.value_heads);
  checks.range("key_dim", c.key_dim, 1, kMaxHeadDim);
  checks.range("value_dim", c.value_dim, 1, kMaxHeadDim);
  checks.range("value_heads * key_dim", std::int64_t{c.value_heads} * c.key_dim, 1, kMaxWidth);
  checks.range("value_heads * value_dim", std::int64_t{c.value_heads} * c.value_dim, 1, kMaxWidth);
  check_conv_kernel(checks, "conv_kernel", c.conv_kernel);
  checks.require(c.conv_kernel > 0 || !c.conv_bias, "conv_bias without a convolution");
  checks.choice("qk_activation", c.qk_activation, QkActivation::kIdentity);
  checks.choice("qk_norm", c.qk_norm, QkNorm::kNone);
  checks.positive("beta_scale", c.beta_scale, 2);
  checks.require(c.has_beta || layer.mechanism == Mechanism::kDeltaNet, "only delta_net may go without beta");
  checks.choice("decay", c.decay, DecayKind::kLowerBound);
  checks.require(c.decay != DecayKind::kLogSigmoid, "decay log_sigmoid belongs to sse");
  checks.finite("decay_lower_bound", c.decay_lower_bound);
  checks.require(c.decay != DecayKind::kLowerBound || c.decay_lower_bound < 0, "decay_lower_bound must be negative");
  checks.range("decay_rank", c.decay_rank, 0, kMaxWidth);
  const bool has_projected_decay = layer.mechanism == Mechanism::kKda || layer.mechanism == Mechanism::kGdn2;
  checks.require(has_projected_decay || c.decay_rank == 0, "decay_rank belongs to kda and gdn2");
  checks.range("gate_rank", c.gate_rank, 0, kMaxWidth);
}

void check_sse(Checks& checks, const SseConfig& c) {
  checks.range("heads", c.heads, 1, kMaxHeads);
  checks.range("key_dim", c.key_dim, 1, kMaxHeadDim);
  checks.range("value_dim", c.value_dim, 1, kMaxHeadDim);
  checks.range("heads * key_dim", std::int64_t{c.heads} * c.key_dim, 1, kMaxWidth);
  checks.range("heads * value_dim", std::int64_t{c.heads} * c.value_dim, 1, kMaxWidth);
  checks.range("partitions", c.partitions, 1, 4096);
  checks.range("top_k", c.top_k, 1, c.partitions);
  checks.choice("transition", c.transition, SseTransition::kGdn);
  checks.range("adapter_rank", c.adapter_rank, 0, kMaxWidth);
  checks.require(c.adapter_rank == 0 || c.has_shared || c.adapt_routed,
                 "an adapter of a shared partition that is not there");
  checks.range("decay_rank", c.decay_rank, 0, kMaxWidth);
  checks.require(c.transition != SseTransition::kGdn || c.decay_rank == 0, "decay_rank with transition gdn");
  checks.positive("decay_root", c.decay_root, 1e6F);
  checks.require(!c.separate_shared_gates || c.has_shared, "separate_shared_gates without a shared partition");
  checks.choice("qv_activation", c.qv_activation, QkActivation::kIdentity);
  checks.require(c.qv_activation != QkActivation::kEluPlusOne, "qv_activation elu_plus_one is not known here");
  check_conv_kernel(checks, "shared_conv_kernel", c.shared_conv_kernel);
  checks.require(c.shared_conv_kernel == 0 || c.has_shared, "shared_conv_kernel without a shared partition");
  checks.range("gate_rank", c.gate_rank, 0, kMaxWidth);
}

void check_sdm(Checks& checks, const SdmConfig& c) {
  checks.range("heads", c.heads, 1, kMaxHeads);
  checks.range("side", c.side, 1, 4096);
  const std::int64_t slots = std::int64_t{c.side} * c.side;
  checks.range("heads * slots", c.heads * slots, 1, INT32_MAX);
  checks.range("value_dim", c.value_dim, 1, kMaxHeadDim);
  checks.range("heads * value_dim", std::int64_t{c.heads} * c.value_dim, 1, kMaxWidth);
  checks.range("write_count", c.write_count, 1, slots <= 4096 ? INT32_MAX : 4096);
  checks.range("read_count", c.read_count, 1, slots <= 4096 ? INT32_MAX : 4096);
  checks.finite("write_scale", c.write_scale);
  checks.finite("read_scale", c.read_scale);
}

void check_attention(Checks& checks, const AttentionConfig& c) {
  checks.range("query_heads", c.query_heads, 1, kMaxHeads);
  checks.range("kv_heads", c.kv_heads, 1, kMaxHeads);
  checks.divides("kv_heads", c.kv_heads, "query_heads", c.query_heads);
  checks.range("head_dim", c.head_dim, 1, kMaxHeadDim);
  checks.range("query_heads * head_dim", std::int64_t{c.query_heads} * c.head_dim, 1, kMaxWidth);
  checks.range("window", c.window, 0, kMaxWindow);
  checks.range("rotary_dim", c.rotary_dim, 0, c.head_dim);
  checks.require(c.rotary_dim % 2 == 0, "rotary_dim is odd");
  if (c.rotary_dim > 0) checks.positive("rope_theta", c.rope_theta, 1e12F);
  checks.require(!(c.qk_norm && c.qk_norm_full), "qk_norm and qk_norm_full exclude each other");
  if (c.qk_norm_eps != 0) checks.positive("qk_norm_eps", c.qk_norm_eps, 1);
  checks.choice("qk_norm_centering", c.qk_norm_centering, NormCentering::kZeroCentered);
}

void check_latent_attention(Checks& checks, const LatentAttentionConfig& c) {
  checks.range("heads", c.heads, 1, kMaxHeads);
  checks.range("nope_dim", c.nope_dim, 1, kMaxHeadDim);
  checks.range("shared_dim", c.shared_dim, 0, kMaxHeadDim);
  checks.range("value_dim", c.value_dim, 1, kMaxHeadDim);
  checks.range("rank", c.rank, 1, kMaxHeadDim);
  checks.range("heads * (nope_dim + value_dim)", std::int64_t{c.heads} * (c.nope_dim + c.value_dim), 1, kMaxWidth);
  checks.range("heads * (nope_dim + shared_dim)", std::int64_t{c.heads} * (c.nope_dim + c.shared_dim), 1, kMaxWidth);
  checks.positive("latent_norm_eps", c.latent_norm_eps, 1);
}

void check_routing(Checks& checks, const LayerConfig& layer) {
  const RoutingConfig& c = layer.routing;
  checks.choice("routing kind", c.kind, Routing::kClvr);
  checks.choice("routing gamma", c.gamma, RoutingGamma::kChannel);
  checks.range("routing rank", c.rank, 0, kMaxWidth);
  if (c.kind == Routing::kNone) return;
  const bool is_attention =
      layer.mechanism == Mechanism::kSoftmaxAttention || layer.mechanism == Mechanism::kLatentAttention;
  checks.require(!is_attention, "an attention layer has nothing to route");
  const bool wants_residual = c.kind == Routing::kCler || c.kind == Routing::kClerH;
  checks.require(!wants_residual || layer.mechanism != Mechanism::kSse, "sse has no residual to route");
  checks.require(!wants_residual || layer.mechanism != Mechanism::kSdm || !layer.sdm.slot_residual,
                 "sdm with slot_residual has no residual to route");
  checks.require(c.kind != Routing::kCler || c.rank == 0, "cler has no rank");
}

void check_mlp(Checks& checks, const MlpConfig& c) {
  checks.choice("mlp kind", c.kind, MlpKind::kMoe);
  if (c.kind == MlpKind::kNone) return;
  checks.range("mlp hidden_dim", c.hidden_dim, 1, kMaxWidth);
  if (c.kind != MlpKind::kMoe) return;
  checks.range("expert_count", c.expert_count, 1, 16384);
  checks.range("group_count", c.group_count, 1, c.expert_count);
  checks.divides("group_count", c.group_count, "expert_count", c.expert_count);
  checks.range("top_groups", c.top_groups, 1, c.group_count);
  checks.range("top_k", c.top_k, 1, c.group_count > 0 ? c.expert_count / c.group_count * c.top_groups : 1);
  checks.choice("router", c.router, RouterKind::kSigmoid);
  checks.finite("routed_scale", c.routed_scale);
  checks.range("shared_hidden_dim", c.shared_hidden_dim, 0, kMaxWidth);
  checks.require(!c.shared_gate || c.shared_hidden_dim > 0, "shared_gate without a shared expert");
}

void check_mixer(Checks& checks, const LayerConfig& layer) {
  switch (layer.mechanism) {
    case Mechanism::kDeltaNet:
    case Mechanism::kGdn:
    case Mechanism::kKda:
    case Mechanism::kGdn2: return check_delta_rule(checks, layer);
    case Mechanism::kSse: return check_sse(checks, layer.sse);
    case Mechanism::kSdm: return check_sdm(checks, layer.sdm);
    case Mechanism::kSoftmaxAttention: return check_attention(checks, layer.attention);
    case Mechanism::kLatentAttention: return check_latent_attention(checks, layer.latent);
  }
  checks.choice("mechanism", layer.mechanism, Mechanism::kLatentAttention);
}

void check_side_attention(Checks& checks, const LayerConfig& layer) {
  if (!layer.has_side_attention) return;
  checks.require(layer.mechanism == Mechanism::kSse, "attention beside the mixer belongs to sse");
  checks.require(layer.routing.kind == Routing::kNone, "a layer with attention beside it cannot route");
  checks.require(!layer.norm_after, "a layer with attention beside it cannot have its norms after");
  check_attention(checks, layer.side_attention);
}

/// Width of the value that a layer routes.
std::int64_t routed_width(const LayerConfig& layer) {
  return layer.mechanism == Mechanism::kSdm ? std::int64_t{layer.sdm.heads} * layer.sdm.value_dim
                                            : std::int64_t{layer.delta.value_heads} * layer.delta.value_dim;
}

/// A CLER layer adds what the CLER layer below it left: both must be as wide.
Status check_side_channel(const std::vector<LayerConfig>& layers) {
  std::int64_t width = 0;
  std::size_t below = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].routing.kind != Routing::kCler) continue;
    const std::int64_t own = routed_width(layers[i]);
    if (width != 0 && width != own) {
      return Status::format_error("layer %zu: cler routes %lld values, but layer %zu below left %lld", i,
                                  static_cast<long long>(own), below, static_cast<long long>(width));
    }
    width = own;
    below = i;
  }
  return {};
}

Status check_tokenizer(const ModelDescription& d, const ModelLimits& limits) {
  const TokenizerConfig& t = d.tokenizer;
  Checks checks("tokenizer");
  checks.choice("kind", t.kind, TokenizerKind::kTiktoken);
  checks.range("bos", t.bos, -1, d.vocab_size - 1);
  checks.range("eos", t.eos, -1, d.vocab_size - 1);
  checks.require(!t.add_bos || t.bos >= 0, "add_bos without a bos token");
  for (std::int32_t token : t.stop_tokens) checks.range("a stop token", token, 0, d.vocab_size - 1);
  checks.require(t.kind != TokenizerKind::kBytes || d.vocab_size >= 256, "a byte vocabulary needs at least 256 tokens");
  checks.require(t.kind != TokenizerKind::kBytes || t.data.empty(), "a byte vocabulary has no data");
  CAIRN_TRY(checks.status());
  if (t.data.size() > kMaxTokenizerBytes) {
    return Status::limit_exceeded("tokenizer: data of %zu bytes (limit %llu)", t.data.size(),
                                  static_cast<unsigned long long>(kMaxTokenizerBytes));
  }
  const std::uint64_t metadata = d.architecture.size() + d.name.size() + t.extra.size() + t.chat_template.size();
  if (metadata > limits.max_metadata_bytes) {
    return Status::limit_exceeded("metadata of %llu bytes (limit %llu): names, chat template, tokenizer settings",
                                  static_cast<unsigned long long>(metadata),
                                  static_cast<unsigned long long>(limits.max_metadata_bytes));
  }
  if (t.stop_tokens.size() > kMaxStopTokens)
    return Status::limit_exceeded("tokenizer: more than %zu stop tokens", kMaxStopTokens);
  return {};
}

Status check_counts(const ModelDescription& d, const ModelLimits& limits) {
  if (d.layers.empty()) return Status::format_error("the model has 0 layers");
  if (d.layers.size() > limits.max_layers) {
    return Status::limit_exceeded("%zu layers (limit %u)", d.layers.size(), limits.max_layers);
  }
  if (d.vocab_size > 0 && static_cast<std::uint32_t>(d.vocab_size) > limits.max_vocab) {
    return Status::limit_exceeded("vocab_size is %d (limit %u)", d.vocab_size, limits.max_vocab);
  }
  std::uint64_t experts = 0;
  for (const LayerConfig& layer : d.layers) {
    if (layer.mlp.kind == MlpKind::kMoe && layer.mlp.expert_count > 0) {
      experts += static_cast<std::uint64_t>(layer.mlp.expert_count);
    }
  }
  if (3 * experts > limits.max_tensors) {
    return Status::limit_exceeded("%llu experts make more tensors than the limit of %u",
                                  static_cast<unsigned long long>(experts), limits.max_tensors);
  }
  return {};
}

/// Index of the first element that is not finite, or `count`.
std::uint64_t first_non_finite(const void* data, DType dtype, std::uint64_t count) {
  const auto* bytes = static_cast<const std::byte*>(data);
  for (std::uint64_t i = 0; i < count; ++i) {
    bool is_finite = true;
    std::uint16_t half = 0;
    std::uint32_t single = 0;
    std::uint64_t wide = 0;
    switch (dtype) {
      case DType::kBF16:
        std::memcpy(&half, bytes + 2 * i, 2);
        is_finite = (half & 0x7f80U) != 0x7f80U;
        break;
      case DType::kF16:
        std::memcpy(&half, bytes + 2 * i, 2);
        is_finite = (half & 0x7c00U) != 0x7c00U;
        break;
      case DType::kF32:
        std::memcpy(&single, bytes + 4 * i, 4);
        is_finite = (single & 0x7f800000U) != 0x7f800000U;
        break;
      case DType::kF64:
        std::memcpy(&wide, bytes + 8 * i, 8);
        is_finite = (wide >> 52 & 0x7ffU) != 0x7ffU;
        break;
      default: return count;
    }
    if (!is_finite) return i;
  }
  return count;
}

}  // namespace

ModelLimits ModelLimits::from(const cairn_limits* limits) {
  ModelLimits result;
  if (!limits) return result;
  if (limits->max_layers) result.max_layers = limits->max_layers;
  if (limits->max_tensors) result.max_tensors = limits->max_tensors;
  if (limits->max_vocab) result.max_vocab = limits->max_vocab;
  if (limits->max_tensor_bytes) result.max_tensor_bytes = limits->max_tensor_bytes;
  if (limits->max_metadata_bytes) result.max_metadata_bytes = limits->max_metadata_bytes;
  if (limits->max_snapshot_bytes) result.max_snapshot_bytes = limits->max_snapshot_bytes;
  return result;
}

Status validate(const ModelDescription& description) { return validate(description, ModelLimits{}); }

Status validate(const ModelDescription& description, const ModelLimits& limits) {
  CAIRN_TRY(check_counts(description, limits));
  CAIRN_TRY(check_text(description.architecture, "architecture", kMaxNameBytes));
  CAIRN_TRY(check_text(description.name, "name", kMaxNameBytes));
  Checks model("model");
  model.range("model_dim", description.model_dim, 1, kMaxWidth);
  model.range("vocab_size", description.vocab_size, 1, INT32_MAX);
  model.range("trained_tokens", description.trained_tokens, 0, INT64_MAX);
  model.positive("norm_eps", description.norm_eps, 1);
  CAIRN_TRY(model.status());
  for (std::size_t i = 0; i < description.layers.size(); ++i) {
    const LayerConfig& layer = description.layers[i];
    Checks checks("layer " + std::to_string(i) + " (" + mechanism_name(layer.mechanism) + ")");
    check_mixer(checks, layer);
    check_side_attention(checks, layer);
    checks.choice("output norm", layer.output.norm, NormKind::kLayerNorm);
    checks.choice("output gate", layer.output.gate, GateKind::kSigmoid);
    checks.positive("output eps", layer.output.eps, 1);
    check_routing(checks, layer);
    check_mlp(checks, layer.mlp);
    CAIRN_TRY(checks.status());
  }
  CAIRN_TRY(check_side_channel(description.layers));
  return check_tokenizer(description, limits);
}

Status check_finite(const ModelDescription& description) {
  for (const TensorEntry& tensor : description.tensors) {
    const bool is_quantized = tensor.dtype == DType::kI8 || tensor.dtype == DType::kI4;
    const void* data = is_quantized ? tensor.scales : tensor.data;
    const DType dtype = is_quantized ? DType::kF32 : tensor.dtype;
    const std::uint64_t bytes = is_quantized ? tensor.scales_bytes : tensor.size_bytes;
    const int bits = dtype_bits(dtype);
    if (bits < 8) continue;
    const std::uint64_t count = bytes / (static_cast<std::uint64_t>(bits) / 8);
    const std::uint64_t found = first_non_finite(data, dtype, count);
    if (found < count) {
      return Status::error(CAIRN_STATUS_NUMERIC, "tensor '%s': %s %llu is not finite", tensor.name.c_str(),
                           is_quantized ? "scale" : "element", static_cast<unsigned long long>(found));
    }
    if (!tensor.name.ends_with(".a_log")) continue;
    std::vector<float> values(count);
    if (!convert_to_f32(data, dtype, count, values.data())) continue;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (!std::isfinite(std::exp(values[i]))) {
        return Status::error(CAIRN_STATUS_NUMERIC, "tensor '%s': element %llu is %g, and its exponential is not finite",
                             tensor.name.c_str(), static_cast<unsigned long long>(i), static_cast<double>(values[i]));
      }
    }
  }
  return {};
}

}  // namespace cairn
