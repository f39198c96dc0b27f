#include "runtime/import/qwen3_5_config.h"

#include <cmath>

namespace cairn {
namespace {

/// Layer kinds are told apart by position, so every layer takes its shape from these two.
LayerConfig read_gdn(ConfigReader& reader, float eps) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kGdn;
  layer.delta.key_heads = reader.int32("linear_num_key_heads", 16);
  layer.delta.value_heads = reader.int32("linear_num_value_heads", 32);
  layer.delta.key_dim = reader.int32("linear_key_head_dim", 128);
  layer.delta.value_dim = reader.int32("linear_value_head_dim", 128);
  layer.delta.conv_kernel = reader.int32("linear_conv_kernel_dim", 4);
  layer.output.eps = eps;
  return layer;
}

LayerConfig read_attention(ConfigReader& reader, std::int32_t kv_heads) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kSoftmaxAttention;
  AttentionConfig& c = layer.attention;
  c.query_heads = reader.int32("num_attention_heads");
  c.kv_heads = reader.int32("num_key_value_heads", kv_heads);
  c.head_dim = reader.int32("head_dim", 256);
  const RopeFields rope = read_rope(reader, 10000, 0.25F);
  c.rope_theta = rope.theta;
  const double rotary = std::floor(static_cast<double>(rope.partial_factor) * c.head_dim + 1e-3);
  c.rotary_dim = rotary >= 0 && rotary <= c.head_dim ? static_cast<std::int32_t>(rotary) : -1;  // -1: validate() tells
  c.qk_norm = true;
  c.output_gate = true;
  return layer;
}

/// Rows of a projection whose heads hold [query | gate], or of one that is plain.
Status take_interleaved_query(CheckpointSource& source, const WantedTensor& wanted, const AttentionConfig& c,
                              bool is_gate) {
  const std::int64_t dim = c.head_dim;
  return source.gather_rows(
      wanted, "self_attn.q_proj.weight", 2 * c.query_heads * dim,
      [dim, is_gate](std::int64_t row) { return row / dim * 2 * dim + (is_gate ? dim : 0) + row % dim; });
}

/// The projections of Qwen3.5: q, k and v one after the other, the rest apart.
Status take_gdn(CheckpointSource& source, const WantedTensor& wanted, const DeltaRuleConfig& c) {
  const std::int64_t key_width = std::int64_t{c.key_heads} * c.key_dim,
                     value_width = std::int64_t{c.value_heads} * c.value_dim;
  const std::string part = wanted.part.substr(6);
  const Names qkv = {"linear_attn.in_proj_qkv.weight"};
  if (part == "q.weight") return source.take_rows(wanted, qkv, 2 * key_width + value_width, 0);
  if (part == "k.weight") return source.take_rows(wanted, qkv, 2 * key_width + value_width, key_width);
  if (part == "v.weight") return source.take_rows(wanted, qkv, 2 * key_width + value_width, 2 * key_width);
  if (part == "z.weight") return source.take(wanted, {"linear_attn.in_proj_z.weight"});
  if (part == "a.weight") return source.take(wanted, {"linear_attn.in_proj_a.weight"});
  return source.take(wanted, {"linear_attn.in_proj_b.weight"});
}

/// MLX adds the 1 of its norms to their weights, and stores convolutions as [channels, n, 1]: that tells it
/// (public-models.md 7, trap 1).
Status read_layout(const ImportContext& context, ModelDescription& d) {
  std::string plain, centered;
  for (const auto& [name, entry] : context.tensors.sources()) {
    if (!name.ends_with("linear_attn.conv1d.weight") || name.starts_with("mtp.")) continue;
    const bool is_mlx = entry.shape.size() == 3 && entry.shape[1] > 1 && entry.shape[2] == 1;
    (is_mlx ? plain : centered) = name;
  }
  d.norm_zero_centered = plain.empty();
  if (plain.empty() || centered.empty()) return {};
  return Status::format_error("tensor '%s' has the layout of MLX, but '%s' has not", plain.c_str(), centered.c_str());
}

