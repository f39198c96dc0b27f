#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/text/text_splitter.h"

#include <pcre2.h>
#include <utf8proc.h>

#include <cstdlib>

namespace cairn {
namespace {

constexpr std::uint32_t kMatchLimit = 50'000'000, kHeapLimitKib = 262'144;  // a hostile pattern ends with an error, not a hang

/// The pattern with \s and \S as Unicode's White_Space; PCRE2's own \s holds U+180E as well.
std::string with_white_space(const std::string& pattern) {
  constexpr const char* kWhiteSpace = R"(\x09-\x0d\x20\x85\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  std::string result;
  bool is_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\' && (next == 's' || (next == 'S' && !is_class))) {
      result += is_class ? kWhiteSpace : std::string(next == 's' ? "[" : "[^") + kWhiteSpace + "]";
      ++i;
      continue;
    }
    if (c == '\\') {
      result += c;
      if (next != '\0') result += next;
      ++i;
      continue;
    }
    if (c == '[') is_class = true;
    if (c == ']') is_class = false;
    result += c;
  }
  return result;
}

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

}  // namespace

struct TextSplitter::Compiled {
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

TextSplitter::~TextSplitter() = default;

Result<std::unique_ptr<TextSplitter>> TextSplitter::compile(const std::string& source, bool drops_gaps) {
  const std::string pattern = with_white_space(source);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_unique<Compiled>();
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (!compiled->code) {
    PCRE2_UCHAR text[256] = {0};
    pcre2_get_error_message(error, text, sizeof text);
    return Status::format_error("tokenizer: pattern, byte %zu: %s", static_cast<std::size_t>(offset), reinterpret_cast<const char*>(text));
  }
  (void)pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);  // without JIT it is slower, not different
  std::unique_ptr<TextSplitter> splitter(new TextSplitter());
  splitter->compiled_ = std::move(compiled);
  splitter->drops_gaps_ = drops_gaps;
  return splitter;
}

Status TextSplitter::split(std::string_view text, const std::function<void(std::string_view)>& take) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create_from_pattern(compiled_->code, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeContext> context(pcre2_match_context_create(nullptr));
  if (!match || !context) return Status::out_of_memory("tokenizer: no memory for matching");
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  std::size_t at = 0, gap = 0;
  while (at < text.size()) {
    const auto run = [&](std::uint32_t more) {
      return pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                         PCRE2_NO_UTF_CHECK | more, match.get(), context.get());
    };
    int count = run(0);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = run(PCRE2_NO_JIT);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) return Status::limit_exceeded("tokenizer: matching at byte %zu gave up (PCRE2 error %d)", at, count);
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    if (range[1] <= range[0] || range[0] < at) {  // nothing (or \K went back): one character on, which stays in the gap
      do ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
      continue;
    }
    if (range[0] > gap && !drops_gaps_) take(text.substr(gap, range[0] - gap));
    take(text.substr(range[0], range[1] - range[0]));
    at = gap = range[1];
  }
  if (gap < text.size() && !drops_gaps_) take(text.substr(gap));
  return {};
}

bool is_white_space(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return first == ' ' || (first >= 9 && first <= 13) || (first >= 0x1c && first <= 0x1f);
  utf8proc_int32_t c = 0;
  if (utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &c) <= 0) return false;
  const utf8proc_category_t category = utf8proc_category(c);
  return c == 0x85 || category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

std::size_t first_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    utf8proc_int32_t character = 0;
    const auto left = static_cast<utf8proc_ssize_t>(text.size() - at);
    const utf8proc_ssize_t length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at), left, &character);
    if (length <= 0) return at;
    at += static_cast<std::size_t>(length);
  }
  return std::string_view::npos;
}

Result<std::string> to_nfc(std::string_view text) {
  bool is_ascii = true;
  for (const char c : text) is_ascii = is_ascii && static_cast<unsigned char>(c) < 0x80;
  if (is_ascii) return std::string(text);
  if (const std::size_t bad = first_invalid_utf8(text); bad != std::string_view::npos) {
    return Status::invalid_argument("text is not UTF-8 at byte %zu", bad);
  }
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                                               &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) return Status::invalid_argument("text could not be normalised: %s", utf8proc_errmsg(length));
  std::string result(reinterpret_cast<char*>(composed), static_cast<std::size_t>(length));
  std::free(composed);
  return result;
}

}  // namespace cairn
