#include "runtime/model/cairn_file_writer.h"

#include <algorithm>

#include "runtime/model/container_header.h"
#include "runtime/model/container_writer.h"
#include "runtime/model/model_fingerprint.h"
#include "schema/cairn_model_generated.h"

namespace cairn {
namespace {

namespace fbs = schema;
using Builder = flatbuffers::FlatBufferBuilder;

std::string scales_name(const std::string& tensor) { return tensor + ".scales"; }

struct TextSection {
  const char* name;
  const std::string& text;
};

std::vector<TextSection> text_sections(const TokenizerConfig& tokenizer) {
  return {{"tokenizer.chat_template", tokenizer.chat_template},
          {"tokenizer.data", tokenizer.data},
          {"tokenizer.extra", tokenizer.extra}};
}

Result<ContainerPlan> plan_sections(const ModelDescription& d) {
  ContainerPlan plan(ContainerKind::kModel);
  for (const TensorEntry& tensor : d.tensors) {
    CAIRN_TRY(plan.add(tensor.name, tensor.dtype, tensor.shape));
    if (tensor.dtype == DType::kI8) CAIRN_TRY(plan.add(scales_name(tensor.name), DType::kF32, {tensor.shape[0]}));
    if (tensor.dtype == DType::kI4) {
      CAIRN_TRY(
          plan.add(scales_name(tensor.name), DType::kF32, {tensor.shape[0], tensor.shape[1] / tensor.group_size}));
    }
  }
  for (const auto& [name, text] : text_sections(d.tokenizer)) {
    if (!text.empty()) CAIRN_TRY(plan.add(name, DType::kU8, {static_cast<std::int64_t>(text.size())}));
  }
  CAIRN_TRY(plan.finish());
  return plan;
}

flatbuffers::Offset<fbs::Attention> build_attention(Builder& b, const AttentionConfig& c) {
  return fbs::CreateAttention(b, c.query_heads, c.kv_heads, c.head_dim, c.window, c.rotary_dim, c.rope_theta, c.qk_norm,
                              c.qk_norm_full, c.output_gate, c.qkv_bias, c.qk_norm_eps,
                              static_cast<fbs::NormCentering>(c.qk_norm_centering));
}

flatbuffers::Offset<fbs::Layer> build_layer(Builder& b, const LayerConfig& layer) {
  flatbuffers::Offset<fbs::DeltaRule> delta;
  flatbuffers::Offset<fbs::Sse> sse;
  flatbuffers::Offset<fbs::Sdm> sdm;
  flatbuffers::Offset<fbs::Attention> attention;
  flatbuffers::Offset<fbs::LatentAttention> latent;
  switch (layer.mechanism) {
    case Mechanism::kDeltaNet:
    case Mechanism::kGdn:
    case Mechanism::kKda:
    case Mechanism::kGdn2: {
      const DeltaRuleConfig& c = layer.delta;
      delta = fbs::CreateDeltaRule(b, c.key_heads, c.value_heads, c.key_dim, c.value_dim, c.conv_kernel, c.conv_bias,
                                   static_cast<fbs::QkActivation>(c.qk_activation), static_cast<fbs::QkNorm>(c.qk_norm),
                                   c.has_beta, c.beta_scale, static_cast<fbs::DecayKind>(c.decay), c.decay_lower_bound,
                                   c.decay_rank, c.gate_rank);
      break;
    }
    case Mechanism::kSse: {
      const SseConfig& c = layer.sse;
      sse = fbs::CreateSse(b, c.heads, c.key_dim, c.value_dim, c.partitions, c.top_k,
                           static_cast<fbs::SseTransition>(c.transition), c.has_shared, c.adapt_routed, c.adapter_rank,
                           c.decay_rank, c.decay_root, c.separate_shared_gates,
                           static_cast<fbs::QkActivation>(c.qv_activation), c.query_softmax, c.key_softmax,
                           c.l2_after_gate, c.gate_write, c.gate_read, c.shared_conv_kernel, c.gate_rank);
      break;
    }
    case Mechanism::kSdm: {
      const SdmConfig& c = layer.sdm;
      sdm = fbs::CreateSdm(b, c.heads, c.side, c.value_dim, c.write_count, c.read_count, c.learned_initial,
                           c.slot_residual, c.key_weighted_decay, c.has_bias, c.write_scale, c.read_scale);
      break;
    }
    case Mechanism::kSoftmaxAttention: attention = build_attention(b, layer.attention); break;
    case Mechanism::kLatentAttention: {
      const LatentAttentionConfig& c = layer.latent;
      latent = fbs::CreateLatentAttention(b, c.heads, c.nope_dim, c.shared_dim, c.value_dim, c.rank, c.latent_norm_eps);
      break;
    }
  }
  flatbuffers::Offset<fbs::Attention> side;
  if (layer.has_side_attention) side = build_attention(b, layer.side_attention);
  const auto output = fbs::CreateOutput(b, static_cast<fbs::NormKind>(layer.output.norm),
                                        static_cast<fbs::GateKind>(layer.output.gate), layer.output.eps);
  const RoutingConfig& r = layer.routing;
  const auto routing = fbs::CreateCrossLayerRouting(
      b, static_cast<fbs::Routing>(r.kind), static_cast<fbs::RoutingGamma>(r.gamma), r.rank, r.scaled, r.after_block);
  const MlpConfig& m = layer.mlp;
  const auto mlp = fbs::CreateMlp(b, static_cast<fbs::MlpKind>(m.kind), m.hidden_dim, m.expert_count, m.top_k,
                                  static_cast<fbs::RouterKind>(m.router), m.renormalize, m.correction_bias,
                                  m.routed_scale, m.group_count, m.top_groups, m.shared_hidden_dim, m.shared_gate);
  return fbs::CreateLayer(b, static_cast<fbs::Mechanism>(layer.mechanism), delta, sse, sdm, attention, latent, output,
                          routing, mlp, layer.norm_after, side);
}

void build_header(Builder& b, const ModelDescription& d, const ContainerPlan& plan, const Digest& fingerprint) {
  std::vector<flatbuffers::Offset<fbs::Layer>> layers;
  for (const LayerConfig& layer : d.layers) layers.push_back(build_layer(b, layer));
  std::vector<flatbuffers::Offset<fbs::Quantization>> quantized;
  for (const TensorEntry& tensor : d.tensors) {
    if (tensor.dtype != DType::kI8 && tensor.dtype != DType::kI4) continue;
    quantized.push_back(fbs::CreateQuantization(b, b.CreateString(tensor.name), tensor.group_size));
  }
  const TokenizerConfig& t = d.tokenizer;
  const auto tokenizer = fbs::CreateTokenizer(b, static_cast<fbs::TokenizerKind>(t.kind), t.bos, t.eos, t.add_bos,
                                              b.CreateVector(t.stop_tokens));
  const auto sections = build_sections(b, plan);
  const auto version = b.CreateString(library_version());
  const auto architecture = b.CreateString(d.architecture);
  const auto name = b.CreateString(d.name);
  const auto layer_vector = b.CreateVector(layers);
  const auto quantized_vector = b.CreateVector(quantized);
  const fbs::Digest digest{flatbuffers::span<const std::uint8_t, 32>(fingerprint)};
  const auto header = fbs::CreateModelHeader(b, sections, version, &digest, architecture, name, d.model_dim,
                                             d.vocab_size, d.trained_tokens, d.norm_eps, d.norm_zero_centered,
                                             d.tied_embedding, layer_vector, tokenizer, quantized_vector);
  fbs::FinishModelHeaderBuffer(b, header);
}

/// Counts the checksum pass and the write pass as one.
class TwoPassProgress {
 public:
  TwoPassProgress(const ByteProgress& progress, std::uint64_t first_bytes, std::uint64_t second_bytes)
      : progress_(progress), first_bytes_(first_bytes), total_bytes_(first_bytes + second_bytes) {}
  Status first(std::uint64_t done) const {
    if (!progress_ || progress_(done, total_bytes_)) return {};
    return Status::error(CAIRN_STATUS_CANCELLED, "writing a model was cancelled");
  }
  ByteProgress second() const {
    if (!progress_) return nullptr;
    return [this](std::uint64_t done, std::uint64_t) { return progress_(first_bytes_ + done, total_bytes_); };
  }

