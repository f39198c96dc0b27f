#include "runtime/import/fla_config.h"

#include <cmath>

namespace cairn {
namespace {

/// whole * factor, when that is a whole number as far as a float can say (1.2 is not quite 12 / 10); else -1, which
/// validate() refuses by name.
std::int32_t scaled(std::int64_t whole, float factor) {
  const double product = static_cast<double>(whole) * static_cast<double>(factor), rounded = std::round(product);
  const bool is_whole = std::abs(product - rounded) <= 1e-6 * rounded;
  return product >= 0 && product < 1e9 && is_whole ? static_cast<std::int32_t>(rounded) : -1;
}

std::int32_t divided(std::int64_t whole, std::int64_t parts) {
  return parts > 0 && whole % parts == 0 ? static_cast<std::int32_t>(whole / parts) : -1;
}

void read_convolution(ConfigReader& reader, DeltaRuleConfig& c) {
  c.conv_kernel = reader.int32("conv_size", 4);
  if (!reader.boolean("use_short_conv", true)) c.conv_kernel = 0;
  c.conv_bias = reader.boolean("conv_bias", false);
}

LayerConfig read_gated_deltanet(ConfigReader& reader, float eps) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kGdn;
  DeltaRuleConfig& c = layer.delta;
  c.key_heads = reader.int32("num_heads", 6);
  c.value_heads = reader.int32("num_v_heads", c.key_heads);
  c.key_dim = reader.int32("head_dim", 256);
  c.value_dim = scaled(c.key_dim, reader.number("expand_v", 2));
  c.beta_scale = reader.boolean("allow_neg_eigval", false) ? 2.0F : 1.0F;
  read_convolution(reader, c);
  layer.output = {NormKind::kRms, reader.boolean("use_gate", true) ? GateKind::kSilu : GateKind::kNone, eps};
  return layer;
}

LayerConfig read_delta_net(ConfigReader& reader, std::int32_t model_dim, float eps) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kDeltaNet;
  DeltaRuleConfig& c = layer.delta;
  c.key_heads = c.value_heads = reader.int32("num_heads", 16);
  c.key_dim = divided(scaled(model_dim, reader.number("expand_k", 1)), c.key_heads);
  c.value_dim = divided(scaled(model_dim, reader.number("expand_v", 1)), c.key_heads);
  c.has_beta = reader.boolean("use_beta", true);
  c.beta_scale = reader.boolean("allow_neg_eigval", false) ? 2.0F : 1.0F;
  read_convolution(reader, c);
  const std::string activation = reader.text("qk_activation", "silu"), norm = reader.text("qk_norm", "l2");
  if (activation == "relu")
    c.qk_activation = QkActivation::kRelu;
  else if (activation == "elu")
    c.qk_activation = QkActivation::kEluPlusOne;
  else if (activation == "identity")
    c.qk_activation = QkActivation::kIdentity;
  else if (activation != "silu")
    reader.fail(Status::unsupported("%s: field 'qk_activation' is '%.60s' (supported: silu, relu, elu, identity)",
                                    reader.where().c_str(), activation.c_str()));
  if (norm == "sum")
    c.qk_norm = QkNorm::kSum;
  else if (norm != "l2")
    reader.fail(Status::unsupported("%s: field 'qk_norm' is '%.60s' (supported: l2, sum)", reader.where().c_str(),
                                    norm.c_str()));
  reader.expect("use_output_norm", true);
  layer.output = {NormKind::kRms, reader.boolean("use_gate", false) ? GateKind::kSilu : GateKind::kNone, eps};
  return layer;
}

LayerConfig read_kda(ConfigReader& reader, float eps) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kKda;
  DeltaRuleConfig& c = layer.delta;
  c.key_heads = reader.int32("num_heads", 16);
  c.value_heads = reader.int32("num_v_heads", c.key_heads);
  c.key_dim = reader.int32("head_dim", 128);
  c.value_dim = scaled(c.key_dim, reader.number("expand_v", 1));
  c.decay_rank = c.gate_rank = c.value_dim;
  c.beta_scale = reader.boolean("allow_neg_eigval", false) ? 2.0F : 1.0F;
  read_convolution(reader, c);
  if (reader.has("lower_bound") && reader.boolean("safe_gate", true)) {
    c.decay = DecayKind::kLowerBound;
    c.decay_lower_bound = reader.number("lower_bound");
  } else {
    reader.ignore({"safe_gate", "lower_bound"});
  }
  layer.output = {NormKind::kRms, GateKind::kSigmoid, eps};
  return layer;
}

