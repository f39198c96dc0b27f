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

}  // namespace

TEST_CASE("a head that is not there is the embedding, whatever the config says") {
  const auto is_head = [](const std::string& name) { return name == "lm_head.weight"; };
  for (const char* name : {"olmo_hybrid", "kimi_linear"}) {
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

}  // namespace cairn::test
