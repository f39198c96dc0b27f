// Qwen3-Next: as Qwen3.5, but q, k, v, z and b, a are interleaved per key head, and MLPs may be dense or experts.
#include <algorithm>

#include "runtime/import/qwen3_5_config.h"

namespace cairn {
namespace {

constexpr std::int32_t kKvHeads = 2;  // when the config names none

/// Rows of in_proj_qkvz: per key head [q | k | v of its r value heads | z of them].
Status take_qkvz(CheckpointSource& source, const WantedTensor& wanted, const DeltaRuleConfig& c) {
  const std::int64_t values = std::int64_t{c.value_heads / c.key_heads} * c.value_dim, key_dim = c.key_dim;
  const std::int64_t stride = 2 * key_dim + 2 * values;
  const char which = wanted.part[6];
  const std::int64_t width = which == 'q' || which == 'k' ? key_dim : values;
  const std::int64_t offset = which == 'q'   ? 0
                              : which == 'k' ? key_dim
                              : which == 'v' ? 2 * key_dim
                                             : 2 * key_dim + values;
  return source.gather_rows(wanted, "linear_attn.in_proj_qkvz.weight", c.key_heads * stride,
                            [=](std::int64_t row) { return row / width * stride + offset + row % width; });
}

/// Rows of in_proj_ba: per key head [b of its r value heads | a of them].
Status take_ba(CheckpointSource& source, const WantedTensor& wanted, const DeltaRuleConfig& c) {
  const std::int64_t r = c.value_heads / c.key_heads;
  const std::int64_t offset = wanted.part == "mixer.b.weight" ? 0 : r;
  return source.gather_rows(wanted, "linear_attn.in_proj_ba.weight", std::int64_t{2} * c.value_heads,
                            [=](std::int64_t row) { return row / r * 2 * r + offset + row % r; });
}

void read_mlps(ConfigReader& reader, ModelDescription& d) {
  MlpConfig dense, moe;
  dense.hidden_dim = reader.int32("intermediate_size", 5632);
  moe.kind = MlpKind::kMoe;
  moe.expert_count = reader.int32("num_experts", 512);
  moe.hidden_dim = reader.int32("moe_intermediate_size", 512);
  moe.top_k = reader.int32("num_experts_per_tok", 10);
  moe.shared_hidden_dim = reader.int32("shared_expert_intermediate_size", 512);
  moe.shared_gate = moe.shared_hidden_dim > 0;
  moe.renormalize = reader.boolean("norm_topk_prob", true);
  const std::int32_t step = reader.int32("decoder_sparse_step", 1);
  const std::vector<std::int32_t> dense_layers = reader.integers_or_one("mlp_only_layers");
  if (dense_layers.size() > d.layers.size()) {
    reader.fail(Status::format_error("%s: mlp_only_layers names more layers than there are (%zu)",
                                     reader.where().c_str(), d.layers.size()));
    return;
  }
  if (step < 1) {
    reader.fail(Status::format_error("%s: decoder_sparse_step is %d (at least 1)", reader.where().c_str(), step));
    return;
  }
  for (std::size_t i = 0; i < d.layers.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    const bool is_dense = std::find(dense_layers.begin(), dense_layers.end(), index) != dense_layers.end();
    d.layers[i].mlp = !is_dense && moe.expert_count > 0 && (index + 1) % step == 0 ? moe : dense;
  }
}

}  // namespace

Status import_qwen3_next(ImportContext& context) {
  ModelDescription& d = context.description;
  CAIRN_TRY(refuse_reexports(context));
  ConfigReader reader(context.config, "config.json");
  d.architecture = "qwen3_next";
  read_qwen_hybrid(context, reader, kKvHeads);
  d.tied_embedding = is_head_tied(context, reader.boolean("tie_word_embeddings", false));
  read_mlps(reader, d);
  CAIRN_TRY(reader.finish());
  CAIRN_TRY(validate(d, context.limits));
  context.tensors.ignore_prefix("mtp.");
  ignore_empty_shared_experts(context);
  CheckpointSource source(context, "model.");
  return source.take_all([&](const WantedTensor& wanted) -> Status {
    const std::string& part = wanted.part;
    const bool is_gdn =
        wanted.layer >= 0 && d.layers[static_cast<std::size_t>(wanted.layer)].mechanism == Mechanism::kGdn;
    if (is_gdn) {
      const DeltaRuleConfig& c = d.layers[static_cast<std::size_t>(wanted.layer)].delta;
      for (const char* name : {"mixer.q.weight", "mixer.k.weight", "mixer.v.weight", "mixer.z.weight"}) {
        if (part == name) return take_qkvz(source, wanted, c);
      }
      if (part == "mixer.a.weight" || part == "mixer.b.weight") return take_ba(source, wanted, c);
    }
    return take_qwen_shared(source, wanted, d, "lm_head.weight");
  });
}

}  // namespace cairn
