// Checkpoints of sparse delta memory (lingua's layout) and of SpikingBrain 2: logits through the public C API against
// the plain forward pass of the same tensors; what their importers refuse.
#include <doctest/doctest.h>

#include "tests/golden/checkpoint_builder.h"
#include "tests/golden/logits_comparison.h"
#include "tests/golden/plain_memory.h"

namespace cairn::test {
namespace {

using nlohmann::json;

constexpr int kDim = 24, kVocab = 48;

const PlainNames kLinguaNames = {"tok_embeddings.weight", "norm.weight",     "output.weight",   "layers.",
                                 "attention_norm.weight", "ffn_norm.weight", "feed_forward.w1", "feed_forward.w3",
                                 "feed_forward.w2"};

void add_biased(CheckpointBuilder& c, const std::string& name, int out) {
  c.matrix(name, out, kDim, 1.5);
  c.vector(name + ".bias", out, 0, 0.3);
}

void add_sdm(CheckpointBuilder& c, const PlainSdm& s) {
  const std::string& p = s.prefix;
  add_biased(c, p + "Wq_read", s.heads * 2 * s.side);
  add_biased(c, p + "Wk_write", s.heads * 2 * s.side);
  add_biased(c, p + "Wv_write", kDim);
  add_biased(c, p + "a_proj", s.heads);
  add_biased(c, p + "b_proj", s.heads);
  add_biased(c, p + "Wo", kDim);
  if (s.has_gate) add_biased(c, p + "Wog", kDim);
  c.vector(p + "A_log", s.heads, 0, 0.7);
  c.vector(p + "dt_bias", s.heads, -2, 0.7);
  c.vector(p + "readings_norm.weight", s.value_dim, 1, 0.1);
  c.vector(p + "readings_norm.bias", s.value_dim, 0, 0.1);
  if (s.is_learned) c.tensor(p + "memory", {s.heads * s.side * s.side, s.value_dim}, 0.5);
  for (const char* norm : {"query_bn.", "key_bn."}) {
    if (!s.has_score_norms) break;
    c.vector(p + norm + "weight", s.heads * 2 * s.side, 1, 0.3);
    c.vector(p + norm + "bias", s.heads * 2 * s.side, 0, 0.5);
    c.vector(p + norm + "running_mean", s.heads * 2 * s.side, 0, 0.5);
    c.vector(p + norm + "running_var", s.heads * 2 * s.side, 2, 0.3);
    c.tensors[p + norm + "num_batches_tracked"] = {DType::kI64, {}, std::vector<std::uint8_t>(8)};
  }
}

void add_attention(CheckpointBuilder& c, const PlainAttention& a) {
  const int queries = a.query_heads * a.head_dim, keys = a.kv_heads * a.head_dim;
  c.matrix(a.prefix + "q" + a.suffix, queries, kDim);
  c.matrix(a.prefix + "k" + a.suffix, keys, kDim);
  c.matrix(a.prefix + "v" + a.suffix, keys, kDim);
  c.matrix(a.prefix + "o" + a.suffix, kDim, queries);
  if (!a.gate.empty()) c.matrix(a.gate, queries, kDim);
  if (a.norm_prefix.empty()) return;
  c.vector(a.norm_prefix + "q_norm.weight", a.head_dim, 1, 0.1);
  c.vector(a.norm_prefix + "k_norm.weight", a.head_dim, 1, 0.1);
}

void add_sse(CheckpointBuilder& c, const PlainSse& s) {
  const std::string& p = s.prefix;
  const int width = s.heads * s.head_dim;
  for (const char* name : {"q", "k", "v"}) c.matrix(p + "sse_" + name + "_proj", width, kDim);
  c.matrix(p + "sse_a_proj", 2 * s.heads, kDim);
  c.matrix(p + "sse_b_proj", 2 * s.heads, kDim);
  c.matrix(p + "sse_e_proj", s.partitions, kDim, 1.5);
  c.matrix(p + "sse_o_proj", kDim, width);
  for (const char* name : {"lora_q_proj.", "lora_k_proj."}) {
    c.matrix(p + name + "0", s.head_dim, kDim);
    c.matrix(p + name + "1", width, s.head_dim);
  }
  c.vector(p + "A_log", 2 * s.heads, 0, 0.7);
  c.vector(p + "dt_bias", 2 * s.heads, -1, 0.7);
  c.vector(p + "sse_o_norm.weight", s.head_dim, 1, 0.1);
  c.vector(p + "sse_merge_norm.weight", kDim, 1, 0.1);
  c.vector(p + "swa_merge_norm.weight", kDim, 1, 0.1);
  add_attention(c, s.attention);
}

json lingua_config() {
  return {{"model_type", "sparse_delta_memory"},
          {"dim", kDim},
          {"n_layers", 4},
          {"vocab_size", kVocab},
          {"norm_eps", 1e-5},
          {"rope_theta", 500.0},
          {"multiple_of", 8},
          {"n_heads", 2},
          {"n_kv_heads", 1},
          {"sdm_at", {0, 3}},
          {"swa_at", {1}},
          {"attn_at", {2}},
          {"swa_window", 6},
          {"swa_n_heads", 4},
          {"attn_gate", true},
          {"weight_tying", true},
          {"sdm_args",
           {{"num_heads", 2},
            {"slots_per_head", 36},
            {"num_reads", 5},
            {"num_writes", 3},
            {"backprop_on_memory", true},
            {"normalize_readings", true},
            {"output_gate", true},
            {"memory_block_size", 256},
            {"snapshot_quant", "none"}}}};
}

json brain_config() {
  return {{"model_type", "sse_swa_moba"},
          {"hidden_size", kDim},
          {"intermediate_size", 40},
          {"num_hidden_layers", 4},
          {"num_heads", 4},
          {"head_dim", 8},
          {"linear_attn_type", "gdn"},
          {"num_sparse_partition", 4},
          {"num_writer", 2},
          {"num_reader", 2},
          {"use_output_gate", false},
          {"use_short_conv", false},
          {"sse_qk_relu", false},
          {"allow_neg_eigval", false},
          {"norm_eps", 1e-6},
          {"tie_word_embeddings", true},
          {"vocab_size", kVocab},
          {"max_position_embeddings", 8192},
          {"attn",
           {{"layers", {1, 3}},
            {"full_layers", {3}},
            {"num_kv_heads", 2},
            {"qk_norm", true},
            {"rope_theta", 5e6},
            {"window_size", 7},
            {"moba_chunk_size", 4096},
            {"moba_topk", 12}}}};
}

/// Adds the tensors of brain_config() and gives its plain model.
PlainModel brain(CheckpointBuilder& c) {
  add_model(c, kFlaNames, {4, kVocab, kDim, 40, true});
  std::vector<std::unique_ptr<PlainMixer>> mixers;
  for (int i = 0; i < 4; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".attn.";
    if (i % 2 == 1) {
      const PlainAttention full = {prefix, 4, 2, 8, 0, 5e6, 1e-6, "_proj", prefix};
      add_attention(c, full);
      mixers.push_back(plain_attention(full));
    } else {
      const PlainAttention window = {prefix + "swa_", 4, 2, 8, 7, 5e6, 1e-6, "_proj", prefix + "swa_"};
      const PlainSse sse = {prefix, 4, 8, 4, 2, 1e-6, window};
      add_sse(c, sse);
      mixers.push_back(plain_sse_with_attention(sse));
    }
  }
  PlainModel plain(c.tensors, kFlaNames, kDim, 1e-6);
  for (auto& mixer : mixers) plain.add(std::move(mixer));
  return plain;
}

}  // namespace

TEST_CASE("sparse delta memory in lingua's layout, between gated attention with windows and without") {
  CheckpointBuilder c(lingua_config(), 7);
  const PlainSdm first = {"layers.0.attention.", 2, 6, 12, 3, 5, true, true},
                 last = {"layers.3.attention.", 2, 6, 12, 3, 5, true, true};
  const PlainAttention window = {"layers.1.attention.w",     4, 4, 6, 6, 500, 1e-5, "", "", true,
                                 "layers.1.attention.w_gate"};
  const PlainAttention full = {"layers.2.attention.w",     2, 1, 12, 0, 500, 1e-5, "", "", true,
                               "layers.2.attention.w_gate"};
  add_model(c, kLinguaNames, {4, kVocab, kDim, 64, true});
  add_sdm(c, first);
  add_attention(c, window);
  add_attention(c, full);
  add_sdm(c, last);

  PlainModel plain(c.tensors, kLinguaNames, kDim, 1e-5);
  plain.add(plain_sdm(first));
  plain.add(plain_attention(window));
  plain.add(plain_attention(full));
  plain.add(plain_sdm(last));

  check_logits(c.write(), plain, kVocab);
}

TEST_CASE("sparse delta memory that starts as zeros, decays by key, without a gate") {
  CheckpointBuilder c(lingua_config(), 8);
  c.config.update({{"n_layers", 2},
                   {"sdm_at", "all"},
                   {"swa_at", nullptr},
                   {"attn_at", nullptr},
                   {"weight_tying", false},
                   {"ffn_dim_multiplier", 0.5}});
  c.config["sdm_args"].update({{"backprop_on_memory", false}, {"output_gate", false}, {"key_weighted_decay", true}});
  add_model(c, kLinguaNames, {2, kVocab, kDim, 32});
  std::vector<PlainSdm> layers;
  for (int i = 0; i < 2; ++i) {
    layers.push_back({"layers." + std::to_string(i) + ".attention.", 2, 6, 12, 3, 5, false, false, true});
    add_sdm(c, layers.back());
  }

  PlainModel plain(c.tensors, kLinguaNames, kDim, 1e-5);
  for (const PlainSdm& layer : layers) plain.add(plain_sdm(layer));

  check_logits(c.write(), plain, kVocab);
}

TEST_CASE("sparse delta memory with batch norms of its scores") {
  CheckpointBuilder c(lingua_config(), 12);
  c.config.update(
      {{"n_layers", 2}, {"sdm_at", "all"}, {"swa_at", nullptr}, {"attn_at", nullptr}, {"ffn_dim_multiplier", 0.5}});
  c.config["sdm_args"]["query_batchnorm"] = true;
  add_model(c, kLinguaNames, {2, kVocab, kDim, 32, true});
  std::vector<PlainSdm> layers;
  for (int i = 0; i < 2; ++i) {
    layers.push_back({"layers." + std::to_string(i) + ".attention.", 2, 6, 12, 3, 5, true, true, false, true});
    add_sdm(c, layers.back());
  }

  PlainModel plain(c.tensors, kLinguaNames, kDim, 1e-5);
  for (const PlainSdm& layer : layers) plain.add(plain_sdm(layer));

  check_logits(c.write(), plain, kVocab);
  c.config["sdm_args"]["query_batchnorm"] = false;
  check_load_refused(c.write(), "key_bn.bias' is not part of this model");
}

TEST_CASE("layouts of sparse delta memory that are not supported are refused by name") {
  const auto refused = [](const char* part, const json& change) {
    CheckpointBuilder c(lingua_config(), 9);
    c.config.merge_patch(change);
    check_load_refused(c.write(), part);
  };
  refused("normalize_readings", {{"sdm_args", {{"normalize_readings", false}}}});
  refused("use_query_bn", {{"sdm_args", {{"use_query_bn", true}}}});
  refused("layer 2 is in none", {{"attn_at", json::array()}});
  refused("layer 0 is named twice", {{"attn_at", {0, 2}}});
  refused("swa_window", {{"swa_window", 0}});
  refused("side", {{"sdm_args", {{"slots_per_head", 37}}}});
}

TEST_CASE("spikingbrain 2: SSE averaged with a window, MoBA that sees everything, full attention") {
  CheckpointBuilder c(brain_config(), 10);
  PlainModel plain = brain(c);

  check_logits(c.write(), plain, kVocab);
}

TEST_CASE("spikingbrain 2: MoBA that does not see everything and unknown variants are refused by name") {
  const auto refused = [](const char* part, const json& change) {
    CheckpointBuilder c(brain_config(), 11);
    c.config.merge_patch(change);
    check_load_refused(c.write(), part);
  };
  refused("MoBA", {{"max_position_embeddings", 65536}});
  refused("linear_attn_type", {{"linear_attn_type", "gla"}});
  refused("sse_qk_relu", {{"sse_qk_relu", true}});
  refused("use_output_gate", {{"use_output_gate", true}});
  refused("num_reader", {{"num_reader", 1}});
  refused("full_layers", {{"attn", {{"full_layers", {2}}}}});
}

}  // namespace cairn::test
