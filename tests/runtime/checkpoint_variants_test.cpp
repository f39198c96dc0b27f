// Checkpoints that say in other words what the fixtures say: other names, fields left out, fields said twice.
#include <utility>

#include "tests/runtime/checkpoint_fixture.h"

namespace cairn::test {
namespace {

/// The fixture after `change` is the same model as before.
void check_same(const char* name, const std::function<void(Checkpoint&)>& change) {
  Checkpoint before(name), after(name);
  change(after);

  const Result<ModelDescription> expected = before.imported(), result = after.imported();

  REQUIRE_MESSAGE(expected.ok(), expected.status().message());
  REQUIRE_MESSAGE(result.ok(), result.status().message());
  CHECK(result.value().fingerprint == expected.value().fingerprint);
}

void erase(Json& object, std::initializer_list<const char*> fields) {
  for (const char* field : fields) object.erase(field);
}

/// Every tensor whose name holds `from`, under a name that holds `to`.
void rename_all(Checkpoint& checkpoint, const std::string& from, const std::string& to) {
  const Json old_header = checkpoint.header;
  for (const auto& [name, entry] : old_header.items()) {
    const std::size_t at = name.find(from);
    if (at != std::string::npos) checkpoint.rename(name, std::string(name).replace(at, from.size(), to));
  }
}

/// The file without the tensors whose names `is_dropped` says.
void drop(Checkpoint& checkpoint, const std::function<bool(const std::string&)>& is_dropped) {
  const Json old_header = std::exchange(checkpoint.header, Json::object());
  const std::string old_data = std::exchange(checkpoint.data, "");
  for (const auto& [name, entry] : old_header.items()) {
    if (is_dropped(name)) continue;
    const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    checkpoint.header[name] = entry;
    checkpoint.header[name]["data_offsets"] = {checkpoint.data.size(), checkpoint.data.size() + end - begin};
    checkpoint.data += old_data.substr(begin, end - begin);
  }
}

void transpose_convolutions(Checkpoint& checkpoint) {
  for (auto& [name, entry] : checkpoint.header.items()) {
    if (name.ends_with("conv1d.weight")) entry["shape"] = {entry["shape"][0], entry["shape"][2], 1};
  }
}

}  // namespace

TEST_CASE("a checkpoint of MLX has plain norms, and its convolutions are the same") {
  for (const char* name : {"qwen3_5_r3_text", "qwen3_next_moe", "qwen3_5_moe_text"}) {
    Checkpoint original(name), mlx(name), mixed(name);
    transpose_convolutions(mlx);
    transpose_convolutions(mixed);
    std::swap(mixed.header["model.layers.0.linear_attn.conv1d.weight"]["shape"][1],
              mixed.header["model.layers.0.linear_attn.conv1d.weight"]["shape"][2]);

    const Result<ModelDescription> expected = original.imported(), result = mlx.imported();

    REQUIRE_MESSAGE(result.ok(), result.status().message());
    CHECK(expected.value().norm_zero_centered);
    CHECK_FALSE(result.value().norm_zero_centered);
    for (const char* part : {"q", "k", "v"}) {
      const std::string tensor = "layers.0.mixer.conv_" + std::string(part) + ".weight";
      CHECK(floats_of(result.value(), tensor) == floats_of(expected.value(), tensor));
    }
    CHECK(mixed.imported().status().message().find("layout of MLX") != std::string::npos);
  }
}

TEST_CASE("experts that MLX has stacked are the same as experts one by one") {
  check_same("qwen3_5_moe_text", [](Checkpoint& c) {
    const Json apart = c.header;
    for (int layer = 0; layer < 8; ++layer) {
      const std::string stem = "model.layers." + std::to_string(layer) + ".mlp.";
      for (const std::string part : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}) {
        std::string stacked;
        for (int e = 0; e < 6; ++e) {
          const Json offsets = apart[stem + "experts." + std::to_string(e) + "." + part]["data_offsets"];
          stacked += c.data.substr(offsets[0], offsets[1].get<std::size_t>() - offsets[0].get<std::size_t>());
        }
        std::vector<int> shape = {6, 48, 128};
        if (part == "down_proj.weight") std::swap(shape[1], shape[2]);
        c.header[stem + "switch_mlp." + part] = {
            {"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {c.data.size(), c.data.size() + stacked.size()}}};
        c.data += stacked;
      }
    }
    drop(c, [](const std::string& name) { return name.find(".mlp.experts.") != std::string::npos; });
  });
}

TEST_CASE("a head that is not there is the embedding, whatever the config says") {
  const auto is_head = [](const std::string& name) { return name == "lm_head.weight"; };
  for (const char* name : {"qwen3_5_r3_text", "qwen3_next_moe", "qwen3_5_moe_text", "olmo_hybrid", "kimi_linear"}) {
    for (const Json& says : {Json(false), Json(true), Json()}) {
      CAPTURE(std::string(name));
      Checkpoint checkpoint(name);
      checkpoint.config["tie_word_embeddings"] = says;
      drop(checkpoint, is_head);

      const Result<ModelDescription> result = checkpoint.imported();

      REQUIRE_MESSAGE(result.ok(), result.status().message());
      CHECK(result.value().tied_embedding);
    }
  }
}

TEST_CASE("a container and its text part say whether the head is tied, the text part first") {
  struct Case {
    Json inner, outer;
    bool is_tied;
  };
  for (const Case& one : {Case{true, false, true}, Case{false, true, false}, Case{Json(), true, true},
                          Case{Json(), false, false}, Case{Json(), Json(), false}}) {
    CAPTURE(one.inner.dump() + " " + one.outer.dump());
    Checkpoint checkpoint("qwen3_5_r2_tied_vl"), headless("qwen3_5_r2_tied_vl");
    checkpoint.add("lm_head.weight", {640, 128});
    for (Checkpoint* c : {&checkpoint, &headless}) {
      c->config["text_config"]["tie_word_embeddings"] = one.inner;
      c->config["tie_word_embeddings"] = one.outer;
    }

    const Result<ModelDescription> result = checkpoint.imported();

    REQUIRE_MESSAGE(result.ok(), result.status().message());
    CHECK(result.value().tied_embedding == one.is_tied);
    CHECK(headless.imported().value().tied_embedding);
  }
}

TEST_CASE("fields that are null or say what holds anyway change nothing") {
  for (const char* name : {"qwen3_5_r3_text", "qwen3_next_moe", "olmo_hybrid", "kimi_linear"}) {
    CAPTURE(std::string(name));
    check_same(name, [](Checkpoint& c) {
      for (const char* field : {"quantization_config", "bad_words_ids", "attn_res_block_size"})
        c.config[field] = nullptr;
      c.config["_attn_implementation_autoset"] = true;
      c.config["num_return_sequences"] = 1;
      c.config["rope_scaling"] = {{"rope_type", "default"}, {"mrope_section", {4, 2, 2}}};
    });
    for (const Json& scaling :
         {Json({{"rope_type", "yarn"}}), Json({{"type", "linear"}, {"factor", 2}}), Json({{"factor", 2}}),
          Json({{"rope_type", "default"}, {"factor", 2}}), Json("default")}) {
      CAPTURE(scaling.dump());
      Checkpoint checkpoint(name);
      checkpoint.config["rope_scaling"] = scaling;
      CHECK(checkpoint.imported().status().message().find("rope_scaling") != std::string::npos);
    }
  }
}

TEST_CASE("token ids that the embedding has no row for are left out") {
  Checkpoint checkpoint("qwen3_5_r3_text");
  checkpoint.config["bos_token_id"] = 640;
  checkpoint.config["eos_token_id"] = {248044, 7};
  checkpoint.generation["eos_token_id"] = {248046, 639, 640};

  const Result<ModelDescription> result = checkpoint.imported();

  REQUIRE_MESSAGE(result.ok(), result.status().message());
  CHECK(result.value().tokenizer.bos == -1);
  CHECK(result.value().tokenizer.eos == 7);
  CHECK(result.value().tokenizer.stop_tokens == std::vector<std::int32_t>{639, 7});
}

TEST_CASE("a container may hold the ids that begin and end a text, and repeat its text part") {
  Checkpoint checkpoint("qwen3_5_r2_tied_vl");
  Json& inner = checkpoint.config["text_config"];
  erase(inner, {"bos_token_id", "eos_token_id"});
  checkpoint.config["bos_token_id"] = 5;
  checkpoint.config["eos_token_id"] = {7, 9};
  checkpoint.config["hidden_size"] = inner["hidden_size"];
  checkpoint.generation = nullptr;

  const Result<ModelDescription> result = checkpoint.imported();

  REQUIRE_MESSAGE(result.ok(), result.status().message());
  CHECK(result.value().tokenizer.bos == 5);
  CHECK(result.value().tokenizer.stop_tokens == std::vector<std::int32_t>{7, 9});
  checkpoint.config["hidden_size"] = 64;
  CHECK(checkpoint.imported().status().message().find("hidden_size") != std::string::npos);
}

TEST_CASE("kimi: fields may have the names of transformers, or both, or stand in linear_attn_config alone") {
  const std::pair<const char*, const char*> kNames[] = {{"num_experts", "num_local_experts"},
                                                        {"num_experts_per_token", "num_experts_per_tok"},
                                                        {"num_shared_experts", "n_shared_experts"},
                                                        {"num_expert_group", "n_group"},
                                                        {"moe_renormalize", "norm_topk_prob"}};
  check_same("kimi_linear", [&](Checkpoint& c) {
    for (const auto& [name, other] : kNames) c.config[other] = c.config[name];
  });
  check_same("kimi_linear", [&](Checkpoint& c) {
    for (const auto& [name, other] : kNames) {
      c.config[other] = c.config[name];
      c.config.erase(name);
    }
  });
  check_same("kimi_linear", [](Checkpoint& c) {
    erase(c.config["linear_attn_config"], {"kda_layers", "full_attn_layers"});
    erase(c.config, {"linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"});
  });
  check_same("kimi_linear", [](Checkpoint& c) {
    erase(c.config, {"first_k_dense_replace", "mlp_layer_types", "num_shared_experts", "routed_scaling_factor",
                     "moe_router_activation_func", "num_expert_group", "topk_group"});
  });
  for (const auto& [name, other] : kNames) {
    check_refused("kimi_linear", CAIRN_STATUS_UNSUPPORTED, other, [&, key = other](Checkpoint& c) {
      c.config[key] = std::string(key) == "norm_topk_prob" ? Json(false) : Json(3);
    });
  }
}

TEST_CASE("kimi: a router of softmax is refused, since what its bias does is not known") {
  check_refused("kimi_linear", CAIRN_STATUS_UNSUPPORTED, "moe_router_activation_func",
                [](Checkpoint& c) { c.config["moe_router_activation_func"] = "softmax"; });
}

TEST_CASE("qwen: a config without num_key_value_heads has as many as its class: 2, dense 4") {
  for (const char* name : {"qwen3_next_moe", "qwen3_5_moe_text"})
    check_same(name, [](Checkpoint& c) { c.config.erase("num_key_value_heads"); });
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_FORMAT, "shape [128, 128] (expected [256, 128])",
                [](Checkpoint& c) { c.config.erase("num_key_value_heads"); });
}

TEST_CASE("qwen3_next: a config that does not count its experts has 512") {
  check_refused("qwen3_next_moe", CAIRN_STATUS_FORMAT, "experts.10.down_proj.weight' is missing",
                [](Checkpoint& c) { c.config.erase("num_experts"); });
}

TEST_CASE("olmo hybrid: names of OLMo-core and of its exporter") {
  check_same("olmo_hybrid", [](Checkpoint& c) {
    for (const char letter : {'q', 'k', 'v', 'a', 'b', 'g'})
      rename_all(c, std::string("linear_attn.") + letter + "_proj", std::string("linear_attn.w_") + letter);
    rename_all(c, "linear_attn.o_proj", "linear_attn.out_proj");
    rename_all(c, "linear_attn.o_norm", "linear_attn.norm");
  });
}

TEST_CASE("olmo hybrid: keys are as wide as their own heads allow, and values twice as wide") {
  Checkpoint checkpoint("olmo_hybrid");
  checkpoint.config["num_attention_heads"] = checkpoint.config["num_key_value_heads"] = 2;  // of 64: as many rows
  checkpoint.config.erase("linear_value_head_dim");
  CHECK(checkpoint.config["linear_num_key_heads"] == 4);

  const auto from_key = checkpoint.imported();
  checkpoint.config.erase("linear_key_head_dim");
  const auto from_heads = checkpoint.imported();

  for (const auto* result : {&from_key, &from_heads}) {
    REQUIRE_MESSAGE(result->ok(), result->status().message());
    CHECK(result->value().layers[0].delta.key_dim == 24);
    CHECK(result->value().layers[0].delta.value_dim == 48);
  }
}

}  // namespace cairn::test
