#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/runtime/checkpoint_fixture.h"

namespace cairn::test {
namespace {

constexpr const char* kFolders[] = {"kimi_linear",        "olmo_hybrid",     "qwen3_5_moe_text",
                                    "qwen3_5_r2_tied_vl", "qwen3_5_r3_text", "qwen3_next_moe"};

}  // namespace

TEST_CASE("every public fixture imports, tensor by tensor") {
  for (const char* name : kFolders) {
    const Result<ModelDescription> result = import_folder(kFixtures + name);

    CHECK_MESSAGE(result.ok(), result.status().message());
    if (!result.ok()) continue;
    CHECK(result.value().vocab_size == 640);
    CHECK(result.value().model_dim == 128);
    CHECK(result.value().tokenizer.stop_tokens == std::vector<std::int32_t>{2});
  }
}

TEST_CASE("a file that is there and cannot be read is an error, not a model without it") {
  Checkpoint checkpoint("qwen3_5_r3_text");
  put_file(checkpoint.folder() / "tokenizer_config.json", R"({"add_bos_token": false})");
  put_file(checkpoint.folder() / "chat_template.jinja", "{{ messages }}");
  put_file(checkpoint.folder() / "tokenizer.json", "{}");
  CHECK(checkpoint.imported().ok());
  int refused = 0;
  for (int fail_at = 0; fail_at < 100; ++fail_at) {
    FaultyIo io;
    io.fail_at = fail_at;
    CAPTURE(fail_at);

    const Result<ModelDescription> result = import_folder(checkpoint.folder().path());

    refused += result.ok() ? 0 : 1;
    if (!result.ok()) CHECK(result.status().code() == CAIRN_STATUS_IO);
    if (io.failed_call == "open" || io.failed_call == "pread") CHECK_FALSE(result.ok());
  }
  CHECK(refused > 10);
  for (const char* name : {"tokenizer.json", "chat_template.jinja", "generation_config.json", "model.safetensors.index.json"}) {
    std::filesystem::remove(checkpoint.folder() / name);
    std::filesystem::create_directory(checkpoint.folder() / name);
    CHECK(import_folder(checkpoint.folder().path()).status().message().find(name) != std::string::npos);
    std::filesystem::remove(checkpoint.folder() / name);
  }
}

TEST_CASE("one query per head comes before its gate") {
  const ModelDescription d = import_folder(kFixtures + std::string("qwen3_5_r3_text")).value();
  Checkpoint raw("qwen3_5_r3_text");
  const auto begin = raw.header["model.layers.3.self_attn.q_proj.weight"]["data_offsets"][0].get<std::size_t>();
  const auto row_of = [&](std::size_t row) { return raw.data.substr(begin + row * 256, 256); };  // 128 bf16 columns

  const auto same = [](const TensorEntry* tensor, std::size_t row, const std::string& bytes) {
    return std::memcmp(static_cast<const std::byte*>(tensor->data) + row * 256, bytes.data(), 256) == 0;
  };
  const TensorEntry *q = d.find("layers.3.mixer.q.weight"), *z = d.find("layers.3.mixer.z.weight");
  REQUIRE(q);
  REQUIRE(z);
  CHECK(same(q, 63, row_of(63)));
  CHECK(same(z, 0, row_of(64)));
  CHECK(same(q, 64, row_of(128)));
  CHECK(same(z, 255, row_of(511)));
}

TEST_CASE("fused experts are the same as experts one by one") {
  Checkpoint apart("qwen3_5_moe_text");
  const ModelDescription expected = apart.imported().value();
  Checkpoint fused("qwen3_5_moe_text");
  for (int layer = 0; layer < 8; ++layer) {
    const std::string stem = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    std::string gate_up, down;
    for (int e = 0; e < 6; ++e) {
      const auto part = [&](const char* name) {
        const std::string full = stem + std::to_string(e) + "." + name + "_proj.weight";
        const Json offsets = fused.header[full]["data_offsets"];
        return fused.data.substr(offsets[0], offsets[1].get<std::size_t>() - offsets[0].get<std::size_t>());
      };
      gate_up += part("gate") + part("up");
      down += part("down");
    }
    const auto put = [&](const char* name, std::vector<int> shape, const std::string& bytes) {
      fused.header[stem + name] = {
          {"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {fused.data.size(), fused.data.size() + bytes.size()}}};
      fused.data += bytes;
    };
    put("gate_up_proj", {6, 96, 128}, gate_up);
    put("down_proj", {6, 128, 48}, down);
  }
  // The experts' own bytes stay in the file as one unused tensor each would be refused: drop them by packing anew.
  std::string data;
  Json header = Json::object();
  for (const auto& [name, entry] : fused.header.items()) {
    if (name.find(".mlp.experts.") != std::string::npos && name.ends_with(".weight")) continue;
    const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    header[name] = entry;
    header[name]["data_offsets"] = {data.size(), data.size() + (end - begin)};
    data += fused.data.substr(begin, end - begin);
  }
  fused.header = header;
  fused.data = data;

  const Result<ModelDescription> result = fused.imported();

  REQUIRE_MESSAGE(result.ok(), result.status().message());
  for (const char* name : {"layers.2.mlp.experts.5.gate.weight", "layers.2.mlp.experts.4.up.weight",
                           "layers.7.mlp.experts.1.down.weight"}) {
    CHECK(floats_of(expected, name) == floats_of(result.value(), name));
  }
}

TEST_CASE("unknown fields and unsupported variants are refused by name") {
  const auto set = [](const char* key, const Json& value) { return [=](Checkpoint& c) { c.config[key] = value; }; };
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_UNSUPPORTED, "strange_flag", set("strange_flag", 1));
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_UNSUPPORTED, "attn_output_gate", set("attn_output_gate", false));
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_UNSUPPORTED, "output_gate_type", set("output_gate_type", "sigmoid"));
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_UNSUPPORTED, "rope_scaling", set("rope_scaling", {{"type", "yarn"}}));
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_UNSUPPORTED, "hidden_act", set("hidden_act", "gelu"));
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_UNSUPPORTED, "quantization_config",
                set("quantization_config", {{"bits", 4}}));
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_UNSUPPORTED, "not known", set("model_type", "qwen9"));
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_FORMAT, "layer_types", set("num_hidden_layers", 7));
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_LIMIT_EXCEEDED, "num_hidden_layers",
                set("num_hidden_layers", 2000000000));
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_FORMAT, "shape", set("hidden_size", 136));
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_FORMAT, "value_heads", set("linear_num_value_heads", 5));
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_FORMAT, "head_dim", set("head_dim", -1));
  check_refused("kimi_linear", CAIRN_STATUS_UNSUPPORTED, "attn_res_block_size", set("attn_res_block_size", 4));
  check_refused("kimi_linear", CAIRN_STATUS_UNSUPPORTED, "mla_use_nope", set("mla_use_nope", false));
  check_refused("kimi_linear", CAIRN_STATUS_UNSUPPORTED, "q_lora_rank", set("q_lora_rank", 8));
  check_refused("kimi_linear", CAIRN_STATUS_FORMAT, "linear_attn_config", [](Checkpoint& c) {
    c.config.erase("linear_attn_config");
    c.config.erase("layer_types");
  });
  check_refused("kimi_linear", CAIRN_STATUS_FORMAT, "mlp_layer_types", set("mlp_layer_types", {"dense"}));
  check_refused("kimi_linear", CAIRN_STATUS_FORMAT, "mlp_layer_types: layer 1 is 'thick'",
                set("mlp_layer_types", {"dense", "thick", "sparse", "sparse", "sparse"}));
  check_refused("kimi_linear", CAIRN_STATUS_FORMAT, "eos_token_id", set("eos_token_id", ~std::uint64_t{0}));
  std::vector<int> many(1200);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int>(i % 600);
  Checkpoint repeated("kimi_linear");
  repeated.config["eos_token_id"] = many;
  CHECK(repeated.imported().value().tokenizer.stop_tokens.size() == 600);
  check_refused("olmo_hybrid", CAIRN_STATUS_UNSUPPORTED, "attention_bias", set("attention_bias", true));
  check_refused("qwen3_5_r2_tied_vl", CAIRN_STATUS_UNSUPPORTED, "audio_config", set("audio_config", Json::object()));
}

