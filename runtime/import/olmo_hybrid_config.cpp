#include "runtime/import/olmo_hybrid_config.h"

namespace cairn {
namespace {

LayerConfig read_gdn(ConfigReader& reader, std::int32_t model_dim, std::int32_t heads) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kGdn;
  DeltaRuleConfig& c = layer.delta;
  c.key_heads = reader.int32("linear_num_key_heads", heads);
  c.value_heads = reader.int32("linear_num_value_heads", heads);
  const std::int64_t default_key = c.key_heads > 0 ? std::int64_t{3} * model_dim / (std::int64_t{4} * c.key_heads) : 0;
  c.key_dim = reader.int32("linear_key_head_dim", static_cast<std::int32_t>(default_key));
  c.value_dim = reader.int32("linear_value_head_dim", c.key_dim < (1 << 30) ? 2 * c.key_dim : -1);
  c.conv_kernel = reader.int32("linear_conv_kernel_dim", 4);
  c.beta_scale = reader.boolean("linear_allow_neg_eigval", true) ? 2.0F : 1.0F;
  reader.expect("linear_use_gate", true);
  reader.ignore({"linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor", "linear_dt_max", "linear_dt_min"});
  layer.output.eps = 1e-5F;  // the default of the layer's class, whatever rms_norm_eps says
  return layer;
}

LayerConfig read_attention(ConfigReader& reader, std::int32_t model_dim, std::int32_t heads) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kSoftmaxAttention;
  AttentionConfig& c = layer.attention;
  c.query_heads = heads;
  c.kv_heads = reader.int32("num_key_value_heads", heads);
  c.head_dim = reader.int32("head_dim", heads > 0 ? model_dim / heads : 0);
  const RopeFields rope = read_rope(reader, 0, 1);
  c.rotary_dim = rope.theta > 0 ? c.head_dim : 0;
  if (rope.theta > 0) c.rope_theta = rope.theta;
  if (rope.partial_factor != 1) {
    reader.fail(Status::unsupported("%s: field 'partial_rotary_factor' is %g (supported: 1)", reader.where().c_str(),
                                    static_cast<double>(rope.partial_factor)));
  }
  c.qk_norm_full = true;
  layer.norm_after = true;
  return layer;
}

Status take_gdn(CheckpointSource& source, const WantedTensor& wanted, const DeltaRuleConfig& c) {
  const std::string stem = "linear_attn.", part = wanted.part.substr(6);
  if (part.starts_with("conv_")) {
    return source.take_convolution(wanted, {stem + part[5] + "_conv1d.weight"}, stem + "conv1d.weight", c);
  }
  if (part == "a_log") return source.take(wanted, {stem + "A_log"});
  if (part == "dt_bias") return source.take(wanted, {stem + "dt_bias"});
  if (part == "norm.weight") return source.take(wanted, {stem + "o_norm.weight", stem + "norm.weight"});
  if (part == "o.weight") return source.take(wanted, {stem + "o_proj.weight", stem + "out_proj.weight"});
  const char letter = part == "z.weight" ? 'g' : part[0];
  return source.take(wanted, {stem + letter + "_proj.weight", stem + "w_" + letter + ".weight"});
}

/// The same name means another norm in the other kind of layer.
Status take_norm(CheckpointSource& source, const WantedTensor& wanted, bool is_attention) {
  const bool is_first = wanted.part == "norm1.weight";
  if (is_attention) {
    if (is_first) return source.take(wanted, {"post_attention_layernorm.weight", "feedforward_layer_norm.weight"});
    return source.take(wanted, {"post_feedforward_layernorm.weight"});
  }
  if (is_first) return source.take(wanted, {"input_layernorm.weight", "attention_layer_norm.weight"});
  return source.take(wanted, {"post_attention_layernorm.weight", "feedforward_layer_norm.weight"});
}

Status take_tensor(CheckpointSource& source, const WantedTensor& wanted, const ModelDescription& d) {
  const std::string& part = wanted.part;
  if (part == "embed.weight") return source.take(wanted, {"embed_tokens.weight"});
  if (part == "final_norm.weight") return source.take(wanted, {"norm.weight"});
  if (wanted.layer < 0) return source.take(WantedTensor{wanted.spec, -1, part, ""}, {"lm_head.weight"});
  const LayerConfig& layer = d.layers[static_cast<std::size_t>(wanted.layer)];
  const bool is_attention = layer.mechanism == Mechanism::kSoftmaxAttention;
  if (part.starts_with("norm")) return take_norm(source, wanted, is_attention);
  if (part.starts_with("mlp.")) return take_mlp(source, wanted, "mlp.", layer.mlp);
  if (!is_attention) return take_gdn(source, wanted, layer.delta);
  const std::string name = part.substr(6);
  if (name.find("_norm") != std::string::npos) return source.take(wanted, {"self_attn." + name});
  return source.take(wanted, {"self_attn." + name.substr(0, 1) + "_proj.weight"});
}

}  // namespace

Status import_olmo_hybrid(ImportContext& context) {
  ModelDescription& d = context.description;
  CAIRN_TRY(refuse_reexports(context));
  ConfigReader reader(context.config, "config.json");
  read_generic_fields(reader);
  reader.expect("hidden_act", "silu");
  reader.expect("attention_bias", false);
  d.architecture = "olmo_hybrid";
  d.model_dim = reader.int32("hidden_size");
  d.vocab_size = reader.int32("vocab_size");
  d.norm_eps = reader.number("rms_norm_eps", 1e-6F);
  d.tied_embedding = is_head_tied(context, reader.boolean("tie_word_embeddings", false));
  d.trained_tokens = reader.integer("max_position_embeddings", 0);
  const std::int32_t heads = reader.int32("num_attention_heads");
  LayerConfig gdn = read_gdn(reader, d.model_dim, heads), attention = read_attention(reader, d.model_dim, heads);
  gdn.mlp.hidden_dim = attention.mlp.hidden_dim = reader.int32("intermediate_size");
  for (const bool is_full : read_layer_types(reader, reader.int32("num_hidden_layers"), 4, context.limits)) {
    d.layers.push_back(is_full ? attention : gdn);
  }
  reader.check(read_tokenizer_files(context, reader));
  CAIRN_TRY(reader.finish());
  CAIRN_TRY(validate(d, context.limits));
  CheckpointSource source(context, "model.");
  return source.take_all([&](const WantedTensor& wanted) { return take_tensor(source, wanted, d); });
}

}  // namespace cairn
