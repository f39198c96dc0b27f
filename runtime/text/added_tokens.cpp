#include "runtime/text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

namespace cairn {
namespace {

bool is_space(utf8proc_int32_t c) {
  if (c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xa0) return true;
  const utf8proc_category_t category = utf8proc_category(c);
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

/// Unicode's \w: letters, marks, digits, number letters, connectors, joiners, and the symbols that are alphabetic
/// (Latin letters in circles and squares). A fraction or a superscript is none.
bool is_word(utf8proc_int32_t c) {
  if (c == 0x200c || c == 0x200d) return true;
  if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
      (c >= 0x1f170 && c <= 0x1f189))
    return true;
  const utf8proc_category_t category = utf8proc_category(c);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) || category == UTF8PROC_CATEGORY_PC;
}

/// The character that begins at `at`, and its length; 0 at the end.
utf8proc_int32_t character_at(std::string_view text, std::size_t at, std::size_t& length) {
  utf8proc_int32_t c = 0;
  length = 0;
  if (at >= text.size()) return 0;
  const utf8proc_ssize_t n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at),
                                              static_cast<utf8proc_ssize_t>(text.size() - at), &c);
  length = n > 0 ? static_cast<std::size_t>(n) : 1;
  return n > 0 ? c : 0xfffd;
}

/// Where the character that ends at `end` begins.
std::size_t previous(std::string_view text, std::size_t end) {
  std::size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

bool is_whole_word(std::string_view text, std::size_t begin, std::size_t end) {
  std::size_t length = 0;
  if (begin > 0 && is_word(character_at(text, previous(text, begin), length))) return false;
  return end >= text.size() || !is_word(character_at(text, end, length));
}

}  // namespace

void AddedTokens::add(const AddedToken& token) {
  if (token.content.empty() || !by_content_.emplace(token.content, tokens_.size()).second) return;
  tokens_.push_back(token);
  std::vector<std::size_t>& lengths = lengths_[static_cast<unsigned char>(token.content[0])];
  const auto place = std::lower_bound(lengths.begin(), lengths.end(), token.content.size(), std::greater<>());
  if (place == lengths.end() || *place != token.content.size()) lengths.insert(place, token.content.size());
}

AddedTokens::Match AddedTokens::longest_at(std::string_view text, std::size_t at) const {
  for (const std::size_t length : lengths_[static_cast<unsigned char>(text[at])]) {
    if (length > text.size() - at) continue;
    const auto found = by_content_.find(std::string(text.substr(at, length)));
    if (found != by_content_.end()) return {at, at + length, &tokens_[found->second]};
  }
  return {};
}

Status AddedTokens::split(std::string_view text, TextBudget& budget,
                          const std::function<Status(std::string_view)>& plain,
                          const std::function<void(std::int32_t)>& token) const {
  std::size_t done = 0, at = 0;
  while (!tokens_.empty() && at < text.size()) {
    if (lengths_[static_cast<unsigned char>(text[at])].empty()) {
      ++at;
      continue;
    }
    CAIRN_TRY(budget.check());
    Match match = longest_at(text, at);
    if (!match.token) {
      ++at;
      continue;
    }
    if (match.token->single_word && !is_whole_word(text, match.begin, match.end)) {
      at = match.end;  // plain, and no shorter token is looked for in it
      continue;
    }
    at = match.end;  // a token that begins in the blanks which this one strips is found too
    std::size_t length = 0;
    while (match.token->lstrip && match.begin > done &&
           is_space(character_at(text, previous(text, match.begin), length))) {
      match.begin = previous(text, match.begin);
    }
    while (match.token->rstrip && match.end < text.size() && is_space(character_at(text, match.end, length))) {
      match.end += length;
    }
    if (match.begin > done) CAIRN_TRY(plain(text.substr(done, match.begin - done)));
    token(match.token->id);
    done = match.end;
  }
  if (done < text.size()) CAIRN_TRY(plain(text.substr(done)));
  return {};
}

}  // namespace cairn