TEST_CASE("quantised re-exports are refused with what they are") {
  check_refused("qwen3_5_r3_text", CAIRN_STATUS_UNSUPPORTED, "quantised",
                [](Checkpoint& c) { c.add("model.layers.0.mlp.up_proj.weight_scale_inv", {4}); });
}

TEST_CASE("a quantised text part is told as such") {
  check_refused("qwen3_5_r2_tied_vl", CAIRN_STATUS_UNSUPPORTED, "quantised", [](Checkpoint& c) {
    c.config["text_config"]["quantization_config"] = {{"bits", 4}};
  });
}

TEST_CASE("a fused convolution in three parts is put together, whatever the parts' sizes") {
  Checkpoint checkpoint("olmo_hybrid");
  checkpoint.config["linear_value_head_dim"] = 44;  // 96 + 96 + 176 channels are saved as 123, 123 and 122
  const Json old_header = std::exchange(checkpoint.header, Json::object());
  const std::string old_data = std::exchange(checkpoint.data, "");
  std::vector<float> taps(368 * 4);
  for (std::size_t i = 0; i < taps.size(); ++i) taps[i] = static_cast<float>(i);
  for (const auto& [name, entry] : old_header.items()) {
    std::vector<std::int64_t> shape = entry["shape"];
    std::size_t first = 0;
    const bool is_conv = name.ends_with("_conv1d.weight");
    if (is_conv) {
      shape = {name.ends_with("v_conv1d.weight") ? 122 : 123, 1, 4};
      first = name.ends_with("q_conv1d.weight") ? 0 : name.ends_with("k_conv1d.weight") ? 123 * 4 : 246 * 4;
    }
    for (std::int64_t& dim : shape) dim = dim == 192 ? 176 : dim == 48 && name.ends_with("norm.weight") ? 44 : dim;
    checkpoint.add(name, shape);
    const std::size_t begin = checkpoint.header[name]["data_offsets"][0],
                      end = checkpoint.header[name]["data_offsets"][1];
    if (is_conv) std::memcpy(&checkpoint.data[begin], &taps[first], end - begin);
  }

  const Result<ModelDescription> result = checkpoint.imported();

  REQUIRE_MESSAGE(result.ok(), result.status().message());
  const auto first_of = [&](const char* name) {
    float value;  // where it lies in the file is not aligned
    std::memcpy(&value, result.value().find(name)->data, sizeof value);
    return value;
  };
  CHECK(first_of("layers.0.mixer.conv_q.weight") == 0);
  CHECK(first_of("layers.0.mixer.conv_k.weight") == 96 * 4);
  CHECK(first_of("layers.0.mixer.conv_v.weight") == 192 * 4);
}

