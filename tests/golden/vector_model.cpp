#include "tests/golden/vector_model.h"

#include <algorithm>
#include <set>
#include <span>

namespace cairn::test {
namespace {

using nlohmann::json;

/// A mixer's weight in the case, and whether it is a projection [in, out].
struct Source {
  const char* canonical;
  const char* native;
  bool is_projection;
};

constexpr Source kMixerSources[] = {
    {"q.weight", "W_q", true},          {"k.weight", "W_k", true},          {"v.weight", "W_v", true},
    {"o.weight", "W_o", true},          {"b.weight", "W_b", true},          {"a.weight", "W_a", true},
    {"a_down.weight", "W_a1", true},    {"a_up.weight", "W_a2", true},      {"w.weight", "W_w", true},
    {"e.weight", "W_e", true},          {"q_down.weight", "A_q", true},     {"q_up.weight", "B_q", true},
    {"k_down.weight", "A_k", true},     {"k_up.weight", "B_k", true},       {"norm.weight", "norm", false},
    {"conv_q.weight", "conv_q", false}, {"conv_k.weight", "conv_k", false}, {"conv_v.weight", "conv_v", false},
    {"a_log", "A_log", false},          {"dt_bias", "dt_bias", false},      {"a_bias", "b_a", false},
    {"initial", "M_0", false},          {"q_norm.weight", "q_norm", false}, {"k_norm.weight", "k_norm", false},
};
constexpr Source kRoutingSources[] = {{"gamma", "route_gamma", false},
                                      {"p.weight", "route_P", true},
                                      {"down.weight", "route_D", true},
                                      {"up.weight", "route_U", true}};
constexpr Source kMlpSources[] = {
    {"gate.weight", "W_g", true}, {"up.weight", "W_u", true}, {"down.weight", "W_d", true}};
constexpr Source kModelSources[] = {
    {"embed.weight", "embed", false}, {"final_norm.weight", "norm", false}, {"head.weight", "head", false}};

struct MixerKind {
  const char* name;
  Mechanism mechanism;
  const char* keys;  ///< that its configuration may have
};

constexpr const char *kDeltaKeys = "mixer HK HV K V gate eps conv route route_rank ff",
                     *kRowDecayKeys = "mixer HK HV K V gate eps conv route route_rank ff rank";
constexpr MixerKind kMixers[] = {
    {"deltanet", Mechanism::kDeltaNet, kDeltaKeys},
    {"gdn", Mechanism::kGdn, kDeltaKeys},
    {"kda", Mechanism::kKda, kRowDecayKeys},
    {"gdn2", Mechanism::kGdn2, kRowDecayKeys},
    {"sse", Mechanism::kSse, "mixer H K V N topk rank delta gate eps route route_rank ff"},
    {"sdm", Mechanism::kSdm, "mixer H n V W R slot_residual learned_M0 gate eps route route_rank ff"},
    {"attn", Mechanism::kSoftmaxAttention,
     "mixer HQ HKV D rope_dim rope_theta window qk_norm out_gate zero_centred eps route ff"}};

/// Builds descriptions from a case's weights, and notices weights that nothing took.
class Converter {
 public:
  explicit Converter(const VectorCase& vectors) : case_(vectors) {}

  Result<LayerConfig> layer(const json& cfg, const std::string& weights, const std::string& mlp_weights) const;
  Status add_tensors(ModelDescription* model, bool is_layer_case, bool replaced_routing);

 private:
  Status fill_mixer(const json& cfg, const std::string& weights, LayerConfig* layer) const;
  Status check_sizes(const json& cfg, const std::string& weights, const LayerConfig& layer) const;
  Status fill_routing(const json& cfg, const std::string& weights, LayerConfig* layer) const;
  Result<std::vector<float>> values(const TensorSpec& spec, bool is_layer_case, bool replaced_routing);
  std::vector<float> take(const std::string& tensor, bool is_projection);
  std::int32_t dim(const std::string& tensor, std::size_t axis) const {
    return case_.has(tensor) ? case_.dim(tensor, axis) : 0;
  }

