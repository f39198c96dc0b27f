#include "runtime/text/split_pattern.h"

#include <string>
#include <vector>

#include "runtime/text/text_splitter.h"
#include "tests/runtime/tokenizer_fixture.h"

namespace cairn::test {
namespace {

using Pieces = std::vector<std::string>;

constexpr const char* kPossessive =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Pieces split(const char* pattern, const std::string& text) {
  Pieces pieces;
  const auto splitter = TextSplitter::compile(pattern);
  REQUIRE_MESSAGE(splitter.ok(), splitter.status().message());
  TextBudget budget(text.size());

  const Status status =
      splitter.value()->split(text, budget, [&](std::string_view piece) { pieces.emplace_back(piece); });

  CHECK_MESSAGE(status.ok(), status.message());
  return pieces;
}

}  // namespace

// Expected pieces: tokenizers 0.23 (Oniguruma) and, for Kimi's, tiktoken.
TEST_CASE("Han is a script: punctuation that several scripts share is none of it") {
  const std::string text = "\u4e2d\u6587\u3001\u6df7\u5408\u3002\u3005\u3006\u3007\u30fb\u30a2\u3220-A\u4e2dB";

  CHECK(split(kKimiPattern, text) == Pieces{"\u4e2d\u6587", "\u3001", "\u6df7\u5408", "\u3002", "\u3005", "\u3006",
                                            "\u3007", "\u30fb\u30a2", "\u3220", "-A", "\u4e2d", "B"});
  CHECK(split(R"(\p{Han}+|[^\p{Han}]+)", text) == Pieces{"\u4e2d\u6587", "\u3001", "\u6df7\u5408", "\u3002", "\u3005",
                                                         "\u3006", "\u3007", "\u30fb\u30a2\u3220-A", "\u4e2d", "B"});
  CHECK(split(R"(\p{^Han}+|\P{^Han})", "\u4e2d\u3001\u3002\u6587") == Pieces{"\u4e2d", "\u3001\u3002", "\u6587"});
  CHECK(split(R"(\p{Hiragana}+)", "\u3042\u30fc\u3044") == Pieces{"\u3042", "\u30fc", "\u3044"});
}

TEST_CASE("blanks, lines and bracket classes are those of Oniguruma") {
  CHECK(split(R"([\S\n]+)", "a\u180eb c\nd") == Pieces{"a\u180eb", " ", "c\nd"});
  CHECK(split(R"(a$|^b|.)", "ba\nba\n") == Pieces{"b", "a", "\n", "b", "a", "\n"});
  CHECK(split(R"(.+)", "a\rb\nc") == Pieces{"a\rb", "\n", "c"});
  CHECK(split(R"([[:alpha:]]+)", "a\u0345b\u21671\u00b2\u24b6") == Pieces{"a\u0345b\u2167", "1\u00b2", "\u24b6"});
  CHECK(split(R"([[:space:][:digit:]]+)", "a \u0085\u0663b") == Pieces{"a", " \u0085\u0663", "b"});
  CHECK(split(R"([\u4e00-\u9fa5]+|[]x]+)", "a\u4e2d\u6587]b") == Pieces{"a", "\u4e2d\u6587", "]", "b"});
}

TEST_CASE("what Oniguruma and PCRE2 read differently is refused by name") {
  for (const auto& [pattern, part] :
       std::vector<std::pair<const char*, const char*>>{{R"([\p{L}&&[^\p{Lu}]]+|.)", "&&"},
                                                        {R"([a[bc]]+)", "["},
                                                        {R"(\h+)", "\\h"},
                                                        {R"(\H+)", "\\H"},
                                                        {R"(\w+|\W+)", "\\w"},
                                                        {R"(\W)", "\\W"},
                                                        {R"([\w'])", "\\w"},
                                                        {R"(\b\p{L}+)", "\\b"},
                                                        {R"(\B)", "\\B"},
                                                        {R"(\v)", "\\v"},
                                                        {R"(\Qa\E)", "\\Q"},
                                                        {R"([[:word:]])", "[:word:]"},
                                                        {R"(\p{N}{1,3}+)", "{1,3}+"},
                                                        {R"(a{,2})", "{,2}"},
                                                        {R"((?i)a|b)", "(?"},
                                                        {R"((?s).)", "(?"},
                                                        {R"((*LIMIT_MATCH=1)a)", "(*"},
                                                        {R"(\p{sc:Han})", "\\p{sc:Han}"},
                                                        {R"(\pL)", "\\p"},
                                                        {R"(\u12)", "\\u"},
                                                        {R"(a\)", "\\"}}) {
    CAPTURE(std::string(pattern));
    const Status status = TextSplitter::compile(pattern).status();

    CHECK(status.code() == CAIRN_STATUS_UNSUPPORTED);
    CHECK_MESSAGE(status.message().find(part) != std::string::npos, status.message());
  }
}

TEST_CASE("patterns of public models match runs of any length") {
  CHECK(split(kPossessive, "Don't 12345 a  b\n\n c ") ==
        Pieces{"Don", "'t", " ", "12345", " a", " ", " b", "\n\n", " c", " "});
  CHECK(split(kO200k, "HelloWorld ABCdef/12345\n") == Pieces{"Hello", "World", " ABCdef", "/", "123", "45", "\n"});
  for (const char* pattern : {kPossessive, kO200k, kKimiPattern}) {
    for (const char* character : {"a", "A", " ", "=", "\u4e2d", "\u0301", "\n"}) {
      CAPTURE(std::string(character));
      std::string text;
      for (int i = 0; i < 300000; ++i) text += character;
      const double start = cpu_seconds();

      Pieces pieces = split(pattern, text + "x");

      std::string joined;
      for (const std::string& piece : pieces) joined += piece;
      CHECK(joined == text + "x");
      CHECK(cpu_seconds() - start < allowed_seconds(text.size()));
    }
  }
}

}  // namespace cairn::test
