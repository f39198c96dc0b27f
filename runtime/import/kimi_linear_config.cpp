#include "runtime/import/kimi_linear_config.h"

#include <algorithm>

namespace cairn {
namespace {

LayerConfig kda_layer(std::int32_t heads, std::int32_t head_dim, std::int32_t kernel, float eps) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kKda;
  layer.delta.key_heads = layer.delta.value_heads = heads;
  layer.delta.key_dim = layer.delta.value_dim = head_dim;
  layer.delta.conv_kernel = kernel;
  layer.delta.decay_rank = layer.delta.gate_rank = head_dim;
  layer.output = {NormKind::kRms, GateKind::kSigmoid, eps};
  return layer;
}

LayerConfig read_latent(ConfigReader& reader) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kLatentAttention;
  LatentAttentionConfig& c = layer.latent;
  c.heads = reader.int32("num_attention_heads");
  c.nope_dim = reader.int32("qk_nope_head_dim");
  c.shared_dim = reader.int32("qk_rope_head_dim");
  c.value_dim = reader.int32("v_head_dim");
  c.rank = reader.int32("kv_lora_rank");
  c.latent_norm_eps = reader.number("kv_a_layernorm_eps", 1e-6F);  // the default of the norm's class
  reader.expect("mla_use_nope", true);
  reader.expect("q_lora_rank", nullptr);
  reader.expect("num_key_value_heads", c.heads);
  reader.expect("qk_head_dim", std::int64_t{c.nope_dim} + c.shared_dim);
  reader.ignore({"head_dim", "rope_theta", "rope_parameters"});  // nothing rotates
  return layer;
}

/// What linear_attn_config says; each number may stand in the config itself as well, and then is the same.
struct LinearFields {
  LayerConfig layer;
  bool has_lists = false;
  std::vector<std::int32_t> kda, full;  ///< layers, from 1
};

LinearFields read_linear(ConfigReader& reader, float eps) {
  LinearFields fields;
  std::int32_t heads = reader.int32("linear_num_heads", 32), head_dim = reader.int32("linear_head_dim", 128);
  std::int32_t kernel = reader.int32("linear_conv_kernel_dim", 4);
  if (reader.has("linear_attn_config")) {
    ConfigReader inner(reader.object("linear_attn_config"), reader.where() + ".linear_attn_config");
    heads = inner.int32("num_heads", heads);
    head_dim = inner.int32("head_dim", head_dim);
    kernel = inner.int32("short_conv_kernel_size", kernel);
    fields.has_lists = inner.has("kda_layers") || inner.has("full_attn_layers");
    fields.kda = inner.integers_or_one("kda_layers");
    fields.full = inner.integers_or_one("full_attn_layers");
    reader.check(inner.finish());
    reader.expect("linear_num_heads", heads);
    reader.expect("linear_head_dim", head_dim);
    reader.expect("linear_conv_kernel_dim", kernel);
  }
  fields.layer = kda_layer(heads, head_dim, kernel, eps);
  return fields;
}

/// The kinds of the layers as transformers saves them: by layer_types alone.
Status read_layer_kinds(ConfigReader& reader, const ImportContext& context, std::int32_t count,
                        const LinearFields& linear, const LayerConfig& latent, ModelDescription& d) {
  if (!reader.has("layer_types")) {
    return Status::format_error(
        "config.json: neither the lists of linear_attn_config nor layer_types tell the layers' kinds");
  }
  for (const bool is_full : read_layer_types(reader, count, 0, context.limits))
    d.layers.push_back(is_full ? latent : linear.layer);
  return {};
}

/// The kinds of the layers as the model's makers write them: by the 1-based lists of linear_attn_config.
Status read_listed_kinds(ConfigReader& reader, const ImportContext& context, std::int32_t count,
                         const LinearFields& linear, const LayerConfig& latent, ModelDescription& d) {
  const std::vector<std::int32_t>&kda = linear.kda, &full = linear.full;
  if (kda.size() > context.limits.max_layers || full.size() > context.limits.max_layers) {
    return Status::limit_exceeded("config.json: linear_attn_config lists more layers than the limit of %u",
                                  context.limits.max_layers);
  }
  const auto holds = [](const std::vector<std::int32_t>& list, std::int32_t layer) {
    return std::find(list.begin(), list.end(), layer) != list.end();
  };
  for (std::int32_t i = 1; i <= count; ++i) {
    if (holds(kda, i) == holds(full, i)) {
      return Status::format_error(
          "config.json: linear_attn_config: layer %d (from 1) must be in one of kda_layers and full_attn_layers", i);
    }
    d.layers.push_back(holds(kda, i) ? linear.layer : latent);
  }
  if (!reader.has("layer_types")) return {};
  const std::vector<bool> is_full = read_layer_types(reader, count, 0, context.limits);
  for (std::size_t i = 0; i < is_full.size(); ++i) {
    if (is_full[i] != (d.layers[i].mechanism == Mechanism::kLatentAttention)) {
      return Status::format_error("config.json: layer_types and linear_attn_config disagree about layer %zu", i);
    }
  }
  return {};
}