  const VectorCase& case_;
  std::set<std::string> taken_;
};

std::int32_t number(const json& cfg, const char* key) { return cfg.value(key, 0); }

void fill_delta(const json& cfg, DeltaRuleConfig* d) {
  d->key_heads = number(cfg, "HK"), d->value_heads = number(cfg, "HV"), d->key_dim = number(cfg, "K"),
  d->value_dim = number(cfg, "V");
}

void fill_attention(const json& cfg, AttentionConfig* a) {
  a->query_heads = number(cfg, "HQ"), a->kv_heads = number(cfg, "HKV"), a->head_dim = number(cfg, "D");
  a->window = number(cfg, "window");
  a->rotary_dim = number(cfg, "rope_dim");
  a->rope_theta = cfg.value("rope_theta", 10000.0F);
  a->qk_norm = cfg.value("qk_norm", false);
  a->qk_norm_eps = cfg.value("eps", 1e-6F);
  a->qk_norm_centering = cfg.value("zero_centred", false) ? NormCentering::kZeroCentered : NormCentering::kPlain;
  a->output_gate = cfg.value("out_gate", false);
}

Status Converter::fill_mixer(const json& cfg, const std::string& w, LayerConfig* layer) const {
  const std::string mixer = cfg.at("mixer").get<std::string>(), gate = cfg.value("gate", "silu");
  const auto* kind =
      std::find_if(std::begin(kMixers), std::end(kMixers), [&](const MixerKind& k) { return mixer == k.name; });
  if (kind == std::end(kMixers)) return Status::unsupported("mixer '%s' is not known", mixer.c_str());
  const std::string unknown = unknown_key(cfg, kind->keys);
  if (!unknown.empty()) return Status::unsupported("%s: '%s' is not known", mixer.c_str(), unknown.c_str());
  if (gate != "silu" && gate != "sigmoid") return Status::unsupported("gate '%s' is not known", gate.c_str());
  layer->mechanism = kind->mechanism;
  fill_delta(cfg, &layer->delta);
  layer->delta.conv_kernel = dim(w + "conv_q", 1);
  layer->delta.decay_rank = dim(w + "W_a1", 1);
  layer->sse.heads = number(cfg, "H"), layer->sse.key_dim = number(cfg, "K"), layer->sse.value_dim = number(cfg, "V");
  layer->sse.partitions = number(cfg, "N"), layer->sse.top_k = number(cfg, "topk");
  layer->sse.transition = cfg.value("delta", false) ? SseTransition::kDelta : SseTransition::kGla;
  layer->sse.adapter_rank = dim(w + "A_q", 1);
  layer->sse.decay_rank = dim(w + "W_a1", 1);
  layer->sdm.heads = number(cfg, "H"), layer->sdm.side = number(cfg, "n"), layer->sdm.value_dim = number(cfg, "V");
  layer->sdm.write_count = number(cfg, "W"), layer->sdm.read_count = number(cfg, "R");
  layer->sdm.learned_initial = case_.has(w + "M_0");
  layer->sdm.slot_residual = cfg.value("slot_residual", false);
  fill_attention(cfg, &layer->attention);
  layer->output.gate = gate == "sigmoid" ? GateKind::kSigmoid : GateKind::kSilu;
  layer->output.eps = cfg.value("eps", 1e-6F);
  return check_sizes(cfg, w, *layer);
}

/// What the configuration says of the tensors' sizes, where it says something.
Status Converter::check_sizes(const json& cfg, const std::string& w, const LayerConfig& layer) const {
  const auto agree = [&](const char* key, std::int32_t said, std::int32_t found) {
    return said == found ? Status() : Status::unsupported("'%s' is %d, but the tensors say %d", key, said, found);
  };
  const std::int32_t rank = dim(w + "W_a1", 1), routing_rank = dim(w + "route_D", 1);
  if (layer.mechanism <= Mechanism::kGdn2) CAIRN_TRY(agree("conv", cfg.value("conv", 4), layer.delta.conv_kernel));
  if (rank > 0) CAIRN_TRY(agree("rank", cfg.value("rank", rank), rank));
  if (layer.mechanism == Mechanism::kSse)
    CAIRN_TRY(agree("rank", cfg.value("rank", layer.sse.adapter_rank), layer.sse.adapter_rank));
  if (layer.mechanism == Mechanism::kSdm)
    CAIRN_TRY(agree("learned_M0", cfg.value("learned_M0", true), layer.sdm.learned_initial));
  return agree("route_rank", cfg.value("route_rank", routing_rank), routing_rank);
}

Status Converter::fill_routing(const json& cfg, const std::string& w, LayerConfig* layer) const {
  const std::string kind = cfg.contains("route") && !cfg["route"].is_null() ? cfg["route"].get<std::string>() : "";
  if (kind.empty()) return {};
  if (kind != "cler" && kind != "clerh" && kind != "clvr")
    return Status::unsupported("route '%s' is not known", kind.c_str());
  layer->routing.kind = kind == "cler" ? Routing::kCler : kind == "clerh" ? Routing::kClerH : Routing::kClvr;
  layer->routing.rank = dim(w + "route_D", 1);
  if (!case_.has(w + "route_gamma")) return {};
  const std::int64_t gammas = case_.tensor(w + "route_gamma").count();
  const std::int64_t heads = layer->mechanism == Mechanism::kSdm ? layer->sdm.heads : layer->delta.value_heads;
  layer->routing.gamma = gammas == 1       ? RoutingGamma::kScalar
                         : gammas == heads ? RoutingGamma::kHead
                                           : RoutingGamma::kChannel;
  return {};
}

Result<LayerConfig> Converter::layer(const json& cfg, const std::string& weights,
                                     const std::string& mlp_weights) const {
  LayerConfig layer;
  CAIRN_TRY(fill_mixer(cfg, weights, &layer));
  CAIRN_TRY(fill_routing(cfg, weights, &layer));
  layer.mlp.hidden_dim = dim(mlp_weights + "W_g", 1);
  layer.mlp.kind = layer.mlp.hidden_dim ? MlpKind::kSwiglu : MlpKind::kNone;
  return layer;
}

std::vector<float> Converter::take(const std::string& tensor, bool is_projection) {
  taken_.insert(tensor);
  std::vector<float> values = case_.floats(tensor);
  if (!is_projection) return values;
  const std::size_t in = case_.tensor(tensor).shape[0], out = values.size() / in;
  std::vector<float> transposed(values.size());
  for (std::size_t i = 0; i < in; ++i) {
    for (std::size_t o = 0; o < out; ++o) transposed[o * in + i] = values[i * out + o];
  }
  return transposed;
}

const Source* find_source(std::span<const Source> sources, const std::string& canonical) {
  for (const Source& source : sources) {
    if (canonical == source.canonical) return &source;
  }
  return nullptr;
}

/// Splits "layers.3.mixer.q.weight" into "layers.3.", "mixer" and "q.weight".
bool split_name(const std::string& name, std::string* layer, std::string* part, std::string* rest) {
  if (!name.starts_with("layers.")) return false;
  const std::size_t dot = name.find('.', 7), next = name.find('.', dot + 1);
  *layer = name.substr(0, dot + 1);
  *part = name.substr(dot + 1, next - dot - 1);
  *rest = name.substr(next + 1);
  return true;
}

Result<std::vector<float>> Converter::values(const TensorSpec& spec, bool is_layer_case, bool replaced_routing) {
  std::string layer, part, rest;
  std::string tensor;
  bool is_projection = false;
  if (!split_name(spec.name, &layer, &part, &rest)) {
    const Source* source = find_source(kModelSources, spec.name);
    if (is_layer_case)
      return std::vector<float>(spec.shape.size() == 1 ? spec.shape[0] : spec.shape[0] * spec.shape[1], 1.0F);
    if (source) tensor = std::string("w.") + source->native;
  } else if (part == "norm1" || part == "norm2") {
    if (is_layer_case) return std::vector<float>(spec.shape[0], 1.0F);
    tensor = "w." + layer + part;
  } else {
    if (part == "routing" && replaced_routing) return std::vector<float>(1, 0.0F);
    const Source* source = part == "mixer" ? find_source(kMixerSources, rest)
                           : part == "mlp" ? find_source(kMlpSources, rest)
                                           : find_source(kRoutingSources, rest);
    const std::string prefix = is_layer_case ? "w." : "w." + layer + (part == "mlp" ? "mlp." : "mixer.");
    if (source) tensor = prefix + source->native, is_projection = source->is_projection;
    if (part == "mixer" && rest == "z.weight")
      tensor = prefix + (case_.has(prefix + "W_z") ? "W_z" : "W_g"), is_projection = true;
  }
  if (tensor.empty() || !case_.has(tensor))
    return Status::format_error("%s: the case has no weight for it", spec.name.c_str());
  std::vector<float> result = take(tensor, is_projection);
  std::int64_t count = 1;
  for (const std::int64_t size : spec.shape) count *= size;
  if (static_cast<std::int64_t>(result.size()) != count)
    return Status::format_error("%s: '%s' has another size", spec.name.c_str(), tensor.c_str());
  return result;
}

Status Converter::add_tensors(ModelDescription* model, bool is_layer_case, bool replaced_routing) {
  for (const TensorSpec& spec : expected_tensors(*model)) {
    CAIRN_TRY_ASSIGN(std::vector<float> numbers, values(spec, is_layer_case, replaced_routing));
    auto storage = std::make_shared<std::vector<float>>(std::move(numbers));
    TensorEntry entry;
    entry.name = spec.name;
    entry.shape = spec.shape;
    entry.data = storage->data();
    entry.size_bytes = storage->size() * sizeof(float);
    model->tensors.push_back(entry);
    model->storage.push_back(storage);
  }
  for (const auto& [name, unused] : case_.tensors()) {
    const bool is_routing = name.find("route_") != std::string::npos;
    if (name.starts_with("w.") && !taken_.count(name) && !(replaced_routing && is_routing)) {
      return Status::format_error("weight '%s' was not used", name.c_str());
    }
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const ModelDescription>> layer_description(const VectorCase& vectors, bool routes_residual) {
  const json& cfg = vectors.params().at("cfg");
  Converter converter(vectors);
  auto model = std::make_shared<ModelDescription>();
  model->architecture = "cairn-native";
  model->name = vectors.name();
  model->model_dim = vectors.param("d");
  model->vocab_size = 2;
  model->tied_embedding = true;
  CAIRN_TRY_ASSIGN(LayerConfig layer, converter.layer(cfg, "w.", "none."));
  if (routes_residual) layer.routing = {Routing::kCler};
  model->layers.push_back(layer);
  CAIRN_TRY(converter.add_tensors(model.get(), true, routes_residual));
  return std::shared_ptr<const ModelDescription>(std::move(model));
}

Result<std::shared_ptr<const ModelDescription>> model_description(const VectorCase& vectors) {
  const json& cfg = vectors.params().at("cfg");
  const std::string unknown = unknown_key(cfg, "d vocab layers tied zero_centred eps");
  if (!unknown.empty()) return Status::unsupported("model configuration '%s' is not known", unknown.c_str());
  Converter converter(vectors);
  auto model = std::make_shared<ModelDescription>();
  model->architecture = "cairn-native";
  model->name = vectors.name();
  model->model_dim = cfg.at("d").get<std::int32_t>();
  model->vocab_size = cfg.at("vocab").get<std::int32_t>();
  model->tied_embedding = cfg.value("tied", false);
  model->norm_zero_centered = cfg.value("zero_centred", false);
  model->norm_eps = cfg.value("eps", 1e-6F);
  for (std::size_t i = 0; i < cfg.at("layers").size(); ++i) {
    const json& layer_cfg = cfg["layers"][i];
    const std::string prefix = "w.layers." + std::to_string(i) + ".";
    CAIRN_TRY_ASSIGN(LayerConfig layer, converter.layer(layer_cfg, prefix + "mixer.", prefix + "mlp."));
    model->layers.push_back(layer);
  }
  CAIRN_TRY(converter.add_tensors(model.get(), false, false));
  return std::shared_ptr<const ModelDescription>(std::move(model));
}

}  // namespace cairn::test
