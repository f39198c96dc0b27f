#include "runtime/import/spiking_brain_config.h"

#include <algorithm>

namespace cairn {
namespace {

/// SSE-GDN: silu on q, k and v, keys and queries of length 1, adapters on the routed side, gates of its own for the
/// shared side.
LayerConfig read_sse(ConfigReader& reader, float eps) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kSse;
  SseConfig& c = layer.sse;
  c.heads = reader.int32("num_heads");
  c.key_dim = c.value_dim = reader.int32("head_dim");
  c.partitions = reader.int32("num_sparse_partition");
  c.top_k = reader.int32("num_writer");
  reader.expect("num_reader", c.top_k);
  reader.expect("linear_attn_type", "gdn");
  for (const char* flag : {"use_output_gate", "use_short_conv", "sse_qk_relu", "allow_neg_eigval"})
    reader.expect(flag, false);
  c.transition = SseTransition::kGdn;
  c.adapt_routed = c.separate_shared_gates = c.l2_after_gate = true;
  c.adapter_rank = c.value_dim;
  c.qv_activation = QkActivation::kSilu;
  c.key_softmax = false;
  // The rule divides what it reads by sqrt(K); the norm behind it takes that away but for its eps.
  layer.output = {NormKind::kRms, GateKind::kNone, eps * static_cast<float>(c.key_dim)};
  return layer;
}

struct AttentionFields {
  AttentionConfig full, window;
  std::vector<std::int32_t> layers, full_layers;
};

AttentionFields read_attention(ConfigReader& reader, const SseConfig& sse, std::int64_t trained_tokens) {
  AttentionFields fields;
  ConfigReader inner(reader.object("attn"), reader.where() + ".attn");
  AttentionConfig& c = fields.full;
  c.query_heads = inner.int32("num_heads", sse.heads);
  c.kv_heads = inner.int32("num_kv_heads", c.query_heads);
  c.head_dim = inner.int32("head_dim", sse.key_dim);
  c.rotary_dim = c.head_dim;
  c.rope_theta = inner.number("rope_theta", 10000);
  c.qk_norm = inner.boolean("qk_norm", false);
  c.qkv_bias = inner.boolean("qkv_bias", false);
  fields.window = c;
  fields.window.window = inner.int32("window_size");
  if (fields.window.window < 1)
    inner.fail(Status::format_error("%s: window_size is %d (at least 1)", inner.where().c_str(), fields.window.window));
  fields.layers = inner.integers_or_one("layers");
  fields.full_layers = inner.integers_or_one("full_layers");
  const bool has_moba = fields.layers.size() > fields.full_layers.size();
  const std::int64_t covered = std::int64_t{inner.int32("moba_chunk_size", 0)} * inner.int32("moba_topk", 0);
  if (has_moba && (trained_tokens < 1 || covered < trained_tokens)) {
    inner.fail(Status::unsupported(
        "%s: its MoBA layers see %lld tokens (moba_chunk_size * moba_topk) of max_position_embeddings %lld: "
        "they are supported where they see all",
        inner.where().c_str(), static_cast<long long>(covered), static_cast<long long>(trained_tokens)));
  }
  reader.check(inner.finish());
  return fields;
}

Status place_layers(const AttentionFields& fields, const LayerConfig& sse, std::int32_t count, ModelDescription& d) {
  const auto limit = static_cast<std::size_t>(count);
  if (fields.layers.size() > limit || fields.full_layers.size() > limit) {
    return Status::format_error("config.json: attn names more layers than there are (%d)", count);
  }
  LayerConfig attention;
  attention.mechanism = Mechanism::kSoftmaxAttention;
  attention.attention = fields.full;
  attention.mlp = sse.mlp;
  d.layers.assign(static_cast<std::size_t>(count), sse);
  for (const std::int32_t index : fields.layers) {
    if (index < 0 || index >= count)
      return Status::format_error("config.json: attn.layers names layer %d of %d", index, count);
    d.layers[static_cast<std::size_t>(index)] = attention;
  }
  for (const std::int32_t index : fields.full_layers) {
    if (std::find(fields.layers.begin(), fields.layers.end(), index) == fields.layers.end()) {
      return Status::format_error("config.json: attn.full_layers names layer %d, which is not in attn.layers", index);
    }
  }
  return {};
}

/// Rows of gates that hold the shared partition's heads first, then those of the routed ones.
Status take_gate(CheckpointSource& source, const WantedTensor& wanted, const std::string& part, std::int64_t heads) {
  const bool is_shared = part.starts_with("shared_");
  const std::string own = is_shared ? part.substr(7) : part;
  const std::string name = own == "a_log"     ? "attn.A_log"
                           : own == "dt_bias" ? "attn.dt_bias"
                                              : "attn.sse_" + own.substr(0, 1) + "_proj.weight";
  return source.take_rows(wanted, {name}, 2 * heads, is_shared ? 0 : heads);
}

Status take_sse(CheckpointSource& source, const WantedTensor& wanted, const SseConfig& c) {
  const std::string part = wanted.part.substr(6);
  for (const char* gate : {"a.weight", "b.weight", "a_log", "dt_bias"}) {
    if (part == gate || part == "shared_" + std::string(gate)) return take_gate(source, wanted, part, c.heads);
  }
  if (part == "norm.weight") return source.take(wanted, {"attn.sse_o_norm.weight"});
  if (part.ends_with("_down.weight")) return source.take(wanted, {"attn.lora_" + part.substr(0, 1) + "_proj.0.weight"});
  if (part.ends_with("_up.weight")) return source.take(wanted, {"attn.lora_" + part.substr(0, 1) + "_proj.1.weight"});
  return source.take(wanted, {"attn.sse_" + part.substr(0, 1) + "_proj.weight"});
}

/// q.weight, q_norm.weight, q.bias of attention whose names begin with `stem`.
Status take_attention(CheckpointSource& source, const WantedTensor& wanted, const std::string& stem,
                      const std::string& part) {
  if (part.find("_norm") != std::string::npos) return source.take(wanted, {stem + part});
  return source.take(wanted, {stem + part.substr(0, 1) + "_proj" + part.substr(1)});
}

Status take_tensor(CheckpointSource& source, const WantedTensor& wanted, const ModelDescription& d) {
  const std::string& part = wanted.part;
  if (part == "embed.weight") return source.take(wanted, {"embeddings.weight"});
  if (part == "final_norm.weight") return source.take(wanted, {"norm.weight"});
  if (wanted.layer < 0) return source.take(WantedTensor{wanted.spec, -1, part, ""}, {"lm_head.weight"});
  if (part == "norm1.weight") return source.take(wanted, {"attn_norm.weight"});
  if (part == "norm2.weight") return source.take(wanted, {"mlp_norm.weight"});
  if (part == "merge_mixer.weight") return source.take_halved(wanted, "attn.sse_merge_norm.weight");
  if (part == "merge_side.weight") return source.take_halved(wanted, "attn.swa_merge_norm.weight");
  const LayerConfig& layer = d.layers[static_cast<std::size_t>(wanted.layer)];
  if (part.starts_with("mlp.")) return take_mlp(source, wanted, "mlp.", layer.mlp);
  if (part.starts_with("side.")) return take_attention(source, wanted, "attn.swa_", part.substr(5));
  if (layer.mechanism == Mechanism::kSse) return take_sse(source, wanted, layer.sse);
  return take_attention(source, wanted, "attn.", part.substr(6));
}

}  // namespace