struct TextPart {
  const nlohmann::json& config;
  std::string where, root, head;
};

/// The text model's own fields and names, alone or inside a vision-language checkpoint.
TextPart find_text(ImportContext& context) {
  const auto inner = context.config.find("text_config");
  const bool is_container = inner != context.config.end() && inner->is_object();
  std::string root = "model.", head = "lm_head.weight";
  for (const char* candidate : {"model.language_model.", "language_model.model."}) {
    if (context.tensors.has(std::string(candidate) + "embed_tokens.weight")) root = candidate;
  }
  if (context.tensors.has("language_model.lm_head.weight")) head = "language_model.lm_head.weight";
  for (const char* ignored : {"model.visual.", "visual.", "mtp.", "model.mtp.", "vision_tower."})
    context.tensors.ignore_prefix(ignored);
  return {is_container ? *inner : context.config, is_container ? "config.json: text_config" : "config.json", root,
          head};
}

/// A container may say once for all that the head is tied.
bool says_tied(const ImportContext& context, ConfigReader& reader) {
  const auto outer = context.config.find("tie_word_embeddings");
  return reader.boolean("tie_word_embeddings", outer != context.config.end() && *outer == true);
}

/// What stands around text_config says nothing about the text model, or the same once more.
Status check_container(const ImportContext& context, const TextPart& text, const ModelDescription& description) {
  if (&text.config == &context.config) return {};
  ConfigReader outer(context.config, "config.json");
  read_generic_fields(outer);
  outer.ignore({"text_config", "vision_config", "image_token_id", "video_token_id", "vision_start_token_id",
                "vision_end_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings", "language_model_only"});
  outer.expect("vocab_size", description.vocab_size);
  for (const auto& [key, value] : text.config.items()) {
    const auto repeated = context.config.find(key);
    if (repeated != context.config.end() && *repeated == value) outer.ignore({key.c_str()});
  }
  return outer.finish();
}

Status import_with(ImportContext& context, bool is_moe) {
  ModelDescription& d = context.description;
  CAIRN_TRY(refuse_reexports(context));
  const TextPart text = find_text(context);
  ConfigReader reader(text.config, text.where);
  d.architecture = is_moe ? "qwen3_5_moe" : "qwen3_5";
  read_qwen_hybrid(context, reader, is_moe ? 2 : 4);
  d.tied_embedding = is_head_tied(context, says_tied(context, reader), text.head);
  MlpConfig mlp;
  if (is_moe) {
    mlp.kind = MlpKind::kMoe;
    mlp.hidden_dim = reader.int32("moe_intermediate_size");
    mlp.expert_count = reader.int32("num_experts");
    mlp.top_k = reader.int32("num_experts_per_tok");
    mlp.shared_hidden_dim = reader.int32("shared_expert_intermediate_size");
    mlp.shared_gate = mlp.shared_hidden_dim > 0;
    reader.expect("norm_topk_prob", true);
    reader.expect("decoder_sparse_step", 1);
    reader.ignore({"intermediate_size"});
  } else {
    mlp.hidden_dim = reader.int32("intermediate_size");
    reader.expect("num_experts", 0);  // dense exports keep the fields of their class
    reader.ignore({"num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob",
                   "decoder_sparse_step"});
  }
  reader.expect("mlp_only_layers", nlohmann::json::array());
  for (LayerConfig& layer : d.layers) layer.mlp = mlp;
  CAIRN_TRY(reader.finish());
  CAIRN_TRY(check_container(context, text, d));
  CAIRN_TRY(validate(d, context.limits));
  ignore_empty_shared_experts(context);
  CheckpointSource source(context, text.root);
  return source.take_all([&](const WantedTensor& wanted) -> Status {
    const std::string& part = wanted.part;
    const bool is_gdn =
        wanted.layer >= 0 && d.layers[static_cast<std::size_t>(wanted.layer)].mechanism == Mechanism::kGdn;
    for (const char* name :
         {"mixer.q.weight", "mixer.k.weight", "mixer.v.weight", "mixer.z.weight", "mixer.a.weight", "mixer.b.weight"}) {
      if (is_gdn && part == name)
        return take_gdn(source, wanted, d.layers[static_cast<std::size_t>(wanted.layer)].delta);
    }
    return take_qwen_shared(source, wanted, d, text.head);
  });
}

}  // namespace

