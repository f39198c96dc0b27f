#include "runtime/import/sdm_config.h"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

/// n of n * n; -1, which validate() refuses, when it is no square.
std::int32_t root_of(std::int32_t slots) {
  const auto root = static_cast<std::int32_t>(std::lround(std::sqrt(static_cast<double>(std::max(slots, 0)))));
  return std::int64_t{root} * root == slots ? root : -1;
}

LayerConfig read_sdm(ConfigReader& reader, std::int32_t model_dim, bool& has_score_norms) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kSdm;
  ConfigReader inner(reader.object("sdm_args"), reader.where() + ".sdm_args");
  SdmConfig& c = layer.sdm;
  c.heads = inner.int32("num_heads", 1);
  c.side = root_of(inner.int32("slots_per_head"));
  c.value_dim = c.heads > 0 && model_dim % c.heads == 0 ? model_dim / c.heads : -1;
  c.write_count = inner.int32("num_writes");
  c.read_count = inner.int32("num_reads");
  c.learned_initial = inner.boolean("backprop_on_memory", false);
  c.key_weighted_decay = inner.boolean("key_weighted_decay", false);
  c.has_bias = true;
  has_score_norms = inner.boolean("query_batchnorm", false);
  inner.expect("normalize_readings", true);
  if (!inner.has("normalize_readings")) {
    inner.fail(Status::unsupported("%s: readings without a norm (normalize_readings) are not supported",
                                   inner.where().c_str()));
  }
  layer.output = {NormKind::kLayerNorm, inner.boolean("output_gate", false) ? GateKind::kSigmoid : GateKind::kNone,
                  1e-6F};
  inner.ignore(
      {"memory_block_size", "snapshot_quant", "log_memory_access_stats", "dim"});  // speed, training, statistics
  reader.check(inner.finish());
  return layer;
}

LayerConfig attention_layer(std::int32_t heads, std::int32_t kv_heads, std::int32_t head_dim, float theta,
                            bool has_gate) {
  LayerConfig layer;
  layer.mechanism = Mechanism::kSoftmaxAttention;
  layer.attention.query_heads = heads;
  layer.attention.kv_heads = kv_heads;
  layer.attention.head_dim = layer.attention.rotary_dim = head_dim;
  layer.attention.rope_theta = theta;
  layer.attention.output_gate = has_gate;
  return layer;
}

struct Kinds {
  LayerConfig full, window, sdm;
  bool has_score_norms = false;
};

Kinds read_kinds(ConfigReader& reader, std::int32_t model_dim) {
  const auto shared = [model_dim](std::int32_t heads) { return heads > 0 ? model_dim / heads : 0; };
  const float theta = reader.number("rope_theta", 10000);
  const bool has_gate = reader.boolean("attn_gate", false);
  const std::int32_t given_dim = reader.int32("head_dim", 0);
  const std::int32_t heads = reader.int32("n_heads", given_dim > 0 ? model_dim / given_dim : 0);
  const std::int32_t head_dim = given_dim > 0 ? given_dim : shared(heads);
  const std::int32_t kv_heads = reader.int32("n_kv_heads", heads);
  const std::int32_t swa_heads = reader.int32("swa_n_heads", heads);
  const std::int32_t swa_kv_heads = reader.int32("swa_n_kv_heads", reader.has("swa_n_heads") ? swa_heads : kv_heads);
  const std::int32_t swa_dim = reader.int32("swa_head_dim", shared(swa_heads));
  Kinds kinds{attention_layer(heads, kv_heads, head_dim, theta, has_gate),
              attention_layer(swa_heads, swa_kv_heads, swa_dim, theta, has_gate),
              {}};
  kinds.window.attention.window = reader.int32("swa_window", 0);
  if (reader.has("sdm_args")) kinds.sdm = read_sdm(reader, model_dim, kinds.has_score_norms);
  return kinds;
}

/// The layers of one list: "all", or their numbers from 0.
Status place(ConfigReader& reader, const char* key, const LayerConfig& layer, std::vector<int>& placed,
             ModelDescription& d) {
  const nlohmann::json* value = reader.value(key);
  if (!value) return {};
  std::vector<std::int32_t> layers;
  if (value->is_string() && *value == "all") {
    for (std::size_t i = 0; i < placed.size(); ++i) layers.push_back(static_cast<std::int32_t>(i));
  } else {
    layers = reader.integers_or_one(key);
  }
  for (const std::int32_t index : layers) {
    if (index < 0 || static_cast<std::size_t>(index) >= placed.size()) {
      return Status::format_error("config.json: %s names layer %d of %zu", key, index, placed.size());
    }
    if (placed[static_cast<std::size_t>(index)]++ > 0) {
      return Status::format_error("config.json: layer %d is named twice in attn_at, swa_at and sdm_at", index);
    }
    d.layers[static_cast<std::size_t>(index)] = layer;
  }
  return {};
}

