#include <doctest/doctest.h>

#include <algorithm>

#include "tests/runtime/tokenizer_fixture.h"

namespace cairn::test {

TEST_CASE("tokens that only tokenizer_config.json names are matched") {
  TokenizerConfig config;
  config.kind = TokenizerKind::kBpe;
  config.data = small_tokenizer().dump();
  config.extra =
      R"({"added_tokens_decoder": {"300": {"content": "<|end|>"}, "301": {"content": "<think>", "special": false, "normalized": false}}})";
  const auto tokenizer = make(config);

  CHECK(encoded(*tokenizer, "<think>ab") == std::vector<std::int32_t>{301, 256});
  CHECK_FALSE(tokenizer->is_special(301));
  CHECK(tokenizer->id_end() == 302);
}

TEST_CASE("an added token that is a single word is none beside what Unicode calls one, and is not cut into others") {
  Json root = small_tokenizer();
  root["added_tokens"] = Json::parse(
      R"([{"id": 300, "content": "<end>", "single_word": true, "normalized": false},
          {"id": 301, "content": "<e", "normalized": false}])");
  TokenizerConfig config = config_of("qwen2");
  config.data = root.dump();
  const auto tokenizer = make(config);
  const auto has = [&](const char* text, std::int32_t id) {
    const std::vector<std::int32_t> ids = encoded(*tokenizer, text);
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };

  for (const char* text : {"<end>", "\u00bd<end>", "<end>\u00b2", "-<end>-", "\u4e2d <end>", "\U0001faa8<end>",
                           "\u24ea<end>", "<end>\U0001f16a"}) {
    CAPTURE(text);
    CHECK(has(text, 300));
  }
  for (const char* text :
       {"a<end>", "<end>_", "\u200d<end>", "<end>\u0301", "\u2167<end>", "<end>\u0663", "\u4e2d<end>", "\u24b6<end>",
        "<end>\u24e9", "\U0001f130<end>", "<end>\U0001f169", "\U0001f189<end>"}) {
    CAPTURE(text);
    CHECK_FALSE(has(text, 300));
    CHECK_FALSE(has(text, 301));
  }
  CHECK(has("a<e", 301));
}

TEST_CASE("a token that begins in the blanks which another strips is found, and what follows it is text") {
  Json root = small_tokenizer();
  root["added_tokens"] = Json::parse(
      R"([{"id": 300, "content": "<r>", "rstrip": true, "normalized": false},
          {"id": 301, "content": "\n\n", "normalized": false},
          {"id": 302, "content": " <l>", "lstrip": true, "normalized": false}])");
  TokenizerConfig config;
  config.kind = TokenizerKind::kBpe;
  config.data = root.dump();
  const auto tokenizer = make(config);
  const std::int32_t blank = encoded(*tokenizer, " ").front();

  CHECK(encoded(*tokenizer, "<r> ab") == std::vector<std::int32_t>{300, 256});
  CHECK(encoded(*tokenizer, "<r> \n\nab") == std::vector<std::int32_t>{300, 301, 256});
  CHECK(encoded(*tokenizer, "<r>\n\n  ab") == std::vector<std::int32_t>{300, 301, blank, blank, 256});
  CHECK(encoded(*tokenizer, "<r>   <l>ab") == std::vector<std::int32_t>{300, 302, 256});
}

TEST_CASE("an added token that is normalised is found in either form of a text") {
  Json root = small_tokenizer();
  for (const char* form : {"e\u0301", "\u00e9"}) {
    root["added_tokens"] = {{{"id", 300}, {"content", form}, {"normalized", true}}};
    TokenizerConfig config = config_of("qwen2");
    config.data = root.dump();
    const auto tokenizer = make(config);

    for (const char* text : {"e\u0301", "\u00e9"}) CHECK(encoded(*tokenizer, text) == std::vector<std::int32_t>{300});
  }
}

TEST_CASE("added tokens of every length on a text that begins all of them end in bounded time") {
  Json root = small_tokenizer();
  for (int length = 1; length <= 512; ++length) {
    root["added_tokens"].push_back(
        {{"id", 300 + length}, {"content", std::string(static_cast<std::size_t>(length), 'a') + "!"}});
  }
  root["added_tokens"].erase(512);  // 513 bytes are too many
  TokenizerConfig config;
  config.kind = TokenizerKind::kBpe;
  config.data = root.dump();
  const auto tokenizer = make(config);
  const std::string text(500000, 'a');
  std::vector<std::int32_t> ids;
  const double start = cpu_seconds();

  const Status status = tokenizer->encode(text, ids);

  CHECK((status.ok() || status.code() == CAIRN_STATUS_LIMIT_EXCEEDED));
  CHECK(cpu_seconds() - start < allowed_seconds(text.size()));
}

}  // namespace cairn::test
