#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/text/split_pattern.h"

#include <pcre2.h>

#include <string_view>

namespace cairn {
namespace {

struct KnownPattern {
  const char* source;
  const char* meaning;  ///< null: the source itself
};

constexpr KnownPattern kKnownPatterns[] = {
    {kGpt2Pattern, nullptr},
    // Qwen2 and Qwen3
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     nullptr},
    // Qwen3.5
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+)"
     R"(|\s+(?!\S)|\s+)",
     nullptr},
    // cl100k, dolma2
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     nullptr},
    // cl100k with possessive repeats. Oniguruma takes {1,3}+ for a repeated {1,3}.
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)"},
    // o200k
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     nullptr},
    // The intersections [A&&[^\p{Han}]] as the complement of Han and of the categories that A leaves out.
    {kKimiPattern,
     R"([\p{Han}]+)"
     R"(|[^\r\n\p{L}\p{N}]?[^\p{Han}\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}]*[^\p{Han}\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|[^\r\n\p{L}\p{N}]?[^\p{Han}\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}]+[^\p{Han}\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

/// White_Space, and all that it is not; PCRE2's own \s holds U+180E as well.
constexpr const char* kWhiteSpace =
    R"(\x09-\x0d\x20\x85\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr const char* kNotWhiteSpace =
    R"(\x00-\x08\x0e-\x1f\x21-\x84\x86-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e})"
    R"(\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

/// Bracket classes whose members PCRE2 has as properties.
struct BracketClass {
  std::string_view name;
  const char* members;
};
constexpr BracketClass kBracketClasses[] = {
    {"[:alpha:]", R"(\p{Alphabetic})"}, {"[:alnum:]", R"(\p{Alphabetic}\p{Nd})"}, {"[:digit:]", R"(\p{Nd})"},
    {"[:lower:]", R"(\p{Lowercase})"},  {"[:upper:]", R"(\p{Uppercase})"},        {"[:space:]", kWhiteSpace},
};

/// PCRE2 compiles \p{sc:name}. From 10.40 on \p{name} means Script_Extensions there; before, Script, and sc: is none.
bool is_script(std::string_view name) {
  const std::string pattern = "\\p{sc:" + std::string(name) + "}";
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                                   &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

/// Goes through a pattern once, from the left.
class Translation {
 public:
  explicit Translation(std::string_view source) : source_(source) {}

  Result<std::string> run() {
    while (at_ < source_.size()) CAIRN_TRY(is_class_ ? class_member() : outside());
    return std::move(result_);
  }

 private:
  bool sees(std::string_view text) const { return source_.substr(at_).starts_with(text); }
  void copy(std::size_t count) {
    result_ += source_.substr(at_, count);
    at_ += count;
  }
  void replace(std::size_t count, const std::string& meaning) {
    result_ += meaning;
    at_ += count;
  }
  Status refuse(std::size_t count) const {
    return Status::unsupported("tokenizer: pattern, byte %zu: '%.60s' is not supported", at_,
                               std::string(source_.substr(at_, count)).c_str());
  }

  Status outside() {
    if (source_[at_] == '\\') return escape();
    if (source_[at_] == '[') {
      is_class_ = true;
      copy(1);
      if (sees("^")) copy(1);
      if (sees("]")) copy(1);  // the first member is no end
      return {};
    }
    if (sees("(*")) return refuse(2);
    if (source_[at_] == '{') return interval();
    if (sees("(?")) {
      for (const std::string_view group : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"}) {
        if (!sees(group)) continue;
        copy(group.size());
        return {};
      }
      return refuse(2);
    }
    copy(1);
    return {};
  }

  /// {n}, {n,} and {n,m}; {,n} and what makes them possessive or lazy mean other things in the two languages.
  Status interval() {
    const std::size_t end = source_.find_first_not_of("0123456789,", at_ + 1);
    const bool is_interval = end != std::string_view::npos && source_[end] == '}' && end > at_ + 1;
    if (!is_interval) return refuse(1);
    const std::size_t length = end + 1 - at_;
    const std::string_view more = source_.substr(end + 1, 1);
    if (more == "+" || more == "?" || more == "*") return refuse(length + 1);
    if (source_[at_ + 1] == ',') return refuse(length);
    copy(length);
    return {};
  }

  Status class_member() {
    if (source_[at_] == '\\') return escape();
    if (sees("&&")) return refuse(2);
    if (sees("[:")) {
      for (const BracketClass& known : kBracketClasses) {
        if (!sees(known.name)) continue;
        replace(known.name.size(), known.members);
        return {};
      }
      return refuse(source_.find(']', at_) - at_ + 1);
    }
    if (source_[at_] == '[') return refuse(1);  // a class inside a class
    is_class_ = source_[at_] != ']';
    copy(1);
    return {};
  }

  Status escape() {
    if (at_ + 1 == source_.size()) return refuse(1);
    const char c = source_[at_ + 1];
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (c == 's' || c == 'S') {
      if (is_class_)
        replace(2, c == 's' ? kWhiteSpace : kNotWhiteSpace);
      else
        replace(2, std::string(c == 's' ? "[" : "[^") + kWhiteSpace + "]");
      return {};
    }
    if (c == 'p' || c == 'P') return property();
    if (c == 'u') return four_digits();
    const std::string_view allowed = is_class_ ? "adefnrtxD" : "adefnrtxDAGKRzZ";
    if (is_letter && allowed.find(c) == std::string_view::npos) return refuse(2);
    copy(2);
    return {};
  }

  /// \p{Name}, \p{^Name} and \P{Name}: a script as such, whatever else it is as it stands.
  Status property() {
    const std::size_t end = source_.find('}', at_);
    if (source_.substr(at_ + 2, 1) != "{" || end == std::string_view::npos) return refuse(2);
    std::string_view name = source_.substr(at_ + 3, end - at_ - 3);
    const bool is_negated = name.starts_with('^');
    if (is_negated) name.remove_prefix(1);
    if (name.find_first_of(":=") != std::string_view::npos) return refuse(end + 1 - at_);
    const char* kind = is_script(name) ? "sc:" : "";
    replace(end + 1 - at_,
            std::string(source_.substr(at_, 3)) + (is_negated ? "^" : "") + kind + std::string(name) + "}");
    return {};
  }

  Status four_digits() {
    const std::string_view digits = source_.substr(at_ + 2, 4);
    const bool is_hexadecimal =
        digits.size() == 4 && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
    if (!is_hexadecimal) return refuse(2);
    replace(6, "\\x{" + std::string(digits) + "}");
    return {};
  }

  std::string_view source_;
  std::size_t at_ = 0;
  std::string result_;
  bool is_class_ = false;
};

}  // namespace

Result<SplitPattern> translate_pattern(const std::string& source) {
  SplitPattern pattern;
  std::string_view meaning = source;
  for (const KnownPattern& known : kKnownPatterns) {
    if (source != known.source) continue;
    pattern.is_known = true;
    if (known.meaning) meaning = known.meaning;
  }
  CAIRN_TRY_ASSIGN(pattern.text, Translation(meaning).run());
  return pattern;
}

}  // namespace cairn