Status import_spiking_brain(ImportContext& context) {
  ModelDescription& d = context.description;
  CAIRN_TRY(refuse_reexports(context));
  ConfigReader reader(context.config, "config.json");
  read_generic_fields(reader);
  reader.ignore(
      {"attn_mode", "fuse_norm", "fuse_swiglu", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp"});
  const std::string activation = reader.text("hidden_act", "swish");
  if (activation != "swish" && activation != "silu") {
    return Status::unsupported("config.json: field 'hidden_act' is '%.60s' (supported: swish)", activation.c_str());
  }
  d.architecture = "sse_swa_moba";
  d.model_dim = reader.int32("hidden_size");
  d.vocab_size = reader.int32("vocab_size");
  d.norm_eps = reader.number("norm_eps", 1e-6F);
  d.tied_embedding = is_head_tied(context, reader.boolean("tie_word_embeddings", false));
  d.trained_tokens = reader.integer("max_position_embeddings", 0);
  LayerConfig sse = read_sse(reader, d.norm_eps);
  const AttentionFields attention = read_attention(reader, sse.sse, d.trained_tokens);
  sse.has_side_attention = true;
  sse.side_attention = attention.window;
  sse.mlp.hidden_dim = reader.int32("intermediate_size");
  const std::int32_t count = reader.int32("num_hidden_layers");
  if (count < 1 || static_cast<std::uint32_t>(count) > context.limits.max_layers) {
    return Status::limit_exceeded("config.json: num_hidden_layers is %d (1 to %u)", count, context.limits.max_layers);
  }
  reader.check(place_layers(attention, sse, count, d));
  reader.check(read_tokenizer_files(context, reader));
  CAIRN_TRY(reader.finish());
  CAIRN_TRY(validate(d, context.limits));
  CheckpointSource source(context, "model.");
  return source.take_all([&](const WantedTensor& wanted) { return take_tensor(source, wanted, d); });
}

}  // namespace cairn