 private:
  const ByteProgress& progress_;
  std::uint64_t first_bytes_, total_bytes_;
};

/// Where each section's bytes come from: (tensor, scales?) or a text.
struct SectionOrigin {
  std::size_t tensor = 0;
  bool is_scales = false;
  const std::string* text = nullptr;
};

std::map<std::string, SectionOrigin> section_origins(const ModelDescription& d) {
  std::map<std::string, SectionOrigin> origins;
  for (std::size_t i = 0; i < d.tensors.size(); ++i) {
    origins[d.tensors[i].name] = {i, false, nullptr};
    if (d.tensors[i].scales_bytes > 0) origins[scales_name(d.tensors[i].name)] = {i, true, nullptr};
  }
  for (const auto& [name, text] : text_sections(d.tokenizer)) origins[name] = {0, false, &text};
  return origins;
}

}  // namespace

Status write_cairn(const ModelDescription& d, ByteSink& sink, const CairnFileWriteOptions& options) {
  const TensorProvider own = [&d](std::size_t i) -> Result<TensorBytes> {
    return TensorBytes{d.tensors[i].data, d.tensors[i].scales};
  };
  const TensorProvider& provider = options.provider ? options.provider : own;
  CAIRN_TRY_ASSIGN(const ContainerPlan plan, plan_sections(d));
  Builder sizing;  // the header's size does not depend on the fingerprint
  build_header(sizing, d, plan, Digest{});
  const TwoPassProgress progress(options.progress, plan.payload_bytes(), plan.total_bytes(sizing.GetSize()));
  std::vector<TensorContent> contents;
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < d.tensors.size(); ++i) {
    const TensorEntry& tensor = d.tensors[i];
    CAIRN_TRY_ASSIGN(const TensorBytes bytes, provider(i));
    contents.push_back(
        {block_checksums(bytes.data, tensor.size_bytes), block_checksums(bytes.scales, tensor.scales_bytes)});
    done += tensor.size_bytes + tensor.scales_bytes;
    CAIRN_TRY(progress.first(done));
  }
  Builder builder;
  build_header(builder, d, plan, model_fingerprint(d, contents));
  ContainerWriter writer(plan, sink, progress.second());
  CAIRN_TRY(writer.begin(builder.GetBufferPointer(), builder.GetSize()));
  const std::map<std::string, SectionOrigin> origins = section_origins(d);
  std::size_t loaded = d.tensors.size();
  TensorBytes bytes;
  for (const Section& section : plan.sections()) {
    const SectionOrigin& origin = origins.at(section.name);
    if (!origin.text && origin.tensor != loaded) {
      CAIRN_TRY_ASSIGN(bytes, provider(origin.tensor));
      loaded = origin.tensor;
    }
    const void* data = origin.text ? origin.text->data() : origin.is_scales ? bytes.scales : bytes.data;
    CAIRN_TRY(writer.write(data, section.size_bytes));
  }
  return writer.finish();
}

Status write_cairn_file(const ModelDescription& description, const std::string& path,
                        const AtomicFile::CommitOptions& commit, const CairnFileWriteOptions& options) {
  CAIRN_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  FileSink sink(file);
  CAIRN_TRY(write_cairn(description, sink, options));
  return file.commit(commit);
}

}  // namespace cairn
