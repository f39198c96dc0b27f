// Checkpoints of flash-linear-attention's classes and of Gated DeltaNet-2: logits through the public C API against the
// plain forward pass of the same tensors.
#include <doctest/doctest.h>

#include "tests/golden/checkpoint_builder.h"
#include "tests/golden/logits_comparison.h"
#include "tests/golden/plain_forward.h"

namespace cairn::test {
namespace {

using nlohmann::json;

constexpr int kDim = 24, kVocab = 48, kHidden = 40;

const PlainNames kLitNames = {"transformer.wte.weight", "transformer.ln_f.weight", "lm_head.weight",
                              "transformer.h.",         "norm_1.weight",           "norm_2.weight",
                              "mlp.swiglu.w1",          "mlp.swiglu.w2",           "mlp.swiglu.w3"};

json base_config(const char* model_type, int layers) {
  return {{"model_type", model_type},     {"hidden_size", kDim}, {"num_hidden_layers", layers}, {"vocab_size", kVocab},
          {"intermediate_size", kHidden}, {"norm_eps", 1e-5},    {"tie_word_embeddings", false}};
}

struct DeltaTensors {
  int conv = 4;
  bool has_beta = true, has_gate_bias = false;
};

/// The tensors of one mixer, as public-models.md lists them.
void add_delta(CheckpointBuilder& c, const PlainDelta& d, const DeltaTensors& has = {}) {
  const std::string& p = d.prefix;
  const int keys = d.key_heads * d.key_dim, values = d.value_heads * d.value_dim;
  const int gate_heads = d.rule == PlainRule::kGdn2 ? d.key_heads : d.value_heads;
  for (const auto& [name, width] : {std::pair{"q", keys}, {"k", keys}, {"v", values}}) {
    c.matrix(p + name + "_proj", width, kDim);
    if (has.conv) c.convolution(p + name + "_conv1d", width, has.conv);
  }
  if (has.has_beta) c.matrix(p + "b_proj", d.rule == PlainRule::kGdn2 ? keys : gate_heads, kDim);
  if (d.rule == PlainRule::kGdn2) c.matrix(p + "w_proj", values, kDim);
  if (d.rule == PlainRule::kGdn) {
    c.matrix(p + "a_proj", gate_heads, kDim);
    c.vector(p + "dt_bias", gate_heads, -1, 0.7);
  } else if (d.rule != PlainRule::kDeltaNet) {
    c.matrix(p + "f_proj.0", d.value_dim, kDim);
    c.matrix(p + "f_proj.1", gate_heads * d.key_dim, d.value_dim);
    c.vector(p + "dt_bias", gate_heads * d.key_dim, -1, 0.7);
  }
  if (d.rule != PlainRule::kDeltaNet) c.vector(p + "A_log", gate_heads, 0, 0.7);
  c.vector(p + "o_norm.weight", d.value_dim, 1, 0.1);
  c.matrix(p + "o_proj", kDim, values);
  if (d.gate == "none") return;
  if (d.rule == PlainRule::kGdn || d.rule == PlainRule::kDeltaNet) return c.matrix(p + "g_proj", values, kDim);
  c.matrix(p + "g_proj.0", d.value_dim, kDim);
  c.matrix(p + "g_proj.1", values, d.value_dim);
  if (has.has_gate_bias) c.vector(p + "g_proj.1.bias", values, 0, 0.5);
}

void add_attention(CheckpointBuilder& c, const PlainAttention& a, bool has_bias = false) {
  const int queries = a.query_heads * a.head_dim, keys = a.kv_heads * a.head_dim;
  for (const auto& [name, width] : {std::pair{"q", queries}, {"k", keys}, {"v", keys}}) {
    c.matrix(a.prefix + name + a.suffix, width, kDim);
    if (has_bias) c.vector(a.prefix + name + a.suffix + ".bias", width, 0, 0.5);
  }
  c.matrix(a.prefix + "o" + a.suffix, kDim, queries);
}

std::string fla(int layer) { return "model.layers." + std::to_string(layer) + ".attn."; }
std::string lit(int layer) { return "transformer.h." + std::to_string(layer) + ".attn."; }

/// A model of two layers of this mixer.
void check_pair(CheckpointBuilder& c, PlainDelta d, const PlainNames& names, const DeltaTensors& has = {}) {
  add_model(c, names, {2, kVocab, kDim, kHidden});
  for (int i = 0; i < 2; ++i) {
    d.prefix = names.block + std::to_string(i) + ".attn.";
    add_delta(c, d, has);
  }
  PlainModel plain(c.tensors, names, kDim, 1e-5);
  for (int i = 0; i < 2; ++i) {
    d.prefix = names.block + std::to_string(i) + ".attn.";
    plain.add(plain_delta(d));
  }
  check_logits(c.write(), plain, kVocab);
}

}  // namespace

TEST_CASE("gated_deltanet: more value heads, negative eigenvalues, attention between, bf16 and tied") {
  CheckpointBuilder c(base_config("gated_deltanet", 3), 1);
  c.config.update({{"num_heads", 2},
                   {"num_v_heads", 4},
                   {"head_dim", 8},
                   {"expand_v", 1.5},
                   {"conv_size", 4},
                   {"allow_neg_eigval", true},
                   {"tie_word_embeddings", true},
                   {"attn",
                    {{"layers", {1}},
                     {"num_heads", 4},
                     {"num_kv_heads", 2},
                     {"window_size", 7},
                     {"rope_theta", 500.0},
                     {"qkv_bias", true}}}});
  const PlainAttention attention = {fla(1), 4, 2, 6, 7, 500};
  PlainDelta d = {PlainRule::kGdn, fla(0), 2, 4, 8, 12, 1e-5, 2};
  add_model(c, kFlaNames, {3, kVocab, kDim, kHidden, true});
  add_delta(c, d);
  add_attention(c, attention, true);
  d.prefix = fla(2);
  add_delta(c, d);
  c.round_to_bf16();

  PlainModel plain(c.tensors, kFlaNames, kDim, 1e-5);
  d.prefix = fla(0);
  plain.add(plain_delta(d));
  plain.add(plain_attention(attention));
  d.prefix = fla(2);
  plain.add(plain_delta(d));

  check_logits(c.write(), plain, kVocab);
}

TEST_CASE("gated_deltanet without convolution and gate") {
  CheckpointBuilder c(base_config("gated_deltanet", 2), 2);
  c.config.update({{"num_heads", 3}, {"head_dim", 8}, {"expand_v", 1}, {"use_short_conv", false}, {"use_gate", false}});
  PlainDelta d = {PlainRule::kGdn, "", 3, 3, 8, 8, 1e-5};
  d.gate = "none";

  check_pair(c, d, kFlaNames, {.conv = 0});
}

TEST_CASE("delta_net with every activation and norm of queries and keys") {
  struct Variant {
    const char *activation, *norm;
    bool has_beta, has_gate, is_negative;
    int conv;
  };
  for (const Variant& v : {Variant{"silu", "l2", true, false, false, 4},
                           {"relu", "l2", false, true, false, 4},
                           {"elu", "sum", true, true, false, 3},
                           {"identity", "l2", true, false, true, 4},
                           {"silu", "l2", true, true, true, 0},
                           {"elu", "sum", false, false, false, 0}}) {
    CAPTURE(v.activation);
    CAPTURE(v.conv);
    CheckpointBuilder c(base_config("delta_net", 2), 3);
    c.config.update({{"num_heads", 2},
                     {"expand_k", 1.0},
                     {"expand_v", 0.5},
                     {"qk_activation", v.activation},
                     {"qk_norm", v.norm},
                     {"use_beta", v.has_beta},
                     {"use_gate", v.has_gate},
                     {"allow_neg_eigval", v.is_negative},
                     {"use_short_conv", v.conv > 0}});
    if (v.conv) c.config["conv_size"] = v.conv;
    PlainDelta d = {PlainRule::kDeltaNet, "", 2, 2, 12, 6, 1e-5, v.is_negative ? 2.0 : 1.0};
    d.qk_activation = v.activation;
    d.qk_norm = v.norm;
    d.gate = v.has_gate ? "silu" : "none";

    check_pair(c, d, kFlaNames, {.conv = v.conv, .has_beta = v.has_beta});
  }
}

TEST_CASE("kda: heads, gate biases and the gate with a lower bound") {
  struct Variant {
    int value_heads;
    double expand_v;
    bool has_gate_bias, is_negative;
    double lower_bound;
  };
  for (const Variant& v : {Variant{2, 1, true, false, 0}, {4, 1.5, true, true, 0}, {2, 1, false, false, -5}}) {
    CAPTURE(v.value_heads);
    CAPTURE(v.lower_bound);
    CheckpointBuilder c(base_config("kda", 2), 4);
    c.config.update({{"num_heads", 2},
                     {"num_v_heads", v.value_heads},
                     {"head_dim", 8},
                     {"expand_v", v.expand_v},
                     {"allow_neg_eigval", v.is_negative},
                     {"conv_size", 4}});
    if (v.lower_bound < 0) c.config.update({{"safe_gate", true}, {"lower_bound", v.lower_bound}});
    PlainDelta d = {PlainRule::kKda, "", 2, v.value_heads, 8, static_cast<int>(8 * v.expand_v), 1e-5};
    d.beta_scale = v.is_negative ? 2 : 1;
    d.lower_bound = v.lower_bound;
    d.gate = "sigmoid";

    check_pair(c, d, kFlaNames, {.has_gate_bias = v.has_gate_bias});
  }
}

TEST_CASE("gdn2: gates of key heads serve their value heads; either output gate") {
  struct Variant {
    int value_heads;
    const char* gate;
    bool is_negative, has_gate_bias;
  };
  for (const Variant& v : {Variant{2, "silu", false, true}, {4, "sigmoid", true, true}, {6, "silu", true, false}}) {
    CAPTURE(v.value_heads);
    CheckpointBuilder c(base_config("gdn2", 2), 5);
    c.config.update({{"num_heads", 2},
                     {"num_v_heads", v.value_heads},
                     {"head_dim", 8},
                     {"conv_size", 4},
                     {"allow_neg_eigval", v.is_negative},
                     {"output_gate", v.gate}});
    PlainDelta d = {PlainRule::kGdn2, "", 2, v.value_heads, 8, 8, 1e-5, v.is_negative ? 2.0 : 1.0};
    d.gate = v.gate;

    check_pair(c, d, kLitNames, {.has_gate_bias = v.has_gate_bias});
  }
}

TEST_CASE("gdn2 with sliding-window attention in every second layer") {
  CheckpointBuilder c(base_config("gdn2", 2), 6);
  c.config.update(
      {{"num_heads", 2}, {"head_dim", 8}, {"attn_every", 2}, {"num_attention_heads", 2}, {"window_size", 5}});
  const PlainAttention attention = {lit(1), 2, 2, 12, 5};
  const PlainDelta d = {PlainRule::kGdn2, lit(0), 2, 2, 8, 8, 1e-5};
  add_model(c, kLitNames, {2, kVocab, kDim, kHidden});
  add_delta(c, d);
  add_attention(c, attention);

  PlainModel plain(c.tensors, kLitNames, kDim, 1e-5);
  plain.add(plain_delta(d));
  plain.add(plain_attention(attention));

  check_logits(c.write(), plain, kVocab);
}

}  // namespace cairn::test