Status place_layers(ConfigReader& reader, const Kinds& kinds, std::int32_t count, ModelDescription& d) {
  std::vector<int> placed(static_cast<std::size_t>(count));
  d.layers.resize(placed.size());
  CAIRN_TRY(place(reader, "attn_at", kinds.full, placed, d));
  CAIRN_TRY(place(reader, "swa_at", kinds.window, placed, d));
  CAIRN_TRY(place(reader, "sdm_at", kinds.sdm, placed, d));
  for (std::size_t i = 0; i < placed.size(); ++i) {
    if (placed[i] == 0)
      return Status::format_error("config.json: layer %zu is in none of attn_at, swa_at and sdm_at", i);
    const LayerConfig& layer = d.layers[i];
    if (layer.mechanism == Mechanism::kSdm && layer.sdm.heads == 0)
      return Status::format_error("config.json: sdm_at without sdm_args");
  }
  if (reader.has("swa_at") && kinds.window.attention.window < 1)
    return Status::format_error("config.json: swa_at without swa_window");
  return {};
}

/// 2/3 of 4 D, times the multiplier, up to a multiple.
std::int32_t read_mlp_width(ConfigReader& reader, std::int32_t model_dim) {
  const std::int32_t multiple = reader.int32("multiple_of", 256);
  const double multiplier = static_cast<double>(reader.number("ffn_dim_multiplier", 1));
  const double width = std::floor(std::floor(8.0 * model_dim / 3) * multiplier);
  if (multiple < 1 || !(width > 0 && width < 1e8)) return -1;
  return static_cast<std::int32_t>((static_cast<std::int64_t>(width) + multiple - 1) / multiple * multiple);
}

Result<std::vector<float>> values_of(const ImportedTensors& tensors, const std::string& name, std::size_t count) {
  CAIRN_TRY_ASSIGN(std::vector<float> values, tensors.as_f32(name));
  if (values.size() == count) return values;
  return Status::format_error("tensor '%s' has %zu elements (expected %zu)", name.c_str(), values.size(), count);
}

/// A batch norm of the scores after their projection, folded into it: its statistics are constants here.
///   s = weight / sqrt(running_var + 1e-5);   W' = s W;   b' = s (b - running_mean) + bias
Status take_normalised(ImportContext& context, const WantedTensor& wanted, const std::string& projection,
                       const std::string& norm) {
  ImportedTensors& tensors = context.tensors;
  const auto rows = static_cast<std::size_t>(wanted.spec.shape[0]);
  const bool is_bias = wanted.spec.shape.size() == 1;
  const std::size_t columns = is_bias ? 1 : static_cast<std::size_t>(wanted.spec.shape[1]);
  const std::string stem = wanted.prefix + "attention.", name = stem + projection + (is_bias ? ".bias" : ".weight");
  std::vector<float> part[4];
  const char* const kParts[] = {"weight", "bias", "running_mean", "running_var"};
  for (int i = 0; i < 4; ++i) {
    const std::string source = stem + norm + "." + kParts[i];
    CAIRN_TRY_ASSIGN(part[i], values_of(tensors, source, rows));
    tensors.mark_used(source);
  }
  tensors.mark_used(stem + norm + ".num_batches_tracked");
  CAIRN_TRY_ASSIGN(std::vector<float> values, values_of(tensors, name, rows * columns));
  tensors.mark_used(name);
  for (std::size_t i = 0; i < rows; ++i) {
    const double scale = part[0][i] / std::sqrt(double{part[3][i]} + 1e-5);
    const double mean = is_bias ? part[2][i] : 0, shift = is_bias ? part[1][i] : 0;
    for (std::size_t j = i * columns; j < (i + 1) * columns; ++j)
      values[j] = static_cast<float>(scale * (values[j] - mean) + shift);
  }
  return tensors.add(wanted.spec.name, DType::kF32, wanted.spec.shape, values.data(), values.size() * sizeof(float));
}

