#include <doctest/doctest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>

#include "runtime/text/text_splitter.h"
#include "tests/runtime/tokenizer_fixture.h"

namespace cairn::test {
namespace {

constexpr const char* kNames[] = {"qwen35", "qwen2", "cl100k"};

/// Characters of all planes, more often those that matter: marks, blanks, Han, Hangul, quotes.
std::string random_text(std::mt19937& random) {
  constexpr std::pair<std::uint32_t, std::uint32_t> kRanges[] = {
      {0, 0x7f},        {0x20, 0x7e},     {0x80, 0x24f},    {0x300, 0x36f},   {0x900, 0x97f},   {0x1100, 0x11ff},
      {0x2000, 0x206f}, {0x3000, 0x30ff}, {0x4e00, 0x9fff}, {0xac00, 0xd7a3}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
  std::string text;
  const int length = static_cast<int>(random() % 40);
  for (int i = 0; i < length; ++i) {
    const auto [low, high] = kRanges[random() % std::size(kRanges)];
    const std::uint32_t c = low + random() % (high - low + 1);
    if (c >= 0xd800 && c <= 0xdfff) continue;
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
    text.append(reinterpret_cast<char*>(bytes), static_cast<std::size_t>(count));
  }
  return text;
}

Status refusal(const Json& root) {
  TokenizerConfig config;
  config.kind = TokenizerKind::kBpe;
  config.data = root.dump();
  return make_tokenizer(config).status();
}

TokenizerConfig tiktoken_config() {
  TokenizerConfig config;
  config.kind = TokenizerKind::kTiktoken;
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int byte = 0; byte < 256; ++byte) {
    config.data += std::string{kDigits[byte >> 2], kDigits[(byte & 3) << 4]} + "== " + std::to_string(byte) + "\n";
  }
  config.data += "YWI= 256\nYWJj 257\n";  // ab, abc
  config.extra =
      R"({"added_tokens_decoder": {"258": {"content": "[BOS]", "special": true}, "259": {"content": "[EOS]", "special": true}}})";
  return config;
}

std::string marks(std::initializer_list<int> characters) {
  std::string text;
  for (const int c : characters) {
    utf8proc_uint8_t bytes[4];
    text.append(reinterpret_cast<char*>(bytes), static_cast<std::size_t>(utf8proc_encode_char(c, bytes)));
  }
  return text;
}

}  // namespace

TEST_CASE("every recorded case of every tokenizer comes out exactly") {
  const Json cases = Json::parse(file_text(kFolder + "cases.json"));
  for (const char* name : kNames) {
    const auto tokenizer = make(config_of(name));
    for (const Json& one : cases.at(name)) {
      const auto ids = encoded(*tokenizer, one["text"].get<std::string>());
      CHECK_MESSAGE(ids == one["ids"].get<std::vector<std::int32_t>>(), name << ": " << one["text"].dump());
      CHECK(tokenizer->decode(ids, false) == one["decoded"].get<std::string>());
    }
  }
}

TEST_CASE("decoding what was encoded gives the text in composed form") {
  std::mt19937 random(11);
  for (const char* name : kNames) {
    const auto tokenizer = make(config_of(name));
    for (int i = 0; i < 3000; ++i) {
      const std::string text = random_text(random);

      const std::string back = tokenizer->decode(encoded(*tokenizer, text), false);

      CHECK(back == to_nfc(text).value());
    }
  }
}

TEST_CASE("a piece has the same ids the first and the second time, and in a long run") {
  const auto tokenizer = make(config_of("qwen35"));
  const std::string text = "the quick brown fox jumps over the lazy dog's tail\n";

  const auto once = encoded(*tokenizer, text);
  const auto twice = encoded(*tokenizer, text + text);

  CHECK(std::equal(once.begin(), once.end(), twice.begin()));
  CHECK(std::equal(once.rbegin(), once.rend(), twice.rbegin()));
  const std::string letters(200000, 'a');
  CHECK(tokenizer->decode(encoded(*tokenizer, letters), true) == letters);
}

TEST_CASE("both forms of merges mean the same, and special tokens can be skipped") {
  Json root = small_tokenizer();
  TokenizerConfig config;
  config.kind = TokenizerKind::kBpe;
  config.data = root.dump();
  const auto strings = make(config);
  root["model"]["merges"] = Json::parse(R"([["a", "b"], ["ab", "c"]])");
  config.data = root.dump();
  const auto pairs = make(config);

  const auto ids = encoded(*strings, "abcab<|end|>");

  CHECK(ids == std::vector<std::int32_t>{257, 256, 300});
  CHECK(ids == encoded(*pairs, "abcab<|end|>"));
  CHECK(strings->is_special(300));
  CHECK(strings->decode(ids, true) == "abcab");
  CHECK(strings->decode(ids, false) == "abcab<|end|>");
}

TEST_CASE("a pattern that keeps its matches is the same as one that isolates them") {
  TokenizerConfig config = config_of("cl100k");
  const auto isolated = make(config);
  Json root = Json::parse(config.data);
  Json& split = root["pre_tokenizer"]["pretokenizers"][0];
  split["behavior"] = "Removed";
  split["invert"] = true;
  config.data = root.dump();
  const auto kept = make(config);
  const std::string text = "It's 12345 caf\u00e9s,  \u4e2d\u6587\n\n ok";

  CHECK(encoded(*isolated, text) == encoded(*kept, text));
  split["invert"] = false;
  CHECK(refusal(root).code() == CAIRN_STATUS_UNSUPPORTED);
}

TEST_CASE("text that is not UTF-8 is refused") {
  const auto tokenizer = make(config_of("qwen2"));
  std::vector<std::int32_t> ids;

  CHECK(tokenizer->encode("ab\xff", ids).code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(tokenizer->encode("\xed\xa0\x80", ids).code() == CAIRN_STATUS_INVALID_ARGUMENT);
}

TEST_CASE("a hostile tokenizer.json is refused, and nothing is thrown") {
  const auto with = [](const char* pointer, const Json& value) {
    Json root = small_tokenizer();
    root[Json::json_pointer(pointer)] = value;
    return refusal(root);
  };
  CHECK(with("/model/type", "Unigram").code() == CAIRN_STATUS_UNSUPPORTED);
  CHECK(with("/model/byte_fallback", true).code() == CAIRN_STATUS_UNSUPPORTED);
  CHECK(with("/normalizer/type", "NFKC").code() == CAIRN_STATUS_UNSUPPORTED);
  CHECK(with("/pre_tokenizer/pretokenizers/0/behavior", "Removed").code() == CAIRN_STATUS_UNSUPPORTED);
  CHECK(with("/pre_tokenizer/pretokenizers/0/behavior", 7).code() == CAIRN_STATUS_FORMAT);
  CHECK_FALSE(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(unclosed").ok());
  CHECK(with("/pre_tokenizer/pretokenizers", "text").code() == CAIRN_STATUS_FORMAT);
  CHECK_FALSE(with("/pre_tokenizer", 3).ok());
  CHECK(with("/model/vocab/ab", -1).code() == CAIRN_STATUS_FORMAT);
  CHECK(with("/model/vocab/ab", 1LL << 40).code() == CAIRN_STATUS_FORMAT);
  CHECK(with("/model/vocab/ab", "x").code() == CAIRN_STATUS_FORMAT);
  CHECK(with("/model/vocab/abc", 256).code() == CAIRN_STATUS_FORMAT);
  CHECK(with("/model/merges/0", "a z q").code() == CAIRN_STATUS_FORMAT);
  CHECK(with("/model/merges/0", "b a").code() == CAIRN_STATUS_FORMAT);
  CHECK(with("/model/merges", 5).code() == CAIRN_STATUS_FORMAT);
  CHECK_FALSE(with("/added_tokens/0/id", -5).ok());
  CHECK(with("/model/type", 5).code() == CAIRN_STATUS_FORMAT);
  CHECK(with("/added_tokens/0/special", "yes").code() == CAIRN_STATUS_FORMAT);
  CHECK(with("/added_tokens/0/content", std::string(513, 'a')).code() == CAIRN_STATUS_LIMIT_EXCEEDED);
  CHECK_FALSE(with("/added_tokens/0/content", 5).ok());

  TokenizerConfig config;
  config.kind = TokenizerKind::kBpe;
  for (const std::string& text : {std::string(), std::string("{"), std::string("[]"), std::string(100000, '['),
                                  std::string("{\"model\": {\"vocab\": {\"\xff\": 1}}}")}) {
    config.data = text;
    CHECK(make_tokenizer(config).status().code() == CAIRN_STATUS_FORMAT);
  }
}

TEST_CASE("a hostile pattern ends with a refusal, in bounded time") {
  struct Hostile {
    const char* pattern;
    std::size_t size;
  };
  for (const Hostile& hostile :
       {Hostile{"(?:a+)+(?:b|c)", 40}, {"[^\\n]*(?:b|c)", 500000}, {"(?:(?=[^\\n]*)a)*(?:b|c)", 200000}}) {
    CAPTURE(std::string(hostile.pattern));
    Json root = small_tokenizer();
    root["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = hostile.pattern;
    TokenizerConfig config;
    config.kind = TokenizerKind::kBpe;
    config.data = root.dump();
    const auto tokenizer = make(config);
    const std::string text(hostile.size, 'a');
    std::vector<std::int32_t> ids;
    const double start = cpu_seconds();

    const Status status = tokenizer->encode(text, ids);

    CHECK(status.code() == CAIRN_STATUS_LIMIT_EXCEEDED);
    CHECK(cpu_seconds() - start < allowed_seconds(text.size()));
  }
}

TEST_CASE("an unknown pattern gives the same pieces as the known one that it means") {
  TokenizerConfig config = config_of("qwen35");
  const auto known = make(config);
  Json root = Json::parse(config.data);
  Json& pattern = root["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  pattern = "(?:" + pattern.get<std::string>() + ")";
  config.data = root.dump();
  const auto unknown = make(config);
  std::mt19937 random(13);
  for (int i = 0; i < 150; ++i) {
    std::string text;  // runs that pass the windows in which matches are tried
    for (int j = 0; j < 3; ++j) text += std::string(random() % 9000, " a\n1-"[random() % 5]) + random_text(random);
    CHECK(encoded(*known, text) == encoded(*unknown, text));
  }
}

TEST_CASE("composition is utf8proc's own, and a run of marks takes no n * n steps") {
  std::mt19937 random(14);
  for (int i = 0; i < 3000; ++i) {
    std::string text = random_text(random);
    for (int j = 0; j < 6; ++j)
      text += marks({static_cast<int>(0x300 + random() % 0x70), static_cast<int>(0x591 + random() % 30)});
    utf8proc_uint8_t* expected = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
    if (text.find('\0') == std::string::npos) CHECK(to_nfc(text).value() == reinterpret_cast<char*>(expected));
    std::free(expected);
  }
  std::string run = "a";
  for (int i = 0; i < 200000; ++i) run += marks({0x301});
  for (int i = 0; i < 200000; ++i) run += marks({0x323});  // sorts before all of them
  const double start = cpu_seconds();

  const std::string composed = to_nfc(run).value();

  CHECK(cpu_seconds() - start < 5);
  CHECK(composed.starts_with(marks({0x1ea1, 0x323})));
}

TEST_CASE("a million names in a tokenizer file are read, or refused, in bounded time") {
  std::string vocabulary = "{", ranks;
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int i = 0; i < 1000000; ++i) {
    vocabulary += (i ? ",\"" : "\"") + std::to_string(1000000 + i) + "\":" + std::to_string(i);
    ranks += std::string{kDigits[i >> 18], kDigits[i >> 12 & 63], kDigits[i >> 6 & 63], kDigits[i & 63]} + " " +
             std::to_string(i) + "\n";
  }
  Json root = small_tokenizer();
  root["model"]["vocab"] = "HERE";
  root["model"]["merges"] = Json::array();
  TokenizerConfig bpe, tiktoken;
  bpe.kind = TokenizerKind::kBpe;
  bpe.data = root.dump();
  bpe.data.replace(bpe.data.find("\"HERE\""), 6, vocabulary + "}");
  tiktoken.kind = TokenizerKind::kTiktoken;
  tiktoken.data = ranks;
  for (const TokenizerConfig& config : {bpe, tiktoken}) {
    const double start = cpu_seconds();

    const Result<std::unique_ptr<Tokenizer>> result = make_tokenizer(config);

    MESSAGE(config.data.size(), " bytes: ", cpu_seconds() - start, " s");
    CHECK(cpu_seconds() - start < 30);
    REQUIRE_MESSAGE(result.ok(), result.status().message());
    CHECK(result.value()->id_end() >= 1000000);
  }
}

TEST_CASE("tiktoken ranks merge by the bytes of the pair, and specials stand behind them") {
  const auto tokenizer = make(tiktoken_config());

  CHECK(encoded(*tokenizer, "abc") == std::vector<std::int32_t>{257});
  CHECK(encoded(*tokenizer, "abcd") == std::vector<std::int32_t>{257, 'd'});
  CHECK(encoded(*tokenizer, "[BOS]cab") == std::vector<std::int32_t>{258, 'c', 256});
  CHECK(tokenizer->is_special(258));
  CHECK(tokenizer->token_bytes(260) == "<|reserved_token_260|>");
  CHECK(tokenizer->id_end() == 258 + 258);
  const std::string letters(60000, 'b');
  CHECK(tokenizer->decode(encoded(*tokenizer, letters), true) == letters);
}

TEST_CASE("a named token that is not special is matched as one and stays in what is decoded") {
  TokenizerConfig config = tiktoken_config();
  config.extra = R"({"added_tokens_decoder": {"258": {"content": "[BOS]", "special": true},
    "259": {"content": "<think>", "special": false}, "260": {"content": "[EOS]", "special": true},
    "262": {"content": "<|tool|>"}}})";
  const auto tokenizer = make(config);

  const auto ids = encoded(*tokenizer, "[BOS]<think>ab[EOS]<|reserved_token_261|><|tool|>");

  CHECK(ids == std::vector<std::int32_t>{258, 259, 256, 260, 261, 262});
  CHECK(tokenizer->decode(ids, true) == "<think>ab<|tool|>");
  for (const std::int32_t id : {259, 262}) CHECK_FALSE(tokenizer->is_special(id));
  for (const std::int32_t id : {258, 260, 261, 515}) CHECK(tokenizer->is_special(id));
  config.extra = R"({"added_tokens_decoder": {"258": {"content": "[BOS]", "special": "yes"}}})";
  CHECK(make_tokenizer(config).status().code() == CAIRN_STATUS_FORMAT);
}

TEST_CASE("the pattern of Kimi keeps Han apart and cuts digits by three") {
  std::mt19937 random(12);
  TokenizerConfig config = tiktoken_config();
  config.data += "MTI= 258\n";  // "12": digits of one piece merge
  config.extra.clear();
  const auto tokenizer = make(config);

  CHECK(encoded(*tokenizer, "1212") == std::vector<std::int32_t>{258, '1', '2'});
  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_text(random);
    CHECK(tokenizer->decode(encoded(*tokenizer, text), true) == text);
  }
}

TEST_CASE("bad tiktoken ranks are refused") {
  TokenizerConfig config;
  config.kind = TokenizerKind::kTiktoken;
  for (const char* text : {"", "YQ==", "YQ== x", "YQ== -1", "YQ== 99999999999999999999", "Y!== 1", "YQ== 1\nYQ== 2\n",
                           "YQ== 1\nYg== 1\n"}) {
    config.data = text;
    CHECK(make_tokenizer(config).status().code() == CAIRN_STATUS_FORMAT);
  }
}

}  // namespace cairn::test
