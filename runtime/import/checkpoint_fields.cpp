// Fields and files that every Hugging Face checkpoint has.
#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/import/checkpoint_source.h"
#include "runtime/support/file.h"
#include "runtime/support/log.h"

namespace cairn {
namespace {

constexpr std::uint64_t kMaxSettingsBytes = std::uint64_t{1} << 20;

/// A JSON file of the folder; null when it is not there.
Result<nlohmann::json> read_optional_json(const std::string& folder, const char* name) {
  const std::string path = folder + "/" + name;
  CAIRN_TRY_ASSIGN(const bool is_there, file_exists(path));
  if (!is_there) return nlohmann::json();
  CAIRN_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxSettingsBytes));
  CAIRN_TRY_ASSIGN(nlohmann::json json, parse_json(text, name));
  if (!json.is_object()) return Status::format_error("%s: not a JSON object", name);
  return json;
}

void add_stop_token(TokenizerConfig& tokenizer, std::int32_t id) {
  if (tokenizer.stop_tokens.size() > kMaxStopTokens) return;  // validate() refuses them
  if (id >= 0 &&
      std::find(tokenizer.stop_tokens.begin(), tokenizer.stop_tokens.end(), id) == tokenizer.stop_tokens.end()) {
    tokenizer.stop_tokens.push_back(id);
  }
}

void drop_unknown_ids(std::vector<std::int32_t>& ids, std::int32_t vocab_size, const std::string& where) {
  const std::size_t dropped = std::erase_if(ids, [vocab_size](std::int32_t id) { return id >= vocab_size; });
  if (dropped > 0) {
    log_message(CAIRN_LOG_WARNING, "import", "%s: %zu ids outside the vocabulary of %d are left out", where.c_str(),
                dropped, vocab_size);
  }
}

/// generation_config.json first: config.json often names only one of the ids that end a reply.
Status read_stop_tokens(const ImportContext& context, TokenizerConfig& tokenizer) {
  CAIRN_TRY_ASSIGN(const nlohmann::json generation, read_optional_json(context.folder, "generation_config.json"));
  if (!generation.is_null()) {
    ConfigReader reader(generation, "generation_config.json");
    std::vector<std::int32_t> ids = reader.integers_or_one("eos_token_id");
    for (const auto& [key, value] : generation.items())
      reader.ignore({key.c_str()});  // sampling defaults are the caller's
    CAIRN_TRY(reader.finish());
    drop_unknown_ids(ids, context.description.vocab_size, "generation_config.json: eos_token_id");
    for (const std::int32_t id : ids) add_stop_token(tokenizer, id);
    if (tokenizer.eos < 0 && !ids.empty()) tokenizer.eos = ids.front();
  }
  if (tokenizer.stop_tokens.empty()) add_stop_token(tokenizer, tokenizer.eos);
  return {};
}

