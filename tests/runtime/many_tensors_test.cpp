// Models with as many tensors as the largest public mixtures of experts have, as folders and as files.
#include <doctest/doctest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/import/import_folder.h"
#include "runtime/model/cairn_file_reader.h"
#include "runtime/model/pack.h"
#include "tests/runtime/file_fixture.h"

namespace cairn::test {
namespace {

using Json = nlohmann::json;

constexpr int kLayers = 48, kExperts = 512, kDim = 4;

/// A folder in the shape of Qwen3-Next-80B-A3B, with four columns instead of 2,048.
class ManyExperts {
 public:
  ManyExperts() {
    put_file(folder_ / "config.json",
             R"({"model_type": "qwen3_next", "hidden_size": 4, "vocab_size": 8, "num_hidden_layers": 48,
      "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8, "linear_num_key_heads": 1, "linear_num_value_heads": 1,
      "linear_key_head_dim": 4, "linear_value_head_dim": 4, "num_experts": 512, "num_experts_per_tok": 2, "moe_intermediate_size": 4,
      "shared_expert_intermediate_size": 4, "tie_word_embeddings": true, "partial_rotary_factor": 0.25, "rope_theta": 10000})");
    add("model.embed_tokens.weight", {8, kDim});
    add("model.norm.weight", {kDim});
    for (int i = 0; i < kLayers; ++i) add_layer("model.layers." + std::to_string(i) + ".", (i + 1) % 4 == 0);
    const std::string text = header_ + "}";
    const std::uint64_t size = text.size();
    put_file(folder_ / "model.safetensors", std::string(reinterpret_cast<const char*>(&size), 8) + text + data_);
  }

  const std::string& path() const { return folder_.path(); }
  std::string file(const char* name) const { return folder_ / name; }
  std::size_t count() const { return count_; }

 private:
  void add(const std::string& name, const std::vector<int>& shape) {
    std::size_t elements = 1;
    for (const int dim : shape) elements *= static_cast<std::size_t>(dim);
    const Json entry = {
        {"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + 2 * elements}}};
    header_ += (count_++ == 0 ? "\"" : ",\"") + name + "\":" + entry.dump();
    for (std::size_t i = 0; i < elements; ++i) data_ += {static_cast<char>(i + count_), '\x3c'};
  }
  void add_layer(const std::string& layer, bool is_attention) {
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"}) add(layer + norm, {kDim});
    if (is_attention) {
      const std::string stem = layer + "self_attn.";
      add(stem + "q_proj.weight", {16, kDim});
      for (const char* name : {"k_proj.weight", "v_proj.weight"}) add(stem + name, {8, kDim});
      for (const char* name : {"q_norm.weight", "k_norm.weight"}) add(stem + name, {8});
      add(stem + "o_proj.weight", {kDim, 8});
    } else {
      const std::string stem = layer + "linear_attn.";
      add(stem + "in_proj_qkvz.weight", {16, kDim});
      add(stem + "in_proj_ba.weight", {2, kDim});
      add(stem + "conv1d.weight", {12, 1, 4});
      for (const char* name : {"A_log", "dt_bias"}) add(stem + name, {1});
      add(stem + "norm.weight", {4});
      add(stem + "out_proj.weight", {kDim, 4});
    }
    add(layer + "mlp.gate.weight", {kExperts, kDim});
    add(layer + "mlp.shared_expert_gate.weight", {1, kDim});
    for (const char* name : {"gate", "up", "down"}) {
      for (int e = 0; e < kExperts; ++e)
        add(layer + "mlp.experts." + std::to_string(e) + "." + name + "_proj.weight", {4, 4});
      add(layer + "mlp.shared_expert." + name + "_proj.weight", {4, 4});
    }
  }

  TemporaryFolder folder_;
  std::string header_ = "{", data_;
  std::size_t count_ = 0;
};

}  // namespace

TEST_CASE("48 layers of 512 experts load from a folder and from a packed file, in 16 and in 8 bits") {
  const ManyExperts folder;
  REQUIRE(folder.count() > 73728);

  const Result<ModelDescription> imported = import_folder(folder.path());

  REQUIRE_MESSAGE(imported.ok(), imported.status().message());
  CHECK(imported.value().tensors.size() > 73728);
  CHECK(imported.value().find("layers.47.mlp.experts.511.down.weight") != nullptr);
  for (const WeightFormat format : {WeightFormat::kKeep, WeightFormat::kI8}) {
    PackOptions options;
    options.format = format;
    const Status packed = pack(folder.path(), folder.file("model.cairn"), options);
    REQUIRE_MESSAGE(packed.ok(), packed.message());
    const Result<ModelDescription> read = read_cairn_file(folder.file("model.cairn"));
    REQUIRE_MESSAGE(read.ok(), read.status().message());
    CHECK(read.value().tensors.size() == imported.value().tensors.size());
    CHECK((read.value().fingerprint == imported.value().fingerprint) == (format == WeightFormat::kKeep));
  }
  ImportOptions narrow;
  narrow.limits.max_tensors = 65536;
  CHECK(import_folder(folder.path(), narrow).status().code() == CAIRN_STATUS_LIMIT_EXCEEDED);
}

}  // namespace cairn::test
