#include "runtime/import/gdn2_config.h"

#include <cmath>

namespace cairn {
namespace {

LayerConfig read_gdn2(ConfigReader& reader, float eps) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kGdn2;
  DeltaRuleConfig& c = layer.delta;
  c.key_heads = reader.int32("num_heads");
  c.value_heads = reader.int32("num_v_heads", c.key_heads);
  c.key_dim = reader.int32("head_dim");
  const double value_dim = static_cast<double>(c.key_dim) * static_cast<double>(reader.number("expand_v", 1));
  c.value_dim = value_dim > 0 && value_dim < 1e6 && value_dim == std::floor(value_dim)
                    ? static_cast<std::int32_t>(value_dim)
                    : -1;
  c.conv_kernel = reader.int32("conv_size", 4);
  c.beta_scale = reader.boolean("allow_neg_eigval", false) ? 2.0F : 1.0F;
  c.decay_rank = c.gate_rank = c.value_dim;
  const std::string gate = reader.text("output_gate", "silu");
  if (gate != "silu" && gate != "sigmoid") {
    reader.fail(
        Status::unsupported("config.json: field 'output_gate' is '%.60s' (supported: silu, sigmoid)", gate.c_str()));
  }
  layer.output = {NormKind::kRms, gate == "sigmoid" ? GateKind::kSigmoid : GateKind::kSilu, eps};
  return layer;
}

LayerConfig read_attention(ConfigReader& reader, std::int32_t model_dim) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kSoftmaxAttention;
  AttentionConfig& c = layer.attention;
  c.query_heads = c.kv_heads = reader.int32("num_attention_heads");
  c.head_dim = c.query_heads > 0 && model_dim % c.query_heads == 0 ? model_dim / c.query_heads : -1;
  c.rotary_dim = c.head_dim;
  c.rope_theta = reader.number("rope_theta", 10000);
  c.window = reader.int32("window_size", 0);
  return layer;
}

/// Gates of the key heads serve every value head of theirs: Cairn keeps one for each value head.
Status take_repeated(CheckpointSource& source, const WantedTensor& wanted, const DeltaRuleConfig& c,
                     const std::string& name) {
  const std::int64_t repeat = c.value_heads / c.key_heads;
  if (repeat == 1) return source.take(wanted, {name});
  const std::int64_t rows = wanted.spec.shape[0] / c.value_heads;  // of one head
  return source.gather_rows(wanted, name, c.key_heads * rows,
                            [=](std::int64_t row) { return row / rows / repeat * rows + row % rows; });
}

Status take_mixer(CheckpointSource& source, const WantedTensor& wanted, const DeltaRuleConfig& c) {
  const std::string stem = "attn.", part = wanted.part.substr(6);
  if (part.starts_with("conv_"))
    return source.take_convolution(wanted, {stem + part[5] + "_conv1d.weight"}, stem + "conv1d.weight", c);
  if (part == "a_down.weight") return source.take(wanted, {stem + "f_proj.0.weight"});
  if (part == "a_up.weight") return take_repeated(source, wanted, c, stem + "f_proj.1.weight");
  if (part == "b.weight") return take_repeated(source, wanted, c, stem + "b_proj.weight");
  if (part == "a_log") return take_repeated(source, wanted, c, stem + "A_log");
  if (part == "dt_bias") return take_repeated(source, wanted, c, stem + "dt_bias");
  if (part == "z_down.weight") return source.take(wanted, {stem + "g_proj.0.weight"});
  if (part == "z_up.weight") return source.take(wanted, {stem + "g_proj.1.weight"});
  if (part == "norm.weight") return source.take(wanted, {stem + "o_norm.weight"});
  return source.take(wanted, {stem + part[0] + "_proj.weight"});
}

Status take_tensor(CheckpointSource& source, const WantedTensor& wanted, const ModelDescription& d) {
  const std::string& part = wanted.part;
  if (part == "embed.weight") return source.take(wanted, {"wte.weight"});
  if (part == "final_norm.weight") return source.take(wanted, {"ln_f.weight"});
  if (wanted.layer < 0) return source.take(WantedTensor{wanted.spec, -1, part, ""}, {"lm_head.weight"});
  const WantedTensor block{wanted.spec, wanted.layer, part, "transformer.h." + std::to_string(wanted.layer) + "."};
  if (part == "norm1.weight") return source.take(block, {"norm_1.weight"});
  if (part == "norm2.weight") return source.take(block, {"norm_2.weight"});
  if (part == "mlp.gate.weight") return source.take(block, {"mlp.swiglu.w1.weight"});
  if (part == "mlp.up.weight") return source.take(block, {"mlp.swiglu.w2.weight"});
  if (part == "mlp.down.weight") return source.take(block, {"mlp.swiglu.w3.weight"});
  const LayerConfig& layer = d.layers[static_cast<std::size_t>(wanted.layer)];
  if (layer.mechanism == Mechanism::kGdn2) return take_mixer(source, block, layer.delta);
  return source.take(block, {"attn." + part.substr(6, 1) + "_proj.weight"});
}

Status take_gate_biases(ImportContext& context, const ModelDescription& d) {
  for (std::size_t i = 0; i < d.layers.size(); ++i) {
    const std::string source = "transformer.h." + std::to_string(i) + ".attn.g_proj.1.bias";
    const DeltaRuleConfig& c = d.layers[i].delta;
    if (d.layers[i].mechanism != Mechanism::kGdn2 || !context.tensors.has(source)) continue;
    CAIRN_TRY(context.tensors.take(source, "layers." + std::to_string(i) + ".mixer.z_up.bias",
                                   {std::int64_t{c.value_heads} * c.value_dim}));
  }
  return {};
}

}  // namespace

Status import_gdn2(ImportContext& context) {
  ModelDescription& d = context.description;
  CAIRN_TRY(refuse_reexports(context));
  ConfigReader reader(context.config, "config.json");
  read_generic_fields(reader);
  d.architecture = "gdn2";
  d.model_dim = reader.int32("hidden_size");
  d.vocab_size = reader.int32("vocab_size");
  d.norm_eps = reader.number("norm_eps", 1e-5F);
  d.tied_embedding = is_head_tied(context, reader.boolean("tie_word_embeddings", false));
  d.trained_tokens = reader.integer("max_position_embeddings", 0);
  LayerConfig gdn2 = read_gdn2(reader, d.norm_eps), attention;
  const std::int32_t every = reader.int32("attn_every", 0);
  if (every > 0) attention = read_attention(reader, d.model_dim);
  gdn2.mlp.hidden_dim = attention.mlp.hidden_dim = reader.int32("intermediate_size");
  const std::int32_t count = reader.int32("num_hidden_layers");
  if (count < 1 || static_cast<std::uint32_t>(count) > context.limits.max_layers) {
    return Status::limit_exceeded("config.json: num_hidden_layers is %d (1 to %u)", count, context.limits.max_layers);
  }
  for (std::int32_t i = 0; i < count; ++i) d.layers.push_back(every > 0 && (i + 1) % every == 0 ? attention : gdn2);
  reader.check(read_tokenizer_files(context, reader));
  CAIRN_TRY(reader.finish());
  CAIRN_TRY(validate(d, context.limits));
  CheckpointSource source(context, "transformer.");
  CAIRN_TRY(source.take_all([&](const WantedTensor& wanted) { return take_tensor(source, wanted, d); }));
  return take_gate_biases(context, d);
}

}  // namespace cairn