/// The template of tokenizer_config.json: a string, or a list of named ones of which "default" counts.
std::string template_of(const nlohmann::json& settings) {
  const auto found = settings.find("chat_template");
  if (found == settings.end()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return {};
  for (const nlohmann::json& entry : *found) {
    if (entry.is_object() && entry.value("name", nlohmann::json()) == "default" && entry.contains("template") &&
        entry["template"].is_string()) {
      return entry["template"].get<std::string>();
    }
  }
  return {};
}

Status read_texts(const std::string& folder, TokenizerConfig& tokenizer) {
  const std::string settings_path = folder + "/tokenizer_config.json";
  CAIRN_TRY_ASSIGN(const bool has_settings, file_exists(settings_path));
  if (has_settings) {
    CAIRN_TRY_ASSIGN(tokenizer.extra, read_text_file(settings_path, kMaxSettingsBytes));
    CAIRN_TRY_ASSIGN(const nlohmann::json settings, parse_json(tokenizer.extra, "tokenizer_config.json"));
    if (!settings.is_object()) return Status::format_error("tokenizer_config.json: not a JSON object");
    tokenizer.chat_template = template_of(settings);
    const auto add_bos = settings.find("add_bos_token");
    tokenizer.add_bos = add_bos != settings.end() && *add_bos == true && tokenizer.bos >= 0;
  }
  const std::string template_path = folder + "/chat_template.jinja";
  CAIRN_TRY_ASSIGN(const bool has_template, file_exists(template_path));
  if (has_template) {
    CAIRN_TRY_ASSIGN(tokenizer.chat_template, read_text_file(template_path, kMaxSettingsBytes));
  }
  constexpr std::array<std::pair<const char*, TokenizerKind>, 2> kFiles = {
      {{"/tokenizer.json", TokenizerKind::kBpe}, {"/tiktoken.model", TokenizerKind::kTiktoken}}};
  for (const auto& [name, kind] : kFiles) {
    CAIRN_TRY_ASSIGN(const bool is_there, file_exists(folder + name));
    if (!is_there) continue;
    tokenizer.kind = kind;
    CAIRN_TRY_ASSIGN(tokenizer.data, read_text_file(folder + name, kMaxTokenizerBytes));
    break;
  }
  return {};
}

/// UNSUPPORTED: a rotation that is scaled; "default" is one that is not.
Status check_rope_scaling(ConfigReader& reader) {
  if (!reader.has("rope_scaling")) return {};
  ConfigReader inner(reader.object("rope_scaling"), reader.where() + ".rope_scaling");
  if (!inner.has("rope_type")) (void)inner.text("type");  // one of them is needed
  inner.expect("rope_type", "default");
  inner.expect("type", "default");
  inner.ignore({"mrope_interleaved", "mrope_section"});
  return inner.finish();
}

/// A field of token ids: those of the text model or, when it names none, of the container around it. Ids outside the
/// vocabulary, which the rows of the embedding bound, are left out.
std::vector<std::int32_t> read_token_ids(const ImportContext& context, ConfigReader& reader, const char* key) {
  std::vector<std::int32_t> ids = reader.integers_or_one(key);
  if (ids.empty() && context.config.contains(key)) {
    const nlohmann::json outer = {{key, context.config[key]}};
    ConfigReader around(outer, "config.json");
    ids = around.integers_or_one(key);
    reader.check(around.finish());
  }
  drop_unknown_ids(ids, context.description.vocab_size, reader.where() + ": " + key);
  return ids;
}

}  // namespace

Status refuse_reexports(const ImportContext& context) {
  const auto text = context.config.find("text_config");
  for (const char* field : {"quantization_config", "quantization", "compression_config"}) {
    const auto is_set = [field](const nlohmann::json& config) {
      return config.is_object() && !config.value(field, nlohmann::json()).is_null();
    };
    if (is_set(context.config) || (text != context.config.end() && is_set(*text))) {
      return Status::unsupported(
          "config.json: field '%s': a quantised re-export; use the original checkpoint and pack it", field);
    }
  }
  constexpr std::array kSuffixes = {
      "weight_scale_inv",  "weight_scale", "weight_scale_2", "input_scale", "weight_packed",
      "qweight",           "qzeros",       "g_idx",          ".scales",     ".biases",
      "weight_zero_point", "absmax",       "quant_map"};
  for (const auto& [name, entry] : context.tensors.sources()) {
    for (const char* suffix : kSuffixes) {
      if (name.ends_with(suffix)) {
        return Status::unsupported("tensor '%s': a quantised re-export; use the original checkpoint and pack it",
                                   name.c_str());
      }
    }
  }
  return {};
}