/// Layers of ordinary attention among the others: one dict, or a list of them.
Status read_attention_layers(ConfigReader& reader, ModelDescription& d) {
  const nlohmann::json* attn = reader.value("attn");
  if (!attn) return {};
  std::vector<const nlohmann::json*> groups;
  if (attn->is_array()) {
    for (const nlohmann::json& group : *attn) groups.push_back(&group);
  } else {
    groups.push_back(attn);
  }
  for (const nlohmann::json* group : groups) {
    ConfigReader inner(*group, "config.json: attn");
    LayerConfig layer;
    layer.mechanism = Mechanism::kSoftmaxAttention;
    AttentionConfig& c = layer.attention;
    c.query_heads = inner.int32("num_heads");
    c.kv_heads = inner.int32("num_kv_heads", c.query_heads);
    c.head_dim = divided(d.model_dim, c.query_heads);
    c.rotary_dim = c.head_dim;
    c.rope_theta = inner.number("rope_theta", 10000);
    c.window = inner.int32("window_size", 0);
    c.qkv_bias = inner.boolean("qkv_bias", false);
    c.qk_norm = inner.boolean("qk_norm", false);
    const std::vector<std::int32_t> layers = inner.integers_or_one("layers");
    CAIRN_TRY(inner.finish());
    for (const std::int32_t index : layers) {
      if (index < 0 || static_cast<std::size_t>(index) >= d.layers.size()) {
        return Status::format_error("config.json: attn.layers names layer %d of %zu", index, d.layers.size());
      }
      layer.mlp = d.layers[static_cast<std::size_t>(index)].mlp;
      d.layers[static_cast<std::size_t>(index)] = layer;
    }
  }
  return {};
}

std::int32_t read_mlp_width(ConfigReader& reader, std::int32_t model_dim) {
  const float ratio = reader.number("hidden_ratio", 4);
  if (reader.has("intermediate_size")) return reader.int32("intermediate_size");
  reader.ignore({"intermediate_size"});
  const double width = std::floor(static_cast<double>(model_dim) * static_cast<double>(ratio) * 2 / 3);
  return width > 0 && width < 1e8 ? static_cast<std::int32_t>((static_cast<std::int64_t>(width) + 255) / 256 * 256)
                                  : -1;
}

Status take_delta_rule(CheckpointSource& source, const WantedTensor& wanted, const LayerConfig& layer) {
  const std::string stem = "attn.", part = wanted.part.substr(6);
  if (part.starts_with("conv_") && part.ends_with(".bias"))
    return source.take(wanted, {stem + part[5] + "_conv1d.bias"});
  if (part.starts_with("conv_")) {
    return source.take_convolution(wanted, {stem + part[5] + "_conv1d.weight"}, stem + "conv1d.weight", layer.delta);
  }
  if (part == "a_down.weight") return source.take(wanted, {stem + "f_proj.0.weight"});
  if (part == "a_up.weight") return source.take(wanted, {stem + "f_proj.1.weight"});
  if (part == "z_down.weight") return source.take(wanted, {stem + "g_proj.0.weight"});
  if (part == "z_up.weight") return source.take(wanted, {stem + "g_proj.1.weight"});
  if (part == "a_log") return source.take(wanted, {stem + "A_log"});
  if (part == "dt_bias") return source.take_flat(wanted, {stem + "dt_bias"}, layer.delta.value_heads);
  if (part == "norm.weight") return source.take(wanted, {stem + "o_norm.weight"});
  if (part == "z.weight") return source.take(wanted, {stem + "g_proj.weight"});
  return source.take(wanted, {stem + part[0] + "_proj.weight"});
}