Status read_kinds(ConfigReader& reader, const ImportContext& context, const LayerConfig& latent, float eps,
                  ModelDescription& d) {
  const std::int32_t count = reader.int32("num_hidden_layers");
  if (count < 1 || static_cast<std::uint32_t>(count) > context.limits.max_layers) {
    return Status::limit_exceeded("config.json: num_hidden_layers is %d (1 to %u)", count, context.limits.max_layers);
  }
  const LinearFields linear = read_linear(reader, eps);
  if (linear.has_lists) return read_listed_kinds(reader, context, count, linear, latent, d);
  return read_layer_kinds(reader, context, count, linear, latent, d);
}

/// A field that has two names: transformers saves some under a name of its own.
std::int32_t read_either(ConfigReader& reader, const char* name, const char* other, std::int32_t fallback) {
  const std::int32_t value = reader.int32(reader.has(name) ? name : other, fallback);
  reader.expect(name, value);
  reader.expect(other, value);
  return value;
}

MlpConfig read_experts(ConfigReader& reader) {
  MlpConfig moe;
  moe.kind = MlpKind::kMoe;
  const bool is_dense = reader.is_null("num_experts") && !reader.has("num_local_experts");
  moe.expert_count = read_either(reader, "num_experts", "num_local_experts", is_dense ? 0 : 256);
  moe.top_k = read_either(reader, "num_experts_per_token", "num_experts_per_tok", 8);
  moe.hidden_dim = reader.int32("moe_intermediate_size", 1024);
  const std::int32_t shared = read_either(reader, "num_shared_experts", "n_shared_experts", 1);
  if (shared < 0 || shared > 1024)
    reader.fail(Status::format_error("%s: num_shared_experts is %d (0 to 1024)", reader.where().c_str(), shared));
  else if (moe.hidden_dim > 0 && moe.hidden_dim <= (1 << 20))
    moe.shared_hidden_dim = shared * moe.hidden_dim;
  reader.expect("moe_router_activation_func", "sigmoid");  // with softmax, what bias and groups do is not defined
  moe.router = RouterKind::kSigmoid;
  const char* renormalize = reader.has("moe_renormalize") ? "moe_renormalize" : "norm_topk_prob";
  moe.renormalize = reader.boolean(renormalize, true);
  reader.expect("norm_topk_prob", moe.renormalize);
  moe.correction_bias = true;
  moe.routed_scale = reader.number("routed_scaling_factor", 2.446F);
  const std::int32_t groups = read_either(reader, "num_expert_group", "n_group", 1),
                     top_groups = reader.int32("topk_group", 1);
  if (reader.boolean("use_grouped_topk", true)) {
    moe.group_count = groups;
    moe.top_groups = top_groups;
  }
  return moe;
}

/// Dense or experts: mlp_layer_types says it alone, or says the same as first_k_dense_replace and moe_layer_freq.
Status read_mlps(ConfigReader& reader, ModelDescription& d) {
  const MlpConfig moe = read_experts(reader);
  MlpConfig dense;
  dense.hidden_dim = reader.int32("intermediate_size");
  const bool is_counted = reader.has("first_k_dense_replace") || reader.has("moe_layer_freq");
  const std::int32_t first = reader.int32("first_k_dense_replace", 1), step = reader.int32("moe_layer_freq", 1);
  if (step < 1) return Status::format_error("config.json: moe_layer_freq is %d (at least 1)", step);
  const bool is_listed = reader.has("mlp_layer_types");
  const std::vector<std::string> types = is_listed ? reader.texts("mlp_layer_types") : std::vector<std::string>();
  reader.ignore({"mlp_layer_types"});
  if (is_listed && types.size() != d.layers.size()) {
    return Status::format_error("config.json: mlp_layer_types names %zu layers of %zu", types.size(), d.layers.size());
  }
  for (std::size_t i = 0; i < d.layers.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    const bool says_sparse = is_listed && !is_counted ? types[i] == "sparse" : index >= first && index % step == 0;
    const bool is_sparse = moe.expert_count > 0 && says_sparse;
    if (is_listed && types[i] != (is_sparse ? "sparse" : "dense")) {
      return Status::format_error("config.json: mlp_layer_types: layer %zu is '%.60s', but other fields make it %s", i,
                                  types[i].c_str(), is_sparse ? "sparse" : "dense");
    }
    d.layers[i].mlp = is_sparse ? moe : dense;
  }
  return {};
}

