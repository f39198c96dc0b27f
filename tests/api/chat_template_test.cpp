// A folder's chat template comes through the C API as its makers wrote it. The model is as small as one can be: one
// layer, four columns.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cairn/cairn.h"

namespace {

class SmallFolder {
 public:
  SmallFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "cairn-template-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
    put("config.json",
        R"({"model_type": "gated_deltanet", "hidden_size": 4, "num_hidden_layers": 1, "vocab_size": 8, "num_heads": 1,
            "head_dim": 4, "expand_v": 1, "use_short_conv": false, "use_gate": false, "intermediate_size": 4,
            "tie_word_embeddings": true, "eos_token_id": 1})");
    add("model.embeddings.weight", "[8,4]", 32);
    add("model.norm.weight", "[4]", 4);
    for (const char* norm : {"attn_norm.weight", "mlp_norm.weight", "attn.o_norm.weight"}) add(layer(norm), "[4]", 4);
    for (const char* name : {"mlp.gate", "mlp.up", "mlp.down", "attn.q", "attn.k", "attn.v", "attn.o"}) {
      add(layer(name) + "_proj.weight", "[4,4]", 16);
    }
    for (const char* name : {"attn.a_proj.weight", "attn.b_proj.weight"}) add(layer(name), "[1,4]", 4);
    for (const char* name : {"attn.A_log", "attn.dt_bias"}) add(layer(name), "[1]", 1);
    const std::string header = header_ + "}";
    const std::uint64_t size = header.size();
    put("model.safetensors", std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(end_, '\0'));
  }
  ~SmallFolder() { std::filesystem::remove_all(path_); }
  SmallFolder(const SmallFolder&) = delete;

  const std::string& path() const { return path_; }
  void put(const char* name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
  }

 private:
  static std::string layer(const std::string& name) { return "model.layers.0." + name; }
  void add(const std::string& name, const char* shape, std::size_t elements) {
    const std::size_t begin = end_;
    end_ += 4 * elements;
    header_ += (begin ? ",\"" : "\"") + name + R"(":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[)" +
               std::to_string(begin) + "," + std::to_string(end_) + "]}";
  }

  std::string path_, header_ = "{";
  std::size_t end_ = 0;
};

/// Loads the folder and asks for its template.
std::string template_of(const std::string& folder) {
  cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
  options.backend = "cpu";
  cairn_device* device = nullptr;
  REQUIRE_MESSAGE(cairn_device_open(&options, &device) == CAIRN_STATUS_OK, cairn_last_error_message());
  cairn_model* model = nullptr;
  REQUIRE_MESSAGE(cairn_model_load(device, folder.c_str(), nullptr, &model) == CAIRN_STATUS_OK,
                  cairn_last_error_message());
  std::size_t size = 0;
  const cairn_status asked = cairn_model_get_chat_template(model, nullptr, &size);
  CHECK(asked == (size > 0 ? CAIRN_STATUS_BUFFER_TOO_SMALL : CAIRN_STATUS_OK));
  std::string text(size + 1, '#');
  if (size > 0) {
    std::size_t small = size - 1;
    CHECK(cairn_model_get_chat_template(model, text.data(), &small) == CAIRN_STATUS_BUFFER_TOO_SMALL);
    CHECK(small == size);
    CHECK(text == std::string(size + 1, '#'));  // nothing was written
  }
  CHECK(cairn_model_get_chat_template(model, text.data(), &size) == CAIRN_STATUS_OK);
  CHECK(text.back() == '#');
  CHECK(cairn_model_get_chat_template(model, text.data(), nullptr) == CAIRN_STATUS_INVALID_ARGUMENT);
  cairn_model_release(model);
  CHECK(cairn_model_get_chat_template(model, text.data(), &size) == CAIRN_STATUS_INVALID_HANDLE);
  cairn_device_release(device);
  text.resize(size);
  return text;
}

}  // namespace

TEST_CASE("a chat template comes from its own file first, then from the tokenizer's settings, else there is none") {
  const SmallFolder folder;
  const std::string own = "{% for message in messages %}\n\xf0\x9f\x8f\x94 {{ message.content }}{% endfor %}";

  CHECK(template_of(folder.path()).empty());
  folder.put("tokenizer_config.json",
             R"({"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]})");
  CHECK(template_of(folder.path()) == "yes");
  folder.put("tokenizer_config.json", R"({"chat_template": "plain \"text\""})");
  CHECK(template_of(folder.path()) == "plain \"text\"");
  folder.put("chat_template.jinja", own);
  CHECK(template_of(folder.path()) == own);
}

TEST_CASE("a packed model keeps its chat template") {
  const SmallFolder folder;
  folder.put("chat_template.jinja", "{{ messages[0].content }}");
  const std::string file = folder.path() + "/model.cairn";

  REQUIRE_MESSAGE(cairn_pack(folder.path().c_str(), file.c_str(), nullptr) == CAIRN_STATUS_OK,
                  cairn_last_error_message());

  CHECK(template_of(file) == "{{ messages[0].content }}");
}