Status take_tensor(CheckpointSource& source, const WantedTensor& wanted, const ModelDescription& d) {
  const std::string& part = wanted.part;
  if (part == "embed.weight") return source.take(wanted, {"embeddings.weight"});
  if (part == "final_norm.weight") return source.take(wanted, {"norm.weight"});
  if (wanted.layer < 0) return source.take(WantedTensor{wanted.spec, -1, part, ""}, {"lm_head.weight"});
  if (part == "norm1.weight") return source.take(wanted, {"attn_norm.weight"});
  if (part == "norm2.weight") return source.take(wanted, {"mlp_norm.weight"});
  const LayerConfig& layer = d.layers[static_cast<std::size_t>(wanted.layer)];
  if (part.starts_with("mlp.")) return take_mlp(source, wanted, "mlp.", layer.mlp);
  if (layer.mechanism != Mechanism::kSoftmaxAttention) return take_delta_rule(source, wanted, layer);
  const std::string name = part.substr(6);
  if (name.find("_norm") != std::string::npos) return source.take(wanted, {"attn." + name});
  return source.take(wanted, {"attn." + name.substr(0, 1) + "_proj" + name.substr(1)});  // q.weight, q.bias
}

/// The bias of g_proj's second layer has no switch in the config: it is there or not. Taken beside the needed tensors.
Status take_gate_biases(ImportContext& context, const ModelDescription& d) {
  for (std::size_t i = 0; i < d.layers.size(); ++i) {
    const LayerConfig& layer = d.layers[i];
    if (layer.mechanism != Mechanism::kKda) continue;
    const std::string name = "layers." + std::to_string(i) + ".";
    const std::string source = "model." + name + "attn.g_proj.1.bias";
    if (!context.tensors.has(source)) continue;
    CAIRN_TRY(context.tensors.take(source, name + "mixer.z_up.bias",
                                   {std::int64_t{layer.delta.value_heads} * layer.delta.value_dim}));
  }
  return {};
}

Status import_with(ImportContext& context, const char* architecture) {
  ModelDescription& d = context.description;
  CAIRN_TRY(refuse_reexports(context));
  ConfigReader reader(context.config, "config.json");
  read_generic_fields(reader);
  reader.ignore(
      {"attn_mode", "fuse_norm", "fuse_swiglu", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp"});
  reader.expect("attnres_block_size", nullptr);
  const std::string activation = reader.text("hidden_act", "swish");
  if (activation != "swish" && activation != "silu") {
    return Status::unsupported("config.json: field 'hidden_act' is '%.60s' (supported: swish)", activation.c_str());
  }
  d.architecture = architecture;
  d.model_dim = reader.int32("hidden_size");
  d.vocab_size = reader.int32("vocab_size");
  d.norm_eps = reader.number("norm_eps", 1e-6F);
  d.tied_embedding = is_head_tied(context, reader.boolean("tie_word_embeddings", false));
  d.trained_tokens = reader.integer("max_position_embeddings", 0);
  const std::string kind = architecture;
  LayerConfig layer = kind == "gated_deltanet" ? read_gated_deltanet(reader, d.norm_eps)
                      : kind == "kda"          ? read_kda(reader, d.norm_eps)
                                               : read_delta_net(reader, d.model_dim, d.norm_eps);
  layer.mlp.hidden_dim = read_mlp_width(reader, d.model_dim);
  const std::int32_t count = reader.int32("num_hidden_layers");
  if (count < 1 || static_cast<std::uint32_t>(count) > context.limits.max_layers) {
    reader.fail(
        Status::limit_exceeded("config.json: num_hidden_layers is %d (1 to %u)", count, context.limits.max_layers));
  } else {
    d.layers.assign(static_cast<std::size_t>(count), layer);
  }
  reader.check(read_attention_layers(reader, d));
  reader.check(read_tokenizer_files(context, reader));
  CAIRN_TRY(reader.finish());
  CAIRN_TRY(validate(d, context.limits));
  CheckpointSource source(context, "model.");
  CAIRN_TRY(source.take_all([&](const WantedTensor& wanted) { return take_tensor(source, wanted, d); }));
  return take_gate_biases(context, d);
}

}  // namespace

Status import_fla_gated_deltanet(ImportContext& context) { return import_with(context, "gated_deltanet"); }
Status import_fla_delta_net(ImportContext& context) { return import_with(context, "delta_net"); }
Status import_fla_kda(ImportContext& context) { return import_with(context, "kda"); }

}  // namespace cairn
