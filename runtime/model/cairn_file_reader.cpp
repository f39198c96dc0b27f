#include "runtime/model/cairn_file_reader.h"

#include <cstring>
#include <map>

#include "runtime/model/container_header.h"
#include "runtime/model/container_reader.h"
#include "runtime/model/model_fingerprint.h"
#include "runtime/support/file.h"
#include "schema/cairn_model_generated.h"

namespace cairn {
namespace {

namespace fbs = schema;


/// One of the house's enums from a schema's; validate() refuses unknown values.
template <class To, class From>
To as(From value) {
  return static_cast<To>(value);
}

DeltaRuleConfig read_delta_rule(const fbs::DeltaRule& f) {
  DeltaRuleConfig c;
  c.key_heads = f.key_heads();
  c.value_heads = f.value_heads();
  c.key_dim = f.key_dim();
  c.value_dim = f.value_dim();
  c.conv_kernel = f.conv_kernel();
  c.conv_bias = f.conv_bias();
  c.qk_activation = as<QkActivation>(f.qk_activation());
  c.qk_norm = as<QkNorm>(f.qk_norm());
  c.has_beta = f.has_beta();
  c.beta_scale = f.beta_scale();
  c.decay = as<DecayKind>(f.decay());
  c.decay_lower_bound = f.decay_lower_bound();
  c.decay_rank = f.decay_rank();
  c.gate_rank = f.gate_rank();
  return c;
}

SseConfig read_sse(const fbs::Sse& f) {
  SseConfig c;
  c.heads = f.heads();
  c.key_dim = f.key_dim();
  c.value_dim = f.value_dim();
  c.partitions = f.partitions();
  c.top_k = f.top_k();
  c.transition = as<SseTransition>(f.transition());
  c.has_shared = f.has_shared();
  c.adapt_routed = f.adapt_routed();
  c.adapter_rank = f.adapter_rank();
  c.decay_rank = f.decay_rank();
  c.decay_root = f.decay_root();
  c.separate_shared_gates = f.separate_shared_gates();
  c.qv_activation = as<QkActivation>(f.qv_activation());
  c.query_softmax = f.query_softmax();
  c.key_softmax = f.key_softmax();
  c.l2_after_gate = f.l2_after_gate();
  c.gate_write = f.gate_write();
  c.gate_read = f.gate_read();
  c.shared_conv_kernel = f.shared_conv_kernel();
  c.gate_rank = f.gate_rank();
  return c;
}

SdmConfig read_sdm(const fbs::Sdm& f) {
  SdmConfig c;
  c.heads = f.heads();
  c.side = f.side();
  c.value_dim = f.value_dim();
  c.write_count = f.write_count();
  c.read_count = f.read_count();
  c.learned_initial = f.learned_initial();
  c.slot_residual = f.slot_residual();
  c.key_weighted_decay = f.key_weighted_decay();
  c.has_bias = f.has_bias();
  c.write_scale = f.write_scale();
  c.read_scale = f.read_scale();
  return c;
}

AttentionConfig read_attention(const fbs::Attention& f) {
  AttentionConfig c;
  c.query_heads = f.query_heads();
  c.kv_heads = f.kv_heads();
  c.head_dim = f.head_dim();
  c.window = f.window();
  c.rotary_dim = f.rotary_dim();
  c.rope_theta = f.rope_theta();
  c.qk_norm = f.qk_norm();
  c.qk_norm_full = f.qk_norm_full();
  c.output_gate = f.output_gate();
  c.qkv_bias = f.qkv_bias();
  c.qk_norm_eps = f.qk_norm_eps();
  c.qk_norm_centering = as<NormCentering>(f.qk_norm_centering());
  return c;
}

LatentAttentionConfig read_latent(const fbs::LatentAttention& f) {
  LatentAttentionConfig c;
  c.heads = f.heads();
  c.nope_dim = f.nope_dim();
  c.shared_dim = f.shared_dim();
  c.value_dim = f.value_dim();
  c.rank = f.rank();
  c.latent_norm_eps = f.latent_norm_eps();
  return c;
}

MlpConfig read_mlp(const fbs::Mlp& f) {
  MlpConfig c;
  c.kind = as<MlpKind>(f.kind());
  c.hidden_dim = f.hidden_dim();
  c.expert_count = f.expert_count();
  c.top_k = f.top_k();
  c.router = as<RouterKind>(f.router());
  c.renormalize = f.renormalize();
  c.correction_bias = f.correction_bias();
  c.routed_scale = f.routed_scale();
  c.group_count = f.group_count();
  c.top_groups = f.top_groups();
  c.shared_hidden_dim = f.shared_hidden_dim();
  c.shared_gate = f.shared_gate();
  return c;
}

/// The mixer that the mechanism names, and no other, must be there.
Result<LayerConfig> read_layer(const fbs::Layer& f, unsigned index) {
  LayerConfig layer;
  layer.mechanism = as<Mechanism>(f.mechanism());
  if (f.delta()) layer.delta = read_delta_rule(*f.delta());
  if (f.sse()) layer.sse = read_sse(*f.sse());
  if (f.sdm()) layer.sdm = read_sdm(*f.sdm());
  if (f.attention()) layer.attention = read_attention(*f.attention());
  if (f.latent()) layer.latent = read_latent(*f.latent());
  const int present =
      (f.delta() ? 1 : 0) + (f.sse() ? 1 : 0) + (f.sdm() ? 1 : 0) + (f.attention() ? 1 : 0) + (f.latent() ? 1 : 0);
  bool has_own = false;
  switch (layer.mechanism) {
    case Mechanism::kDeltaNet:
    case Mechanism::kGdn:
    case Mechanism::kKda:
    case Mechanism::kGdn2: has_own = f.delta(); break;
    case Mechanism::kSse: has_own = f.sse(); break;
    case Mechanism::kSdm: has_own = f.sdm(); break;
    case Mechanism::kSoftmaxAttention: has_own = f.attention(); break;
    case Mechanism::kLatentAttention: has_own = f.latent(); break;
  }
  if (!has_own || present != 1) {
    return Status::format_error("layer %u (%s): %d mixer tables, of which %s is its own", index,
                                mechanism_name(layer.mechanism), present, has_own ? "one" : "none");
  }
  layer.output = {as<NormKind>(f.output()->norm()), as<GateKind>(f.output()->gate()), f.output()->eps()};
  const fbs::CrossLayerRouting& r = *f.routing();
  layer.routing = {as<Routing>(r.kind()), as<RoutingGamma>(r.gamma()), r.rank(), r.scaled(), r.after_block()};
  layer.mlp = read_mlp(*f.mlp());
  layer.norm_after = f.norm_after();
  layer.has_side_attention = f.side_attention() != nullptr;
  if (f.side_attention()) layer.side_attention = read_attention(*f.side_attention());
  return layer;
}

Status read_config(const fbs::ModelHeader& h, const ModelLimits& limits, ModelDescription& d) {
  CAIRN_TRY_ASSIGN(const std::string version, checked_text(h.library_version(), "library_version", kMaxNameBytes));
  CAIRN_TRY_ASSIGN(d.architecture, checked_text(h.architecture(), "architecture", kMaxNameBytes));
  CAIRN_TRY_ASSIGN(d.name, checked_text(h.name(), "name", kMaxNameBytes));
  d.model_dim = h.model_dim();
  d.vocab_size = h.vocab_size();
  d.trained_tokens = h.trained_tokens();
  d.norm_eps = h.norm_eps();
  d.norm_zero_centered = h.norm_zero_centered();
  d.tied_embedding = h.tied_embedding();
  if (h.layers()->size() > limits.max_layers) {
    return Status::limit_exceeded("%u layers (limit %u)", h.layers()->size(), limits.max_layers);
  }
  for (unsigned i = 0; i < h.layers()->size(); ++i) {
    CAIRN_TRY_ASSIGN(LayerConfig layer, read_layer(*h.layers()->Get(i), i));
    d.layers.push_back(layer);
  }
  const fbs::Tokenizer& t = *h.tokenizer();
  d.tokenizer.kind = as<TokenizerKind>(t.kind());
  d.tokenizer.bos = t.bos();
  d.tokenizer.eos = t.eos();
  d.tokenizer.add_bos = t.add_bos();
  d.tokenizer.stop_tokens = copy_vector(t.stop_tokens());
  std::memcpy(d.fingerprint.data(), h.fingerprint(), d.fingerprint.size());
  return {};
}

/// The texts of the tokenizer: copied, and checked by their checksums on the way.
Status read_texts(const ContainerReader& reader, ModelDescription& d) {
  const std::pair<const char*, std::string*> texts[] = {{"tokenizer.chat_template", &d.tokenizer.chat_template},
                                                        {"tokenizer.data", &d.tokenizer.data},
                                                        {"tokenizer.extra", &d.tokenizer.extra}};
  for (const auto& [name, text] : texts) {
    const Section* section = reader.find(name);
    if (!section) continue;
    if (section->dtype != DType::kU8 || section->shape.size() != 1 || section->size_bytes > kMaxTokenizerBytes) {
      return Status::format_error("section '%s' is %s of %llu bytes (u8 of rank 1, at most %llu bytes)", name,
                                  dtype_name(section->dtype), static_cast<unsigned long long>(section->size_bytes),
                                  static_cast<unsigned long long>(kMaxTokenizerBytes));
    }
    text->resize(section->size_bytes);
    CAIRN_TRY(reader.read(*section, text->data()));
  }
  return {};
}

/// Group sizes by section name; sorted and unique in the file.
Result<std::map<std::string, std::int32_t>> read_quantizations(const fbs::ModelHeader& h) {
  std::map<std::string, std::int32_t> groups;
  for (const fbs::Quantization* q : *h.quantized()) {
    CAIRN_TRY_ASSIGN(std::string name, checked_text(q->section(), "a quantised section's name", kMaxSectionNameBytes));
    if (!groups.empty() && !(groups.rbegin()->first < name)) {
      return Status::format_error("the quantised sections are not sorted at '%s'", name.c_str());
    }
    groups.emplace(std::move(name), q->group_size());
  }
  return groups;
}

Status attach_scales(const ContainerReader& reader, TensorEntry& tensor) {
  const Section* scales = reader.find(tensor.name + ".scales");
  if (!scales || scales->dtype != DType::kF32) {
    return Status::format_error("section '%s.scales' is missing or not f32", tensor.name.c_str());
  }
  if (tensor.shape.size() != 2)
    return Status::format_error("tensor '%s': quantised, but not a matrix", tensor.name.c_str());
  std::vector<std::int64_t> shape = {tensor.shape[0]};
  if (tensor.dtype == DType::kI4) {
    if (tensor.group_size < 1)
      return Status::format_error("tensor '%s': groups of %d", tensor.name.c_str(), tensor.group_size);
    shape.push_back(tensor.shape[1] / tensor.group_size);
  }
  CAIRN_TRY(reader.require(scales->name, DType::kF32, shape).status());
  tensor.scales = reinterpret_cast<const float*>(reader.data(*scales));
  tensor.scales_bytes = scales->size_bytes;
  return {};
}

Status read_tensors(const ContainerReader& reader, const ModelLimits& limits, ModelDescription& d,
                    std::vector<TensorContent>& contents) {
  CAIRN_TRY_ASSIGN(const auto groups, read_quantizations(reader.model_header()));
  const auto checksums_of = [&](const Section& section) {
    const std::uint64_t* first = reader.checksums(section);
    return std::vector<std::uint64_t>(first, first + checksum_block_count(section.size_bytes));
  };
  std::size_t used_groups = 0;
  for (const Section& section : reader.sections()) {
    const std::string& name = section.name;
    if (name == "tokenizer.chat_template" || name == "tokenizer.data" || name == "tokenizer.extra") continue;
    if (name.ends_with(".scales") && groups.contains(name.substr(0, name.size() - 7))) continue;
    TensorEntry tensor;
    tensor.name = name;
    tensor.dtype = section.dtype;
    tensor.shape = section.shape;
    tensor.data = reader.data(section);
    tensor.size_bytes = section.size_bytes;
    TensorContent content{checksums_of(section), {}};
    if (const auto group = groups.find(name); group != groups.end()) {
      tensor.group_size = group->second;
      ++used_groups;
      CAIRN_TRY(attach_scales(reader, tensor));
      content.scales = checksums_of(*reader.find(name + ".scales"));
    }
    d.tensors.push_back(std::move(tensor));
    contents.push_back(std::move(content));
  }
  if (d.tensors.size() > limits.max_tensors) {
    return Status::limit_exceeded("%zu tensors (limit %u)", d.tensors.size(), limits.max_tensors);
  }
  if (used_groups != groups.size()) return Status::format_error("a quantised section that is not there is listed");
  return {};
}

}  // namespace

Result<ModelDescription> read_cairn_source(std::shared_ptr<const ByteSource> source,
                                           const CairnFileReadOptions& options) {
  ContainerLimits limits;
  limits.max_section_bytes = std::min(limits.max_section_bytes, options.limits.max_tensor_bytes);
  CAIRN_TRY_ASSIGN(const ContainerReader reader, ContainerReader::open(source, ContainerKind::kModel, limits));
  if (!source->memory()) return Status::error(CAIRN_STATUS_INTERNAL, "a model is read from memory only");
  ModelDescription d;
  CAIRN_TRY(read_config(reader.model_header(), options.limits, d));
  CAIRN_TRY(read_texts(reader, d));
  CAIRN_TRY(validate(d, options.limits));
  std::vector<TensorContent> contents;
  CAIRN_TRY(read_tensors(reader, options.limits, d, contents));
  CAIRN_TRY(check_tensors(d));
  if (model_fingerprint(d, contents) != d.fingerprint) {
    return Status::error(CAIRN_STATUS_CHECKSUM, "the fingerprint does not fit the configuration and the tensors");
  }
  if (options.verify_payload) CAIRN_TRY(reader.verify_payload(options.progress));
  if (options.check_finite) CAIRN_TRY(check_finite(d));
  d.storage.push_back(std::move(source));
  return d;
}

Result<ModelDescription> read_cairn_memory(const void* data, std::uint64_t size_bytes,
                                           const CairnFileReadOptions& options) {
  // The structure first: what is no model is not copied.
  CAIRN_TRY(ContainerReader::open(memory_source(data, size_bytes), ContainerKind::kModel).status());
  CAIRN_TRY_ASSIGN(auto source, copied_source(data, size_bytes));
  return read_cairn_source(std::move(source), options);
}

Result<ModelDescription> read_cairn_file(const std::string& path, const CairnFileReadOptions& options) {
  const auto read = [&]() -> Result<ModelDescription> {
    // The structure first: a file of a terabyte that is no model is neither mapped nor read.
    CAIRN_TRY_ASSIGN(auto file, file_source(path, FileAccess::kPositional));
    CAIRN_TRY(ContainerReader::open(std::move(file), ContainerKind::kModel).status());
    CAIRN_TRY_ASSIGN(auto source, file_source(path, options.no_mmap ? FileAccess::kReadAll : FileAccess::kMap));
    return read_cairn_source(std::move(source), options);
  };
  Result<ModelDescription> result = read();
  if (result.ok()) return result;
  return with_path(path, result.status());
}

}  // namespace cairn
