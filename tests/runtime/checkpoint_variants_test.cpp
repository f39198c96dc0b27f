// Checkpoints that say in other words what the fixtures say: other names, fields left out, fields said twice.
#include <utility>

#include "tests/runtime/checkpoint_fixture.h"

namespace cairn::test {
namespace {

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

}  // namespace cairn::test