Status take_sdm(CheckpointSource& source, const WantedTensor& wanted, const SdmConfig& c) {
  const std::string part = wanted.part.substr(6), stem = "attention.";
  const std::string tail = part.substr(1);  // ".weight" or ".bias" of one-letter parts
  if (part == "initial") {
    return source.take_part(wanted, stem + "memory", {std::int64_t{c.heads} * c.side * c.side, c.value_dim});
  }
  if (part == "a_log") return source.take(wanted, {stem + "A_log"});
  if (part == "dt_bias") return source.take(wanted, {stem + "dt_bias"});
  if (part.starts_with("norm.")) return source.take(wanted, {stem + "readings_norm" + part.substr(4)});
  switch (part[0]) {
    case 'q': return source.take(wanted, {stem + "Wq_read" + tail});
    case 'k': return source.take(wanted, {stem + "Wk_write" + tail});
    case 'v': return source.take(wanted, {stem + "Wv_write" + tail});
    case 'z': return source.take(wanted, {stem + "Wog" + tail});
    case 'o': return source.take(wanted, {stem + "Wo" + tail});
    default: return source.take(wanted, {stem + part.substr(0, 1) + "_proj" + tail});
  }
}

/// Rows 2 i and 2 i + 1 of a head turn together: they become rows i and i + D / 2.
Status take_attention(CheckpointSource& source, const WantedTensor& wanted, const AttentionConfig& c) {
  const std::string part = wanted.part.substr(6);
  if (part == "z.weight") return source.take(wanted, {"attention.w_gate.weight"});
  const std::string name = "attention.w" + part;
  if (part[0] != 'q' && part[0] != 'k') return source.take(wanted, {name});
  const std::int64_t dim = c.head_dim, half = dim / 2;
  return source.gather_rows(wanted, name, wanted.spec.shape[0], [dim, half](std::int64_t row) {
    const std::int64_t i = row % dim;
    return row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
  });
}

Status take_tensor(CheckpointSource& source, const WantedTensor& wanted, const ModelDescription& d) {
  const std::string& part = wanted.part;
  if (part == "embed.weight") return source.take(wanted, {"tok_embeddings.weight"});
  if (part == "final_norm.weight") return source.take(wanted, {"norm.weight"});
  if (part == "head.weight") return source.take(wanted, {"output.weight"});
  if (part == "norm1.weight") return source.take(wanted, {"attention_norm.weight"});
  if (part == "norm2.weight") return source.take(wanted, {"ffn_norm.weight"});
  if (part == "mlp.gate.weight") return source.take(wanted, {"feed_forward.w1.weight"});
  if (part == "mlp.up.weight") return source.take(wanted, {"feed_forward.w3.weight"});
  if (part == "mlp.down.weight") return source.take(wanted, {"feed_forward.w2.weight"});
  const LayerConfig& layer = d.layers[static_cast<std::size_t>(wanted.layer)];
  return layer.mechanism == Mechanism::kSdm ? take_sdm(source, wanted, layer.sdm)
                                            : take_attention(source, wanted, layer.attention);
}

}  // namespace

Status import_sdm(ImportContext& context) {
  ModelDescription& d = context.description;
  CAIRN_TRY(refuse_reexports(context));
  ConfigReader reader(context.config, "config.json");
  reader.ignore({"model_type", "seed", "init_base_std", "init_std_factor"});
  d.architecture = "sparse_delta_memory";
  d.model_dim = reader.int32("dim");
  d.vocab_size = reader.int32("vocab_size");
  d.norm_eps = reader.number("norm_eps", 1e-5F);
  d.tied_embedding = is_head_tied(context, reader.boolean("weight_tying", false), "output.weight");
  d.trained_tokens = reader.integer("max_seqlen", 0);
  Kinds kinds = read_kinds(reader, d.model_dim);
  kinds.full.mlp.hidden_dim = kinds.window.mlp.hidden_dim = kinds.sdm.mlp.hidden_dim =
      read_mlp_width(reader, d.model_dim);
  const std::int32_t count = reader.int32("n_layers");
  if (count < 1 || static_cast<std::uint32_t>(count) > context.limits.max_layers) {
    return Status::limit_exceeded("config.json: n_layers is %d (1 to %u)", count, context.limits.max_layers);
  }
  reader.check(place_layers(reader, kinds, count, d));
  reader.check(read_tokenizer_files(context, reader));
  CAIRN_TRY(reader.finish());
  CAIRN_TRY(validate(d, context.limits));
  CheckpointSource source(context, "");
  return source.take_all([&](const WantedTensor& wanted) {
    const bool is_query = wanted.part.starts_with("mixer.q."), is_key = wanted.part.starts_with("mixer.k.");
    const bool is_sdm =
        wanted.layer >= 0 && d.layers[static_cast<std::size_t>(wanted.layer)].mechanism == Mechanism::kSdm;
    if (!kinds.has_score_norms || !is_sdm || !(is_query || is_key)) return take_tensor(source, wanted, d);
    return take_normalised(context, wanted, is_query ? "Wq_read" : "Wk_write", is_query ? "query_bn" : "key_bn");
  });
}

}  // namespace cairn