void read_generic_fields(ConfigReader& reader) {
  reader.ignore({"model_type",
                 "architectures",
                 "dtype",
                 "torch_dtype",
                 "transformers_version",
                 "auto_map",
                 "_name_or_path",
                 "use_cache",
                 "initializer_range",
                 "attention_dropout",
                 "hidden_dropout",
                 "pad_token_id",
                 "sep_token_id",
                 "output_attentions",
                 "output_hidden_states",
                 "output_router_logits",
                 "router_aux_loss_coef",
                 "return_dict",
                 "torchscript",
                 "pretraining_tp",
                 "attn_implementation",
                 "_attn_implementation",
                 "_attn_implementation_autoset",
                 "num_return_sequences",
                 "max_window_layers",
                 "problem_type",
                 "id2label",
                 "label2id",
                 "task_specific_params",
                 "unsloth_fixed",
                 "is_encoder_decoder",
                 "chunk_size_feed_forward",
                 "tokenizer_class"});
  reader.check(check_rope_scaling(reader));
  reader.expect("use_sliding_window", false);
  reader.expect("sliding_window", nullptr);
  reader.expect("tie_encoder_decoder", false);
  reader.expect("add_cross_attention", false);
}

RopeFields read_rope(ConfigReader& reader, float default_theta, float default_partial) {
  RopeFields rope;
  rope.partial_factor = reader.number("partial_rotary_factor", default_partial);
  rope.theta = reader.number("rope_theta", reader.is_null("rope_theta") ? 0 : default_theta);
  if (!reader.has("rope_parameters")) {
    reader.ignore({"rope_parameters"});
    return rope;
  }
  ConfigReader inner(reader.object("rope_parameters"), reader.where() + ".rope_parameters");
  inner.expect("rope_type", "default");
  inner.expect("type", "default");
  rope.theta = inner.number("rope_theta", inner.is_null("rope_theta") ? 0 : rope.theta);
  rope.partial_factor = inner.number("partial_rotary_factor", rope.partial_factor);
  inner.ignore({"mrope_interleaved", "mrope_section"});  // text: the three positions are equal
  reader.check(inner.finish());
  return rope;
}

std::vector<bool> read_layer_types(ConfigReader& reader, std::int32_t layer_count, std::int32_t interval,
                                   const ModelLimits& limits) {
  if (layer_count < 1 || static_cast<std::uint32_t>(layer_count) > limits.max_layers) {
    reader.fail(Status::limit_exceeded("%s: num_hidden_layers is %d (1 to %u)", reader.where().c_str(), layer_count,
                                       limits.max_layers));
    return {};
  }
  std::vector<bool> is_full(static_cast<std::size_t>(layer_count));
  if (!reader.has("layer_types")) {
    reader.ignore({"layer_types"});
    if (interval < 1)
      reader.fail(
          Status::format_error("%s: full_attention_interval is %d (at least 1)", reader.where().c_str(), interval));
    for (std::int32_t i = 0; i < layer_count; ++i)
      is_full[static_cast<std::size_t>(i)] = interval > 0 && (i + 1) % interval == 0;
    return is_full;
  }
  const std::vector<std::string> types = reader.texts("layer_types");
  if (types.size() != is_full.size()) {
    reader.fail(Status::format_error("%s: layer_types names %zu layers, but num_hidden_layers is %d",
                                     reader.where().c_str(), types.size(), layer_count));
    return is_full;
  }
  for (std::size_t i = 0; i < types.size(); ++i) {
    is_full[i] = types[i] == "full_attention";
    if (!is_full[i] && types[i] != "linear_attention") {
      reader.fail(Status::unsupported("%s: layer %zu is '%.60s' (supported: linear_attention, full_attention)",
                                      reader.where().c_str(), i, types[i].c_str()));
    }
  }
  return is_full;
}

Status read_tokenizer_files(ImportContext& context, ConfigReader& reader) {
  TokenizerConfig& tokenizer = context.description.tokenizer;
  const std::vector<std::int32_t> bos = read_token_ids(context, reader, "bos_token_id"),
                                  eos = read_token_ids(context, reader, "eos_token_id");
  tokenizer.bos = bos.empty() ? -1 : bos.front();
  tokenizer.eos = eos.empty() ? -1 : eos.front();
  CAIRN_TRY(read_texts(context.folder, tokenizer));
  CAIRN_TRY(read_stop_tokens(context, tokenizer));
  for (const std::int32_t id : eos) add_stop_token(tokenizer, id);
  return {};
}

}  // namespace cairn
