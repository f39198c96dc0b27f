#include <doctest/doctest.h>

#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8_stream.h"

namespace cairn::test {
namespace {

/// Pushes byte by byte, and checks that every output is whole.
std::string streamed(const std::string& bytes) {
  Utf8Stream stream;
  std::string text;
  for (char c : bytes) stream.push({&c, 1}, text);
  stream.finish(text);
  return text;
}

const std::string kReplacement = "\xef\xbf\xbd";

}  // namespace

TEST_CASE("utf8_stream gives whole characters only, as soon as they are whole") {
  Utf8Stream stream;
  std::string text;

  stream.push("\xf0\x9f\xa6", text);
  CHECK(text.empty());
  stream.push("\x99!", text);
  CHECK(text == "\xf0\x9f\xa6\x99!");
  stream.push("\xc3", text);
  stream.finish(text);
  CHECK(text == "\xf0\x9f\xa6\x99!" + kReplacement);
  stream.push("ok", text);
  CHECK(text.ends_with("ok"));
}

TEST_CASE("utf8_stream replaces each maximal subpart once, as Unicode's table 3-8") {
  CHECK(streamed("\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64") ==
        "a" + kReplacement + kReplacement + kReplacement + "b" + kReplacement + "c" + kReplacement + kReplacement + "d");
  CHECK(streamed("\xe0\x80") == kReplacement + kReplacement);           // overlong
  CHECK(streamed("\xed\xa0\x80") == kReplacement + kReplacement + kReplacement);  // a surrogate
  CHECK(streamed("\xf4\x90\x80\x80") == kReplacement + kReplacement + kReplacement + kReplacement);
  CHECK(streamed("\xc0\xaf") == kReplacement + kReplacement);
  CHECK(streamed("\xff") == kReplacement);
  CHECK(streamed("\xf0\x9f\x92") == kReplacement);
}

TEST_CASE("utf8_stream leaves valid text as it is") {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x92\xa9\xef\xbf\xbd\xf4\x8f\xbf\xbf\n";
  CHECK(streamed(text) == text);
}

TEST_CASE("byte tokenizer takes any bytes and gives them back") {
  TokenizerConfig config;
  config.kind = TokenizerKind::kBytes;
  config.bos = 256;
  config.eos = 257;
  const auto tokenizer = make_tokenizer(config);
  REQUIRE(tokenizer.ok());
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  std::vector<std::int32_t> ids;

  CHECK(tokenizer.value()->encode(text, ids).ok());

  CHECK(ids.size() == 256);
  CHECK(tokenizer.value()->decode(ids, true) == text);
  CHECK(tokenizer.value()->is_special(256));
  CHECK_FALSE(tokenizer.value()->is_special(255));
  CHECK(tokenizer.value()->token_bytes(300).empty());
  CHECK(tokenizer.value()->token_bytes(-1).empty());
  CHECK(tokenizer.value()->id_end() == 258);
  CHECK(make_tokenizer(TokenizerConfig{}).status().code() == CAIRN_STATUS_UNSUPPORTED);
}

}  // namespace cairn::test