TEST_CASE("kimi: dt_bias may be a matrix, and a head that is there counts") {
  Checkpoint checkpoint("kimi_linear");
  checkpoint.header["model.layers.0.self_attn.dt_bias"]["shape"] = {4, 32};
  checkpoint.config["tie_word_embeddings"] = true;

  const Result<ModelDescription> result = checkpoint.imported();

  REQUIRE_MESSAGE(result.ok(), result.status().message());
  CHECK_FALSE(result.value().tied_embedding);
  CHECK(result.value().find("layers.0.mixer.dt_bias")->shape == std::vector<std::int64_t>{128});
  checkpoint.header["model.layers.0.self_attn.dt_bias"]["shape"] = {32, 4};
  CHECK(checkpoint.imported().status().code() == CAIRN_STATUS_FORMAT);
}

TEST_CASE("kimi: layer_types and mlp_layer_types alone, as transformers saves them, make the same model") {
  Checkpoint checkpoint("kimi_linear");
  const auto original = checkpoint.imported();
  for (const char* field : {"linear_attn_config", "first_k_dense_replace", "moe_layer_freq"}) checkpoint.config.erase(field);

  const auto saved_again = checkpoint.imported();

  REQUIRE_MESSAGE(saved_again.ok(), saved_again.status().message());
  CHECK(saved_again.value().fingerprint == original.value().fingerprint);
}

TEST_CASE("a shared expert of width 0 is left out") {
  Checkpoint checkpoint("qwen3_next_moe");
  checkpoint.config["shared_expert_intermediate_size"] = 0;
  const Json old_header = std::exchange(checkpoint.header, Json::object());
  checkpoint.data.clear();
  for (const auto& [name, entry] : old_header.items()) {
    std::vector<std::int64_t> shape = entry["shape"];
    if (name.find("shared_expert.") != std::string::npos) std::replace(shape.begin(), shape.end(), 64, 0);
    checkpoint.add(name, shape);
  }

  const Result<ModelDescription> result = checkpoint.imported();

  REQUIRE_MESSAGE(result.ok(), result.status().message());
  CHECK(result.value().find("layers.0.mlp.shared.gate.weight") == nullptr);
}

