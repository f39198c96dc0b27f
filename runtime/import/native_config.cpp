#include "runtime/import/native_config.h"

#include <array>
#include <map>

#include "runtime/import/json_reader.h"

namespace cairn {
namespace {

using Json = nlohmann::json;

struct MixerKind {
  const char* name;  ///< in `layers`, the config section, and the tensor prefix
  Mechanism mechanism;
};
constexpr std::array<MixerKind, 9> kMixers = {{{"swa", Mechanism::kSoftmaxAttention},
                                               {"attn", Mechanism::kSoftmaxAttention},
                                               {"gdn", Mechanism::kGdn},
                                               {"delta_net", Mechanism::kDeltaNet},
                                               {"deltanet", Mechanism::kDeltaNet},
                                               {"kda", Mechanism::kKda},
                                               {"gdn2", Mechanism::kGdn2},
                                               {"sdm", Mechanism::kSdm},
                                               {"sse", Mechanism::kSse}}};

/// One of some words; UNSUPPORTED names the others.
template <class T>
T word(ConfigReader& reader, const char* key, const std::string& value,
       std::initializer_list<std::pair<const char*, T>> words) {
  std::string known;
  for (const auto& [text, meaning] : words) {
    if (value == text) return meaning;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  reader.fail(Status::unsupported("%s: field '%s' is '%.60s' (supported: %s)", reader.where().c_str(), key,
                                  value.c_str(), known.c_str()));
  return words.begin()->second;
}

/// A gate may be written as a word, false, true (sigmoid) or null.
GateKind read_gate(ConfigReader& reader, const char* key, GateKind if_absent) {
  const Json* value = reader.value(key);
  if (!value) return reader.is_null(key) ? GateKind::kNone : if_absent;
  if (value->is_boolean()) return value->get<bool>() ? GateKind::kSigmoid : GateKind::kNone;
  return word<GateKind>(reader, key, reader.text(key),
                        {{"silu", GateKind::kSilu}, {"sigmoid", GateKind::kSigmoid}, {"none", GateKind::kNone}});
}

RoutingConfig read_routing(ConfigReader& mixer) {
  RoutingConfig routing;
  if (!mixer.has("routing")) {
    mixer.ignore({"routing"});
    return routing;
  }
  ConfigReader reader(mixer.object("routing"), mixer.where() + ".routing");
  routing.kind = word<Routing>(reader, "kind", reader.text("kind"),
                               {{"clvr", Routing::kClvr},
                                {"cler", Routing::kCler},
                                {"cler_h", Routing::kClerH},
                                {"clerh", Routing::kClerH},
                                {"none", Routing::kNone}});
  routing.rank = reader.int32("rank", 0);
  routing.gamma = word<RoutingGamma>(
      reader, "gamma", reader.text("gamma", "scalar"),
      {{"scalar", RoutingGamma::kScalar}, {"head", RoutingGamma::kHead}, {"channel", RoutingGamma::kChannel}});
  routing.scaled = reader.boolean("route_scaled", false);
  routing.after_block = reader.boolean("route_after_block", false);
  mixer.check(reader.finish());
  return routing;
}

void read_delta_rule(ConfigReader& reader, LayerConfig& layer) {
  DeltaRuleConfig& c = layer.delta;
  c.key_heads = reader.int32("qk_heads");
  c.value_heads = reader.int32("v_heads", c.key_heads);
  c.key_dim = reader.int32("key_dim");
  c.value_dim = reader.int32("value_dim");
  c.conv_kernel = reader.int32("conv_kernel", reader.is_null("conv_kernel") ? 0 : 4);
  c.conv_bias = reader.boolean("conv_bias", false);
  const std::string activation = reader.text("conv_activation", "silu");
  c.qk_activation = word<QkActivation>(reader, "conv_activation", activation, {{"silu", QkActivation::kSilu}});
  c.qk_norm = reader.boolean("qk_l2norm", true) ? QkNorm::kL2 : QkNorm::kNone;
  reader.expect("query_scale", "1/sqrt(key_dim)");
  c.beta_scale = reader.number("beta_scale", 1);
  const bool has_rows = layer.mechanism == Mechanism::kKda || layer.mechanism == Mechanism::kGdn2;
  if (has_rows) c.decay_rank = reader.int32(reader.has("decay_rank") ? "decay_rank" : "gate_rank", 0);
  c.gate_rank = reader.int32("output_gate_rank", 0);
  layer.output.gate = read_gate(reader, "output_gate", GateKind::kSilu);
}

void read_sdm(ConfigReader& reader, LayerConfig& layer) {
  SdmConfig& c = layer.sdm;
  c.heads = reader.int32("heads");
  c.side = reader.int32("n");
  const std::int64_t slots = reader.integer("slots", std::int64_t{c.side} * c.side);
  if (slots != std::int64_t{c.side} * c.side) {
    reader.fail(Status::format_error("%s: slots is %lld, which is not n * n (n is %d)", reader.where().c_str(),
                                     static_cast<long long>(slots), c.side));
  }
  c.value_dim = reader.int32("value_dim");
  c.write_count = reader.int32("W");
  c.read_count = reader.int32("R");
  c.learned_initial = word<bool>(reader, "initial_memory", reader.text("initial_memory", "learned"),
                                 {{"learned", true}, {"zeros", false}, {"zero", false}});
  c.slot_residual = reader.boolean("slot_residual", false);
  c.key_weighted_decay = reader.boolean("key_weighted_decay", false);
  c.has_bias = reader.boolean("bias", false);
  c.write_scale = reader.number("write_scale", 1);
  c.read_scale = reader.number("read_scale", 1);
  reader.expect("query_scale", nullptr);
  layer.output.norm = word<NormKind>(reader, "output_norm", reader.text("output_norm", "rms"),
                                     {{"rms", NormKind::kRms}, {"layer_norm", NormKind::kLayerNorm}});
  layer.output.gate = read_gate(reader, "output_gate", GateKind::kSilu);
}

void read_sse(ConfigReader& reader, LayerConfig& layer) {
  SseConfig& c = layer.sse;
  c.heads = reader.int32("heads");
  c.key_dim = reader.int32("key_dim");
  c.value_dim = reader.int32("value_dim");
  c.partitions = reader.int32("partitions");
  c.top_k = reader.int32("top_k");
  c.has_shared = reader.boolean("shared_partition", true);
  c.adapter_rank = reader.int32("shared_rank", c.has_shared && !reader.is_null("shared_rank") ? 64 : 0);
  reader.expect("gate", "gla");
  c.decay_rank = reader.int32("gate_rank", 0);
  c.decay_root = reader.number("gate_root", 16);
  c.transition = word<SseTransition>(reader, "transition", reader.text("transition", "gated"),
                                     {{"gated", SseTransition::kGla},
                                      {"gla", SseTransition::kGla},
                                      {"delta", SseTransition::kDelta},
                                      {"gdn", SseTransition::kGdn}});
  if (c.transition == SseTransition::kGdn) c.decay_rank = 0;
  reader.expect("query_scale", nullptr);
  layer.output.gate = read_gate(reader, "output_gate", GateKind::kSilu);
}

void read_attention(ConfigReader& reader, const std::string& kind, LayerConfig& layer) {
  AttentionConfig& c = layer.attention;
  c.query_heads = reader.int32("heads");
  c.kv_heads = reader.int32("kv_heads", c.query_heads);
  c.head_dim = reader.int32("head_dim");
  c.window = kind == "swa" ? reader.int32("window") : reader.int32("window", 0);
  if (kind == "swa" && c.window < 1) {
    reader.fail(Status::format_error("%s: window is %d (at least 1)", reader.where().c_str(), c.window));
  }
  c.rope_theta = reader.number("theta", 10000);
  const bool rotates = !reader.is_null("rope") && (reader.has("rope") || reader.has("theta"));
  reader.expect("rope", "rotate-half");
  c.rotary_dim = reader.int32("rope_dims", rotates ? c.head_dim : 0);
  c.qk_norm = reader.boolean("qk_norm", false);
  c.qk_norm_eps = reader.number("qk_norm_eps", 0);
  if (reader.has("qk_norm_zero_centered")) {
    c.qk_norm_centering =
        reader.boolean("qk_norm_zero_centered") ? NormCentering::kZeroCentered : NormCentering::kPlain;
  }
  const GateKind gate = read_gate(reader, "output_gate", GateKind::kNone);
  if (gate == GateKind::kSilu) {
    reader.fail(
        Status::unsupported("%s: field 'output_gate' is silu (supported: sigmoid, none)", reader.where().c_str()));
  }
  c.output_gate = gate == GateKind::kSigmoid;
  c.qkv_bias = reader.boolean("qkv_bias", false);
}

Result<LayerConfig> read_mixer(ConfigReader& root, const MixerKind& kind) {
  LayerConfig layer;
  layer.mechanism = kind.mechanism;
  ConfigReader reader(root.object(kind.name), std::string("config.json: ") + kind.name);
  switch (kind.mechanism) {
    case Mechanism::kSoftmaxAttention: read_attention(reader, kind.name, layer); break;
    case Mechanism::kSdm: read_sdm(reader, layer); break;
    case Mechanism::kSse: read_sse(reader, layer); break;
    default: read_delta_rule(reader, layer); break;
  }
  if (kind.mechanism != Mechanism::kSoftmaxAttention) layer.routing = read_routing(reader);
  CAIRN_TRY(reader.finish());
  return layer;
}

Status read_tokenizer(ConfigReader& root, ModelDescription& d) {
  ConfigReader reader(root.object("tokenizer"), "config.json: tokenizer");
  TokenizerConfig& t = d.tokenizer;
  t.kind = word<TokenizerKind>(reader, "kind", reader.text("kind"),
                               {{"bytes", TokenizerKind::kBytes}, {"none", TokenizerKind::kNone}});
  t.bos = reader.int32("bos", -1);
  t.eos = reader.int32("eos", -1);
  t.add_bos = t.bos >= 0;  // every sequence starts with it
  if (t.eos >= 0) t.stop_tokens = {t.eos};
  d.vocab_size = reader.int32("vocab");
  reader.ignore({"note"});
  return reader.finish();
}

enum class MatrixLayout { kInOut, kOutIn };

/// `tensors` tells people what the tensors are; only its layout has a meaning here. Absent: [in, out] (spec 6).
Result<MatrixLayout> read_layout(ConfigReader& root) {
  root.ignore({"tensors"});
  if (!root.has("tensors")) return MatrixLayout::kInOut;
  const Json& tensors = root.object("tensors");
  const auto layout = tensors.find("layout");
  if (layout == tensors.end()) return MatrixLayout::kInOut;
  const std::string text = layout->is_string() ? layout->get<std::string>() : "";
  const bool is_in_out = text.find("[in, out]") != std::string::npos;
  if (is_in_out != (text.find("[out, in]") != std::string::npos))
    return is_in_out ? MatrixLayout::kInOut : MatrixLayout::kOutIn;
  return Status::unsupported("config.json: tensors.layout must say that matrices are [in, out] or [out, in]");
}

Status read_layers(ConfigReader& root, std::uint32_t max_layers, ModelDescription& d, std::vector<std::string>& kinds) {
  kinds = root.texts("layers");
  if (kinds.size() > max_layers)
    return Status::limit_exceeded("config.json: %zu layers (limit %u)", kinds.size(), max_layers);
  const std::int64_t declared = root.integer("n_layers", static_cast<std::int64_t>(kinds.size()));
  if (declared != static_cast<std::int64_t>(kinds.size())) {
    return Status::format_error("config.json: n_layers is %lld, but layers names %zu", static_cast<long long>(declared),
                                kinds.size());
  }
  MlpConfig mlp;
  mlp.hidden_dim = root.int32("mlp_hidden", 0);
  if (mlp.hidden_dim == 0) mlp.kind = MlpKind::kNone;
  std::map<std::string, LayerConfig> mixers;
  for (const MixerKind& kind : kMixers) root.ignore({kind.name});
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (!mixers.contains(kinds[i])) {
      const MixerKind* found = nullptr;
      for (const MixerKind& kind : kMixers) {
        if (kinds[i] == kind.name) found = &kind;
      }
      if (!found)
        return Status::unsupported("config.json: layer %zu is '%.60s', which is no known mixer", i, kinds[i].c_str());
      CAIRN_TRY_ASSIGN(mixers[kinds[i]], read_mixer(root, *found));
    }
    LayerConfig layer = mixers[kinds[i]];
    layer.output.eps = d.norm_eps;
    layer.mlp = mlp;
    d.layers.push_back(layer);
  }
  return {};
}

/// Names that native checkpoints use for the part of a mixer that Cairn calls `part`; the first that is there counts.
std::vector<std::string> source_names(const std::string& part, Routing routing) {
  static const std::map<std::string, std::vector<std::string>> kNames = {
      {"mixer.a_log", {"A_log", "a_log"}},
      {"mixer.initial", {"M0"}},
      {"mixer.a_down.weight", {"g_a.weight", "a_a.weight", "a_down.weight"}},
      {"mixer.a_up.weight", {"g_b.weight", "a_b.weight", "a_up.weight"}},
      {"mixer.a_bias", {"g_bias", "a_bias"}},
      {"mixer.q_down.weight", {"q_a.weight"}},
      {"mixer.q_up.weight", {"q_b.weight"}},
      {"mixer.k_down.weight", {"k_a.weight"}},
      {"mixer.k_up.weight", {"k_b.weight"}},
      {"mixer.z_down.weight", {"z_a.weight", "z_down.weight"}},
      {"mixer.z_up.weight", {"z_b.weight", "z_up.weight"}},
  };
  if (const auto found = kNames.find(part); found != kNames.end()) return found->second;
  if (part == "mixer.a.weight") return {"a.weight", "g.weight"};
  if (part.starts_with("routing.")) {
    const std::string tail = part.substr(8);
    const std::string kind = routing == Routing::kClvr ? "clvr" : routing == Routing::kCler ? "cler" : "clerh";
    if (routing == Routing::kClerH) return {"clerh_" + tail, "cler_h_" + tail};
    return {kind + "_" + tail};
  }
  return {part.substr(6)};
}

/// conv_q, conv_k and conv_v may be one tensor `conv`: channels q, then k, then v.
Status take_convolution(ImportContext& context, const LayerConfig& layer, const std::string& prefix,
                        const TensorSpec& spec) {
  const bool is_bias = spec.name.ends_with(".bias");
  const std::string joint = prefix + (is_bias ? "conv.bias" : "conv.weight");
  const std::string part = spec.name.substr(spec.name.find("conv_"));
  if (!context.tensors.has(joint)) return context.tensors.take(prefix + part, spec.name, spec.shape);
  const std::int64_t key_width = std::int64_t{layer.delta.key_heads} * layer.delta.key_dim;
  const std::int64_t value_width = std::int64_t{layer.delta.value_heads} * layer.delta.value_dim;
  const std::int64_t first = part[5] == 'q' ? 0 : part[5] == 'k' ? key_width : 2 * key_width;
  return context.tensors.take_rows(joint, 2 * key_width + value_width, first, spec.name, spec.shape);
}

/// Vectors of heads and their key rows may be [heads, key_dim].
Status take_layer_part(ImportContext& context, const std::string& source, const LayerConfig& layer,
                       const TensorSpec& spec, MatrixLayout layout) {
  if (spec.shape.size() == 2 && layout == MatrixLayout::kInOut && spec.name.ends_with(".weight"))
    return context.tensors.take_transposed(source, spec.name, spec.shape);
  const bool is_sse = layer.mechanism == Mechanism::kSse;
  const bool has_rows = is_sse || layer.mechanism == Mechanism::kKda || layer.mechanism == Mechanism::kGdn2;
  if (has_rows && spec.name.ends_with(is_sse ? ".a_bias" : ".dt_bias")) {
    const std::int64_t key_dim = is_sse ? layer.sse.key_dim : layer.delta.key_dim;
    const std::vector<std::int64_t> by_head = {spec.shape[0] / key_dim, key_dim};
    if (context.tensors.shape(source) == by_head)
      return context.tensors.take_part(source, by_head, 0, spec.name, spec.shape);
  }
  return context.tensors.take(source, spec.name, spec.shape);
}

Status take_layer_tensor(ImportContext& context, const std::vector<std::string>& kinds, MatrixLayout layout,
                         const TensorSpec& spec) {
  // spec.name is "layers.I.part"
  const std::size_t dot = spec.name.find('.', 7);
  const std::size_t index = std::stoul(spec.name.substr(7, dot - 7));  // our own text
  const std::string part = spec.name.substr(dot + 1);
  const std::string block = "blocks." + std::to_string(index) + ".";
  const LayerConfig& layer = context.description.layers[index];
  if (!part.starts_with("mixer.") && !part.starts_with("routing."))
    return take_layer_part(context, block + part, layer, spec, layout);
  const std::string prefix = block + kinds[index] + ".";
  if (part.starts_with("mixer.conv_") && layer.mechanism != Mechanism::kSse) {
    return take_convolution(context, layer, prefix, spec);
  }
  const std::vector<std::string> names = source_names(part, layer.routing.kind);
  for (const std::string& name : names) {
    if (context.tensors.has(prefix + name)) return take_layer_part(context, prefix + name, layer, spec, layout);
  }
  return Status::format_error("tensor '%s%s' is missing", prefix.c_str(), names.front().c_str());
}

/// embed and head are [vocab, d] in either layout.
Status take_tensors(ImportContext& context, const std::vector<std::string>& kinds, MatrixLayout layout) {
  for (const TensorSpec& spec : expected_tensors(context.description)) {
    if (spec.name.starts_with("layers.")) {
      CAIRN_TRY(take_layer_tensor(context, kinds, layout, spec));
    } else {
      CAIRN_TRY(context.tensors.take(spec.name, spec.name, spec.shape));
    }
  }
  return {};
}

}  // namespace

Status import_native(ImportContext& context) {
  ModelDescription& d = context.description;
  ConfigReader root(context.config, "config.json");
  root.ignore({"format", "spec", "dtype", "parameters"});
  d.architecture = "cairn-native";
  d.name = root.text("name", "");
  d.model_dim = root.int32("d_model");
  d.norm_eps = root.number("norm_eps", 1e-6F);
  d.norm_zero_centered = root.boolean("norm_zero_centered", false);
  d.tied_embedding = root.boolean("tie_embeddings");
  d.trained_tokens = root.integer("max_trained_length", 0);
  root.check(read_tokenizer(root, d));
  CAIRN_TRY_ASSIGN(const MatrixLayout layout, read_layout(root));
  std::vector<std::string> kinds;
  root.check(read_layers(root, context.limits.max_layers, d, kinds));
  CAIRN_TRY(root.finish());
  CAIRN_TRY(validate(d, context.limits));
  return take_tensors(context, kinds, layout);
}

}  // namespace cairn
