// The tensors that a description needs.
#include <algorithm>

#include "runtime/model/container_format.h"
#include "runtime/model/model_description.h"
#include "runtime/support/checked_math.h"

namespace cairn {
namespace {

using Shape = std::vector<std::int64_t>;

/// Collects the tensors of a model; `matrix` for linear layers that may be quantised. Decay, beta and routing
/// projections are `plain`: they are small, and everything depends on them.
class Collector {
 public:
  explicit Collector(const ModelDescription& d) : d_(d) {}

  void begin_layer(std::size_t index) { prefix_ = "layers." + std::to_string(index) + "."; }
  void end_layers() { prefix_.clear(); }
  void matrix(const std::string& name, std::int64_t out, std::int64_t in) { add(name + ".weight", {out, in}, true); }
  void plain(const std::string& name, std::int64_t out, std::int64_t in) { add(name + ".weight", {out, in}, false); }
  void vector(const std::string& name, std::int64_t size) { add(name, {size}, false); }
  void tensor(const std::string& name, Shape shape) { add(name, std::move(shape), false); }
  /// Only when the model has it.
  void optional_vector(const std::string& name, std::int64_t size) {
    if (d_.find(prefix_ + name)) vector(name, size);
  }
  std::vector<TensorSpec> take() {
    std::sort(specs_.begin(), specs_.end(), [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
    return std::move(specs_);
  }

 private:
  void add(const std::string& name, Shape shape, bool is_matrix) {
    specs_.push_back({prefix_ + name, std::move(shape), is_matrix});
  }
  const ModelDescription& d_;
  std::string prefix_;
  std::vector<TensorSpec> specs_;
};

/// Norm, gate and output projection of a recurrent mixer.
void collect_output(Collector& c, const OutputConfig& output, std::int64_t dim, std::int64_t heads,
                    std::int64_t value_dim, std::int64_t gate_rank) {
  const std::int64_t width = heads * value_dim;
  c.vector("mixer.norm.weight", value_dim);
  if (output.norm == NormKind::kLayerNorm) c.vector("mixer.norm.bias", value_dim);
  c.matrix("mixer.o", dim, width);
  if (output.gate == GateKind::kNone) return;
  if (gate_rank > 0) {
    c.matrix("mixer.z_down", gate_rank, dim);
    c.matrix("mixer.z_up", width, gate_rank);
    c.optional_vector("mixer.z_up.bias", width);
  } else {
    c.matrix("mixer.z", width, dim);
  }
}

/// A decay or gate projection: low rank or full.
void collect_low_rank(Collector& c, const std::string& name, std::int64_t out, std::int64_t in, std::int64_t rank) {
  if (rank > 0) {
    c.plain(name + "_down", rank, in);
    c.plain(name + "_up", out, rank);
  } else {
    c.plain(name, out, in);
  }
}

void collect_delta_rule(Collector& c, const LayerConfig& layer, std::int64_t dim) {
  const DeltaRuleConfig& config = layer.delta;
  const std::int64_t key_width = std::int64_t{config.key_heads} * config.key_dim;
  const std::int64_t value_width = std::int64_t{config.value_heads} * config.value_dim;
  const std::int64_t row_width = std::int64_t{config.value_heads} * config.key_dim;
  c.matrix("mixer.q", key_width, dim);
  c.matrix("mixer.k", key_width, dim);
  c.matrix("mixer.v", value_width, dim);
  const std::pair<const char*, std::int64_t> convs[] = {
      {"mixer.conv_q", key_width}, {"mixer.conv_k", key_width}, {"mixer.conv_v", value_width}};
  for (const auto& [name, channels] : convs) {
    if (config.conv_kernel > 0) c.plain(name, channels, config.conv_kernel);
    if (config.conv_bias) c.vector(std::string(name) + ".bias", channels);
  }
  if (layer.mechanism == Mechanism::kGdn2) {
    c.matrix("mixer.b", row_width, dim);
    c.matrix("mixer.w", value_width, dim);
  } else if (config.has_beta) {
    c.plain("mixer.b", config.value_heads, dim);
  }
  if (layer.mechanism != Mechanism::kDeltaNet) {
    const bool has_rows = layer.mechanism != Mechanism::kGdn;
    const std::int64_t decays = has_rows ? row_width : config.value_heads;
    collect_low_rank(c, "mixer.a", decays, dim, has_rows ? config.decay_rank : 0);
    c.vector("mixer.a_log", config.value_heads);
    c.vector("mixer.dt_bias", decays);
  }
  collect_output(c, layer.output, dim, config.value_heads, config.value_dim, config.gate_rank);
}

void collect_sse_gates(Collector& c, const SseConfig& config, std::int64_t dim, const std::string& prefix) {
  if (config.transition == SseTransition::kGdn) {
    c.plain(prefix + "a", config.heads, dim);
    c.vector(prefix + "a_log", config.heads);
    c.vector(prefix + "dt_bias", config.heads);
  } else {
    const std::int64_t rows = std::int64_t{config.heads} * config.key_dim;
    collect_low_rank(c, prefix + "a", rows, dim, config.decay_rank);
    c.vector(prefix + "a_bias", rows);
  }
  if (config.transition != SseTransition::kGla) c.plain(prefix + "b", config.heads, dim);
}

void collect_sse(Collector& c, const LayerConfig& layer, std::int64_t dim) {
  const SseConfig& config = layer.sse;
  const std::int64_t key_width = std::int64_t{config.heads} * config.key_dim;
  c.plain("mixer.e", config.partitions, dim);
  c.matrix("mixer.q", key_width, dim);
  c.matrix("mixer.k", key_width, dim);
  c.matrix("mixer.v", std::int64_t{config.heads} * config.value_dim, dim);
  if (config.adapter_rank > 0) {
    collect_low_rank(c, "mixer.q", key_width, dim, config.adapter_rank);
    collect_low_rank(c, "mixer.k", key_width, dim, config.adapter_rank);
  }
  collect_sse_gates(c, config, dim, "mixer.");
  if (config.separate_shared_gates) collect_sse_gates(c, config, dim, "mixer.shared_");
  if (config.shared_conv_kernel > 0) {
    c.plain("mixer.conv_q", key_width, config.shared_conv_kernel);
    c.plain("mixer.conv_k", key_width, config.shared_conv_kernel);
  }
  collect_output(c, layer.output, dim, config.heads, config.value_dim, config.gate_rank);
}

void collect_sdm(Collector& c, const LayerConfig& layer, std::int64_t dim) {
  const SdmConfig& config = layer.sdm;
  const std::int64_t heads = config.heads, scores = heads * 2 * config.side, width = heads * config.value_dim;
  c.matrix("mixer.q", scores, dim);
  c.matrix("mixer.k", scores, dim);
  c.matrix("mixer.v", width, dim);
  c.plain("mixer.a", heads, dim);
  c.plain("mixer.b", heads, dim);
  c.vector("mixer.a_log", heads);
  c.vector("mixer.dt_bias", heads);
  const std::int64_t slots = std::int64_t{config.side} * config.side;
  if (config.learned_initial) c.tensor("mixer.initial", {heads, slots, config.value_dim});
  collect_output(c, layer.output, dim, heads, config.value_dim, 0);
  if (!config.has_bias) return;
  c.vector("mixer.q.bias", scores);
  c.vector("mixer.k.bias", scores);
  c.vector("mixer.v.bias", width);
  c.vector("mixer.a.bias", heads);
  c.vector("mixer.b.bias", heads);
  c.vector("mixer.o.bias", dim);
  if (layer.output.gate != GateKind::kNone) c.vector("mixer.z.bias", width);
}

void collect_attention(Collector& c, const AttentionConfig& config, std::int64_t dim, const std::string& prefix) {
  const std::int64_t query_width = std::int64_t{config.query_heads} * config.head_dim;
  const std::int64_t kv_width = std::int64_t{config.kv_heads} * config.head_dim;
  c.matrix(prefix + "q", query_width, dim);
  c.matrix(prefix + "k", kv_width, dim);
  c.matrix(prefix + "v", kv_width, dim);
  c.matrix(prefix + "o", dim, query_width);
  if (config.output_gate) c.matrix(prefix + "z", query_width, dim);
  if (config.qk_norm || config.qk_norm_full) {
    c.vector(prefix + "q_norm.weight", config.qk_norm_full ? query_width : config.head_dim);
    c.vector(prefix + "k_norm.weight", config.qk_norm_full ? kv_width : config.head_dim);
  }
  if (config.qkv_bias) {
    c.vector(prefix + "q.bias", query_width);
    c.vector(prefix + "k.bias", kv_width);
    c.vector(prefix + "v.bias", kv_width);
  }
}

void collect_latent_attention(Collector& c, const LatentAttentionConfig& config, std::int64_t dim) {
  const std::int64_t heads = config.heads;
  c.matrix("mixer.q", heads * (config.nope_dim + config.shared_dim), dim);
  c.matrix("mixer.kv_a", std::int64_t{config.rank} + config.shared_dim, dim);
  c.vector("mixer.kv_a_norm.weight", config.rank);
  c.matrix("mixer.kv_b", heads * (config.nope_dim + config.value_dim), config.rank);
  c.matrix("mixer.o", dim, heads * config.value_dim);
}

void collect_routing(Collector& c, const LayerConfig& layer, std::int64_t dim) {
  std::int64_t heads = layer.delta.value_heads, value_dim = layer.delta.value_dim;
  if (layer.mechanism == Mechanism::kSse) heads = layer.sse.heads, value_dim = layer.sse.value_dim;
  if (layer.mechanism == Mechanism::kSdm) heads = layer.sdm.heads, value_dim = layer.sdm.value_dim;
  const RoutingConfig& config = layer.routing;
  if (config.kind == Routing::kNone) return;
  if (config.kind == Routing::kCler) {
    switch (config.gamma) {
      case RoutingGamma::kScalar: return c.vector("routing.gamma", 1);
      case RoutingGamma::kHead: return c.vector("routing.gamma", heads);
      case RoutingGamma::kChannel: return c.tensor("routing.gamma", {heads, value_dim});
    }
  }
  if (config.rank > 0) {
    c.matrix("routing.down", config.rank, heads * value_dim);
    c.matrix("routing.up", dim, config.rank);
  } else {
    c.matrix("routing.p", dim, heads * value_dim);
  }
}

void collect_swiglu(Collector& c, const std::string& name, std::int64_t hidden, std::int64_t dim) {
  c.matrix(name + ".gate", hidden, dim);
  c.matrix(name + ".up", hidden, dim);
  c.matrix(name + ".down", dim, hidden);
}

void collect_mlp(Collector& c, const MlpConfig& config, std::int64_t dim) {
  if (config.kind == MlpKind::kSwiglu) return collect_swiglu(c, "mlp", config.hidden_dim, dim);
  c.plain("mlp.router", config.expert_count, dim);
  if (config.correction_bias) c.vector("mlp.router_bias", config.expert_count);
  for (std::int32_t e = 0; e < config.expert_count; ++e) {
    collect_swiglu(c, "mlp.experts." + std::to_string(e), config.hidden_dim, dim);
  }
  if (config.shared_hidden_dim > 0) collect_swiglu(c, "mlp.shared", config.shared_hidden_dim, dim);
  if (config.shared_gate) c.plain("mlp.shared_gate", 1, dim);
}

void collect_layer(Collector& c, const LayerConfig& layer, std::int64_t dim) {
  c.vector("norm1.weight", dim);
  switch (layer.mechanism) {
    case Mechanism::kDeltaNet:
    case Mechanism::kGdn:
    case Mechanism::kKda:
    case Mechanism::kGdn2: collect_delta_rule(c, layer, dim); break;
    case Mechanism::kSse: collect_sse(c, layer, dim); break;
    case Mechanism::kSdm: collect_sdm(c, layer, dim); break;
    case Mechanism::kSoftmaxAttention: collect_attention(c, layer.attention, dim, "mixer."); break;
    case Mechanism::kLatentAttention: collect_latent_attention(c, layer.latent, dim); break;
  }
  if (layer.has_side_attention) {
    collect_attention(c, layer.side_attention, dim, "side.");
    c.vector("merge_mixer.weight", dim);
    c.vector("merge_side.weight", dim);
  }
  collect_routing(c, layer, dim);
  if (layer.mlp.kind == MlpKind::kNone) return;
  c.vector("norm2.weight", dim);
  collect_mlp(c, layer.mlp, dim);
}

/// Element type and bytes of one tensor.
Status check_storage(const TensorEntry& tensor, bool is_matrix) {
  const char* name = tensor.name.c_str();
  CAIRN_TRY_ASSIGN(const std::uint64_t size, section_size_bytes(tensor.name, tensor.dtype, tensor.shape, false));
  if (tensor.size_bytes != size) {
    return Status::format_error("tensor '%s': %llu bytes, but %s of %s take %llu", name,
                                static_cast<unsigned long long>(tensor.size_bytes), shape_text(tensor.shape).c_str(),
                                dtype_name(tensor.dtype), static_cast<unsigned long long>(size));
  }
  switch (tensor.dtype) {
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16: break;
    case DType::kI8:
    case DType::kI4: {
      if (!is_matrix)
        return Status::format_error("tensor '%s': element type %s is not allowed here", name, dtype_name(tensor.dtype));
      const bool is_i4 = tensor.dtype == DType::kI4;
      const std::int64_t group = is_i4 ? tensor.group_size : tensor.shape[1];
      if (is_i4 && group != 32 && group != 64) {
        return Status::format_error("tensor '%s': groups of %lld (32 or 64)", name, static_cast<long long>(group));
      }
      if (!is_i4 && tensor.group_size != 0) return Status::format_error("tensor '%s': i8 has no groups", name);
      if (tensor.shape[1] % group != 0) {
        return Status::format_error("tensor '%s': groups of %lld do not divide rows of %lld", name,
                                    static_cast<long long>(group), static_cast<long long>(tensor.shape[1]));
      }
      const auto scales =
          static_cast<std::uint64_t>(tensor.shape[0]) * static_cast<std::uint64_t>(tensor.shape[1] / group) * 4;
      if (!tensor.scales || tensor.scales_bytes != scales) {
        return Status::format_error("tensor '%s': %llu bytes of scales (expected %llu)", name,
                                    static_cast<unsigned long long>(tensor.scales_bytes),
                                    static_cast<unsigned long long>(scales));
      }
      return {};
    }
    default:
      return Status::format_error("tensor '%s': element type %s is not allowed (f32, bf16, f16%s)", name,
                                  dtype_name(tensor.dtype), is_matrix ? ", i8, i4" : "");
  }
  if (tensor.scales) return Status::format_error("tensor '%s': scales without quantised elements", name);
  return {};
}

}  // namespace

std::vector<TensorSpec> expected_tensors(const ModelDescription& description) {
  Collector c(description);
  const std::int64_t dim = description.model_dim;
  c.plain("embed", description.vocab_size, dim);
  c.vector("final_norm.weight", dim);
  if (!description.tied_embedding) c.matrix("head", description.vocab_size, dim);
  for (std::size_t i = 0; i < description.layers.size(); ++i) {
    c.begin_layer(i);
    collect_layer(c, description.layers[i], dim);
  }
  c.end_layers();
  return c.take();
}

Status check_tensors(const ModelDescription& description) {
  const std::vector<TensorSpec> specs = expected_tensors(description);
  const auto& tensors = description.tensors;
  std::size_t s = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::string& name = tensors[t].name;
    if (t > 0 && !(tensors[t - 1].name < name)) {
      return Status::format_error("tensor '%s' is there twice, or the tensors are not sorted", name.c_str());
    }
    if (s == specs.size() || name < specs[s].name) {
      return Status::format_error("tensor '%s' is not part of this model", name.c_str());
    }
    if (specs[s].name < name) return Status::format_error("tensor '%s' is missing", specs[s].name.c_str());
    if (tensors[t].shape != specs[s].shape) {
      return Status::format_error("tensor '%s' has shape %s (expected %s)", name.c_str(),
                                  shape_text(tensors[t].shape).c_str(), shape_text(specs[s].shape).c_str());
    }
    CAIRN_TRY(check_storage(tensors[t], specs[s].is_matrix));
    if (!tensors[t].data) return Status::format_error("tensor '%s' has no data", name.c_str());
    ++s;
  }
  if (s < specs.size()) return Status::format_error("tensor '%s' is missing", specs[s].name.c_str());
  return {};
}

}  // namespace cairn