void read_qwen_hybrid(ImportContext& context, ConfigReader& reader, std::int32_t kv_heads) {
  ModelDescription& d = context.description;
  read_generic_fields(reader);
  reader.expect("hidden_act", "silu");
  reader.expect("attention_bias", false);
  reader.expect("attn_output_gate", true);
  const std::string gate = reader.text("output_gate_type", "swish");
  if (gate != "swish" && gate != "silu") {
    reader.fail(Status::unsupported("%s: field 'output_gate_type' is '%.60s' (supported: swish)",
                                    reader.where().c_str(), gate.c_str()));
  }
  reader.ignore({"mrope_interleaved", "mrope_section", "mamba_ssm_dtype", "mtp_num_hidden_layers",
                 "mtp_use_dedicated_embeddings", "num_nextn_predict_layers"});
  d.model_dim = reader.int32("hidden_size");
  d.vocab_size = reader.int32("vocab_size");
  d.norm_eps = reader.number("rms_norm_eps", 1e-6F);
  reader.check(read_layout(context, d));
  d.trained_tokens = reader.integer("max_position_embeddings", 0);
  const LayerConfig gdn = read_gdn(reader, d.norm_eps), attention = read_attention(reader, kv_heads);
  const std::int32_t interval = reader.int32("full_attention_interval", 4);
  for (const bool is_full : read_layer_types(reader, reader.int32("num_hidden_layers"), interval, context.limits)) {
    d.layers.push_back(is_full ? attention : gdn);
  }
  reader.check(read_tokenizer_files(context, reader));
}

Status take_qwen_shared(CheckpointSource& source, const WantedTensor& wanted, const ModelDescription& d,
                        const std::string& head_name) {
  const std::string& part = wanted.part;
  if (part == "embed.weight") return source.take(wanted, {"embed_tokens.weight"});
  if (part == "final_norm.weight") return source.take(wanted, {"norm.weight"});
  if (wanted.layer < 0) return source.take(WantedTensor{wanted.spec, -1, part, ""}, {head_name});
  if (part == "norm1.weight") return source.take(wanted, {"input_layernorm.weight"});
  if (part == "norm2.weight") return source.take(wanted, {"post_attention_layernorm.weight"});
  const LayerConfig& layer = d.layers[static_cast<std::size_t>(wanted.layer)];
  if (part.starts_with("mlp.")) return take_mlp(source, wanted, "mlp.", layer.mlp);
  if (layer.mechanism == Mechanism::kGdn) {
    if (part.starts_with("mixer.conv_"))
      return source.take_convolution(wanted, {}, "linear_attn.conv1d.weight", layer.delta);
    if (part == "mixer.a_log") return source.take(wanted, {"linear_attn.A_log"});
    if (part == "mixer.dt_bias") return source.take(wanted, {"linear_attn.dt_bias"});
    if (part == "mixer.norm.weight") return source.take(wanted, {"linear_attn.norm.weight"});
    return source.take(wanted, {"linear_attn.out_proj.weight"});
  }
  if (part == "mixer.q.weight") return take_interleaved_query(source, wanted, layer.attention, false);
  if (part == "mixer.z.weight") return take_interleaved_query(source, wanted, layer.attention, true);
  const std::string name = part.substr(6);  // k.weight, q_norm.weight, ...
  if (name.find("_norm") != std::string::npos) return source.take(wanted, {"self_attn." + name});
  return source.take(wanted, {"self_attn." + name.substr(0, 1) + "_proj.weight"});
}

Status import_qwen3_5(ImportContext& context) { return import_with(context, false); }
Status import_qwen3_5_moe(ImportContext& context) { return import_with(context, true); }

}  // namespace cairn
