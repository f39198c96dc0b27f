// What the pattern of a tokenizer means: tokenizers are written for Oniguruma, and Cairn matches with PCRE2.
#pragma once

#include <string>

#include "runtime/support/status.h"

namespace cairn {

/// What a ByteLevel pre-tokenizer splits by on its own.
inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Kimi's (public-models.md 6.3).
inline constexpr const char* kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct SplitPattern {
  std::string text;       ///< for PCRE2 with PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE
  bool is_known = false;  ///< of public models: a match of n bytes takes some multiple of n steps, whatever the text
};

/// The same matches as `source` has in Oniguruma (its Ruby syntax): \s is White_Space, a script is Script and not
/// Script_Extensions, ^ and $ stand at lines. UNSUPPORTED: what the two read differently, by name.
Result<SplitPattern> translate_pattern(const std::string& source);

}  // namespace cairn