Status take_kda(CheckpointSource& source, const WantedTensor& wanted, const DeltaRuleConfig& c) {
  const std::string stem = "self_attn.", part = wanted.part.substr(6);
  if (part.starts_with("conv_")) {
    return source.take_convolution(wanted, {stem + part[5] + "_conv1d.weight"}, stem + "conv1d.weight", c);
  }
  const auto gate = [&](const char* name) { return source.take(wanted, {stem + name, stem + "forget_gate." + name}); };
  if (part == "a_down.weight") return gate("f_a_proj.weight");
  if (part == "a_up.weight") return gate("f_b_proj.weight");
  if (part == "a_log") return gate("A_log");
  if (part == "dt_bias")
    return source.take_flat(wanted, {stem + "dt_bias", stem + "forget_gate.dt_bias"}, c.value_heads);
  if (part == "z_down.weight") return source.take(wanted, {stem + "g_a_proj.weight"});
  if (part == "z_up.weight") return source.take(wanted, {stem + "g_b_proj.weight"});
  if (part == "norm.weight") return source.take(wanted, {stem + "o_norm.weight"});
  return source.take(wanted, {stem + part[0] + "_proj.weight"});
}

Status take_latent(CheckpointSource& source, const WantedTensor& wanted) {
  const std::string stem = "self_attn.", part = wanted.part.substr(6);
  if (part == "kv_a.weight") return source.take(wanted, {stem + "kv_a_proj_with_mqa.weight"});
  if (part == "kv_a_norm.weight") return source.take(wanted, {stem + "kv_a_layernorm.weight"});
  if (part == "kv_b.weight") return source.take(wanted, {stem + "kv_b_proj.weight"});
  return source.take(wanted, {stem + part[0] + "_proj.weight"});
}

Status take_tensor(CheckpointSource& source, const WantedTensor& wanted, const ModelDescription& d) {
  const std::string& part = wanted.part;
  if (part == "embed.weight") return source.take(wanted, {"embed_tokens.weight"});
  if (part == "final_norm.weight") return source.take(wanted, {"norm.weight"});
  if (wanted.layer < 0) return source.take(WantedTensor{wanted.spec, -1, part, ""}, {"lm_head.weight"});
  if (part == "norm1.weight") return source.take(wanted, {"input_layernorm.weight"});
  if (part == "norm2.weight") return source.take(wanted, {"post_attention_layernorm.weight"});
  const LayerConfig& layer = d.layers[static_cast<std::size_t>(wanted.layer)];
  if (part.starts_with("mlp.")) {
    const bool is_moe = layer.mlp.kind == MlpKind::kMoe;
    const std::string probe = wanted.prefix + "block_sparse_moe." + (is_moe ? "gate.weight" : "gate_proj.weight");
    return take_mlp(source, wanted, source.has(probe) ? "block_sparse_moe." : "mlp.", layer.mlp);
  }
  if (layer.mechanism == Mechanism::kKda) return take_kda(source, wanted, layer.delta);
  return take_latent(source, wanted);
}

}  // namespace

Status import_kimi_linear(ImportContext& context) {
  ModelDescription& d = context.description;
  CAIRN_TRY(refuse_reexports(context));
  ConfigReader reader(context.config, "config.json");
  read_generic_fields(reader);
  reader.expect("hidden_act", "silu");
  reader.expect("attention_bias", false);
  reader.expect("topk_method", "noaux_tc");
  reader.ignore({"num_nextn_predict_layers", "seq_aux", "aux_loss_alpha", "ep_size"});
  d.architecture = "kimi_linear";
  d.model_dim = reader.int32("hidden_size");
  d.vocab_size = reader.int32("vocab_size");
  d.norm_eps = reader.number("rms_norm_eps", 1e-5F);
  // The model's class never ties: a head that is there counts, whatever the field says.
  (void)reader.boolean("tie_word_embeddings", false);
  d.tied_embedding = is_head_tied(context, false);
  d.trained_tokens = reader.integer("model_max_length", 0);
  if (reader.has("max_position_embeddings")) d.trained_tokens = reader.integer("max_position_embeddings", 0);
  reader.check(read_kinds(reader, context, read_latent(reader), d.norm_eps, d));
  reader.check(read_mlps(reader, d));
  reader.check(read_tokenizer_files(context, reader));
  CAIRN_TRY(reader.finish());
  CAIRN_TRY(validate(d, context.limits));
  context.tensors.ignore_prefix("model.mtp");
  ignore_empty_shared_experts(context);
  CheckpointSource source(context, "model.");
  return source.take_all([&](const WantedTensor& wanted) { return take_tensor(source, wanted, d); });
}

}  // namespace cairn
