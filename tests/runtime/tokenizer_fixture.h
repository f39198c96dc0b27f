// Tokenizers of the fixtures, whole and cut down to bytes, and what a text may take.
#pragma once

#include <doctest/doctest.h>

#include <ctime>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace cairn::test {

using Json = nlohmann::json;

inline const std::string kFolder = CAIRN_SHARED_DIR "/fixtures/tokenizers/";

inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline TokenizerConfig config_of(const char* name) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kBpe;
  config.data = file_text(kFolder + name + "/tokenizer.json");
  return config;
}

inline std::unique_ptr<Tokenizer> make(const TokenizerConfig& config) {
  Result<std::unique_ptr<Tokenizer>> result = make_tokenizer(config);
  REQUIRE_MESSAGE(result.ok(), result.status().message());
  return std::move(result).value();
}

inline std::vector<std::int32_t> encoded(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  const Status status = tokenizer.encode(text, ids);
  CHECK_MESSAGE(status.ok(), status.message());
  return ids;
}

/// A small vocabulary of all bytes, written as tokenizer.json; tests break it.
inline Json small_tokenizer() {
  Json root = Json::parse(file_text(kFolder + "qwen2/tokenizer.json"));
  Json vocabulary = Json::object();
  for (const auto& [token, id] : root["model"]["vocab"].items()) {
    if (id < 256) vocabulary[token] = id;
  }
  vocabulary["ab"] = 256;
  vocabulary["abc"] = 257;
  root["model"]["vocab"] = vocabulary;
  root["model"]["merges"] = Json::parse(R"(["a b", "ab c"])");
  root["added_tokens"] = Json::parse(R"([{"id": 300, "content": "<|end|>", "special": true, "normalized": false}])");
  return root;
}

inline double cpu_seconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// What the budget allows for a text, and the longest single match.
inline double allowed_seconds(std::size_t text_bytes) { return 2 + 1e-6 * static_cast<double>(text_bytes) + 20; }

}  // namespace cairn::test