TEST_CASE("missing, extra and misshapen tensors are refused by name") {
  check_refused("qwen3_next_moe", CAIRN_STATUS_FORMAT, "extra.weight",
                [](Checkpoint& c) { c.add("model.layers.0.extra.weight", {4}); });
  check_refused("qwen3_next_moe", CAIRN_STATUS_FORMAT, "experts.3",
                [](Checkpoint& c) { c.rename("model.layers.1.mlp.experts.3.up_proj.weight", "mtp.nothing"); });
  check_refused("kimi_linear", CAIRN_STATUS_FORMAT, "kv_b_proj", [](Checkpoint& c) {
    c.header["model.layers.3.self_attn.kv_b_proj.weight"]["shape"] = {48, 256};
  });
  check_refused("qwen3_next_moe", CAIRN_STATUS_FORMAT, "in_proj_qkvz", [](Checkpoint& c) {
    c.header["model.layers.0.linear_attn.in_proj_qkvz.weight"]["shape"] = {128, 384};
  });
}

TEST_CASE("multi-token prediction is left out, and a head that is tied anyway") {
  Checkpoint checkpoint("qwen3_5_r2_tied_vl");
  checkpoint.add("mtp.fc.weight", {3, 3});
  checkpoint.add("lm_head.weight", {640, 128});

  const Result<ModelDescription> result = checkpoint.imported();

  REQUIRE_MESSAGE(result.ok(), result.status().message());
  CHECK(result.value().tied_embedding);
  CHECK(result.value().find("head.weight") == nullptr);
}

TEST_CASE("flash-linear-attention checkpoints import, with attention layers between") {
  Checkpoint kda;
  kda.config = Json::parse(R"({"model_type": "kda", "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2,
    "head_dim": 8, "expand_v": 1.0, "vocab_size": 32, "intermediate_size": 24, "norm_eps": 1e-6, "use_short_conv": true,
    "conv_size": 4, "hidden_act": "swish", "bos_token_id": 1, "eos_token_id": 2,
    "attn": {"layers": [1], "num_heads": 2, "num_kv_heads": 1, "window_size": 7}, "tie_word_embeddings": false})");
  for (const char* name : {"model.embeddings.weight", "lm_head.weight"}) kda.add(name, {32, 16});
  kda.add("model.norm.weight", {16});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* name : {"attn_norm.weight", "mlp_norm.weight"}) kda.add(layer + name, {16});
    for (const char* name : {"mlp.gate_proj.weight", "mlp.up_proj.weight"}) kda.add(layer + name, {24, 16});
    kda.add(layer + "mlp.down_proj.weight", {16, 24});
    kda.add(layer + "attn.q_proj.weight", {16, 16});
    kda.add(layer + "attn.o_proj.weight", {16, 16});
  }
  for (const char* name : {"k", "v"}) {
    kda.add("model.layers.0.attn." + std::string(name) + "_proj.weight", {16, 16});
    kda.add("model.layers.1.attn." + std::string(name) + "_proj.weight", {8, 16});
  }
  const std::string stem = "model.layers.0.attn.";
  for (const char* name : {"q", "k", "v"}) kda.add(stem + name + "_conv1d.weight", {16, 1, 4});
  for (const char* name : {"f_proj.0.weight", "g_proj.0.weight"}) kda.add(stem + name, {8, 16});
  for (const char* name : {"f_proj.1.weight", "g_proj.1.weight"}) kda.add(stem + name, {16, 8});
  for (const char* name : {"g_proj.1.bias", "dt_bias"}) kda.add(stem + name, {16});
  kda.add(stem + "b_proj.weight", {2, 16});
  kda.add(stem + "A_log", {2});
  kda.add(stem + "o_norm.weight", {8});

  const Result<ModelDescription> result = kda.imported();

  REQUIRE_MESSAGE(result.ok(), result.status().message());
  CHECK(result.value().layers[0].mechanism == Mechanism::kKda);
  CHECK(result.value().layers[1].attention.window == 7);
  CHECK(result.value().find("layers.0.mixer.z_up.bias") != nullptr);
  kda.config["expand_v"] = 1.0000001;  // a float that is not quite the whole number which it stands for
  CHECK(kda.imported().ok());
  kda.config["expand_v"] = 1.2;
  CHECK_FALSE(kda.imported().ok());
  kda.config["expand_v"] = 1.0;
  kda.config["attnres_block_size"] = 2;
  CHECK(kda.imported().status().code() == CAIRN_STATUS_UNSUPPORTED);
}

}  // namespace cairn::test
