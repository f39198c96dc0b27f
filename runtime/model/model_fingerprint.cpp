#include "runtime/model/model_fingerprint.h"

#include <bit>

namespace cairn {
namespace {

/// Feeds numbers to the digest, 4 bytes each, little-endian.
class Numbers {
 public:
  explicit Numbers(Blake2bStream& digest) : digest_(digest) {}
  template <class... T>
  void operator()(T... values) {
    (one(values), ...);
  }

 private:
  void one(std::int32_t value) { digest_.update_u32(static_cast<std::uint32_t>(value)); }
  void one(bool value) { digest_.update_u32(value ? 1 : 0); }
  void one(float value) { digest_.update_u32(std::bit_cast<std::uint32_t>(value)); }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void one(Enum value) { digest_.update_u32(static_cast<std::uint32_t>(value)); }
  Blake2bStream& digest_;
};

void add_attention(Numbers& add, const AttentionConfig& c) {
  add(c.query_heads, c.kv_heads, c.head_dim, c.window, c.rotary_dim, c.rope_theta, c.qk_norm, c.qk_norm_full,
      c.output_gate, c.qkv_bias);
  if (c.qk_norm_eps != 0 || c.qk_norm_centering != NormCentering::kAsModel) add(-1, c.qk_norm_eps, c.qk_norm_centering);
}

void add_mixer(Numbers& add, const LayerConfig& layer) {
  switch (layer.mechanism) {
    case Mechanism::kDeltaNet:
    case Mechanism::kGdn:
    case Mechanism::kKda:
    case Mechanism::kGdn2: {
      const DeltaRuleConfig& c = layer.delta;
      return add(c.key_heads, c.value_heads, c.key_dim, c.value_dim, c.conv_kernel, c.conv_bias, c.qk_activation,
                 c.qk_norm, c.has_beta, c.beta_scale, c.decay, c.decay_lower_bound, c.decay_rank, c.gate_rank);
    }
    case Mechanism::kSse: {
      const SseConfig& c = layer.sse;
      return add(c.heads, c.key_dim, c.value_dim, c.partitions, c.top_k, c.transition, c.has_shared, c.adapt_routed,
                 c.adapter_rank, c.decay_rank, c.decay_root, c.separate_shared_gates, c.qv_activation, c.query_softmax,
                 c.key_softmax, c.l2_after_gate, c.gate_write, c.gate_read, c.shared_conv_kernel, c.gate_rank);
    }
    case Mechanism::kSdm: {
      const SdmConfig& c = layer.sdm;
      return add(c.heads, c.side, c.value_dim, c.write_count, c.read_count, c.learned_initial, c.slot_residual,
                 c.key_weighted_decay, c.has_bias, c.write_scale, c.read_scale);
    }
    case Mechanism::kSoftmaxAttention: return add_attention(add, layer.attention);
    case Mechanism::kLatentAttention: {
      const LatentAttentionConfig& c = layer.latent;
      return add(c.heads, c.nope_dim, c.shared_dim, c.value_dim, c.rank, c.latent_norm_eps);
    }
  }
}

void add_layer(Numbers& add, const LayerConfig& layer) {
  add(layer.mechanism);
  add_mixer(add, layer);
  add(layer.output.norm, layer.output.gate, layer.output.eps);
  add(layer.routing.kind, layer.routing.gamma, layer.routing.rank, layer.routing.scaled, layer.routing.after_block);
  const MlpConfig& m = layer.mlp;
  add(m.kind, m.hidden_dim, m.expert_count, m.top_k, m.router, m.renormalize, m.correction_bias, m.routed_scale,
      m.group_count, m.top_groups, m.shared_hidden_dim, m.shared_gate, layer.norm_after);
  if (layer.has_side_attention) add_attention(add, layer.side_attention);
}

void add_content(Blake2bStream& digest, std::uint64_t size_bytes, const std::vector<std::uint64_t>& checksums) {
  digest.update_u64(size_bytes);
  for (std::uint64_t checksum : checksums) digest.update_u64(checksum);
}

}  // namespace

Digest model_fingerprint(const ModelDescription& d, const std::vector<TensorContent>& contents) {
  Blake2bStream digest;
  digest.update_string("cairn-model/1");
  Numbers add(digest);
  add(d.model_dim, d.vocab_size, d.norm_eps, d.norm_zero_centered, d.tied_embedding,
      static_cast<std::int32_t>(d.layers.size()));
  for (const LayerConfig& layer : d.layers) add_layer(add, layer);
  add(static_cast<std::int32_t>(d.tensors.size()));
  for (std::size_t i = 0; i < d.tensors.size(); ++i) {
    const TensorEntry& tensor = d.tensors[i];
    digest.update_string(tensor.name);
    add(tensor.dtype, tensor.group_size, static_cast<std::int32_t>(tensor.shape.size()));
    for (std::int64_t dim : tensor.shape) digest.update_u64(static_cast<std::uint64_t>(dim));
    add_content(digest, tensor.size_bytes, contents[i].data);
    add_content(digest, tensor.scales_bytes, contents[i].scales);
  }
  return digest.finish();
}

Status compute_fingerprint(ModelDescription& description, const ByteProgress& progress) {
  std::uint64_t done = 0, total = 0;
  for (const TensorEntry& tensor : description.tensors) total += tensor.size_bytes + tensor.scales_bytes;
  std::vector<TensorContent> contents;
  contents.reserve(description.tensors.size());
  for (const TensorEntry& tensor : description.tensors) {
    contents.push_back(
        {block_checksums(tensor.data, tensor.size_bytes), block_checksums(tensor.scales, tensor.scales_bytes)});
    done += tensor.size_bytes + tensor.scales_bytes;
    if (progress && !progress(done, total))
      return Status::error(CAIRN_STATUS_CANCELLED, "reading the weights was cancelled");
  }
  description.fingerprint = model_fingerprint(description, contents);
  return {};
}

}  // namespace cairn
