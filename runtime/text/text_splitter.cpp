#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/text/text_splitter.h"

#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "runtime/text/split_pattern.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxPatternBytes = 16384;
constexpr std::size_t kFirstWindowBytes = 512;  // most pieces are far shorter
constexpr std::uint32_t kHeapLimitKib = 262'144;

// Steps of one match. A step may look at every byte of the window, so a pattern that nobody knows gets steps * bytes.
constexpr std::uint32_t kKnownSteps = 50'000'000;
constexpr std::uint64_t kUnknownStepBytes = 4'000'000'000;

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

}  // namespace

struct TextSplitter::Compiled {
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

TextSplitter::~TextSplitter() = default;

Result<std::unique_ptr<TextSplitter>> TextSplitter::compile(const std::string& source, bool drops_gaps) {
  if (source.size() > kMaxPatternBytes) {
    return Status::limit_exceeded("tokenizer: a pattern of %zu bytes (limit %zu)", source.size(), kMaxPatternBytes);
  }
  CAIRN_TRY_ASSIGN(const SplitPattern pattern, translate_pattern(source));
  const std::unique_ptr<pcre2_compile_context, FreeContext> context(pcre2_compile_context_create(nullptr));
  if (!context) return Status::out_of_memory("tokenizer: no memory for a pattern");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // whatever PCRE2 was built with
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_unique<Compiled>();
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.text.data()), pattern.text.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_ANCHORED,
                                 &error, &offset, context.get());
  if (!compiled->code) {
    PCRE2_UCHAR text[256] = {0};
    pcre2_get_error_message(error, text, sizeof text);
    return Status::format_error("tokenizer: pattern, byte %zu: %s", static_cast<std::size_t>(offset),
                                reinterpret_cast<const char*>(text));
  }
  // without JIT it is slower, not different
  (void)pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  std::unique_ptr<TextSplitter> splitter(new TextSplitter());
  splitter->compiled_ = std::move(compiled);
  splitter->drops_gaps_ = drops_gaps;
  splitter->is_known_ = pattern.is_known;
  return splitter;
}

/// Matches at one place of a text. It shows the pattern a window of the text, and a larger one when the match reaches
/// the window's end: what is tried at one place is bounded by the match, not by the text.
class TextSplitter::Matcher {
 public:
  Matcher(const TextSplitter& splitter, std::string_view text)
      : code_(splitter.compiled_->code),
        is_known_(splitter.is_known_),
        text_(text),
        match_(pcre2_match_data_create_from_pattern(code_, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {}

  bool is_ready() const { return match_ && context_; }

  struct Piece {
    std::size_t begin = 0, end = 0;  ///< equal: nothing matches here
  };
  Result<Piece> at(std::size_t place, TextBudget& budget) {
    for (std::size_t window = kFirstWindowBytes;; window *= 8) {
      const std::size_t end = window_end(place, window);
      const bool is_whole = end == text_.size();
      CAIRN_TRY(budget.check(window > kFirstWindowBytes));
      const int count = run(place, end, is_whole ? 0 : PCRE2_PARTIAL_HARD);
      if (count == PCRE2_ERROR_PARTIAL && !is_whole) continue;
      if (count == PCRE2_ERROR_NOMATCH) return Piece{place, place};
      if (count < 0) {
        return Status::limit_exceeded("tokenizer: matching at byte %zu gave up (PCRE2 error %d)", place, count);
      }
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match_.get());
      if (range[1] <= range[0] || range[0] < place) return Piece{place, place};  // nothing, or \K went back
      return Piece{range[0], range[1]};
    }
  }

 private:
  /// At least `window` bytes on, between two characters.
  std::size_t window_end(std::size_t place, std::size_t window) const {
    if (window >= text_.size() - place) return text_.size();
    std::size_t end = place + window;
    while (end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xc0) == 0x80) ++end;
    return end;
  }

  int run(std::size_t place, std::size_t end, std::uint32_t options) {
    if (const std::size_t bytes = std::max(end - place, kFirstWindowBytes); bytes != limited_for_) {
      const auto steps = is_known_
                             ? kKnownSteps
                             : static_cast<std::uint32_t>(std::max<std::uint64_t>(kUnknownStepBytes / bytes, 1000));
      pcre2_set_match_limit(context_.get(), steps);
      pcre2_set_heap_limit(context_.get(), kHeapLimitKib);
      limited_for_ = bytes;
    }
    const auto match = [&](std::uint32_t more) {
      return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), end, place,
                         PCRE2_NO_UTF_CHECK | options | more, match_.get(), context_.get());
    };
    const int count = match(0);
    return count == PCRE2_ERROR_JIT_STACKLIMIT ? match(PCRE2_NO_JIT) : count;
  }

  pcre2_code* code_;
  bool is_known_;
  std::string_view text_;
  std::unique_ptr<pcre2_match_data, FreeMatch> match_;
  std::unique_ptr<pcre2_match_context, FreeContext> context_;
  std::size_t limited_for_ = 0;
};

Status TextSplitter::split(std::string_view text, TextBudget& budget,
                           const std::function<void(std::string_view)>& take) const {
  Matcher matcher(*this, text);
  if (!matcher.is_ready()) return Status::out_of_memory("tokenizer: no memory for matching");
  std::size_t at = 0, gap = 0;
  while (at < text.size()) {
    CAIRN_TRY_ASSIGN(const Matcher::Piece piece, matcher.at(at, budget));
    if (piece.begin == piece.end) {  // one character on, which stays in the gap
      do ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
      continue;
    }
    if (piece.begin > gap && !drops_gaps_) take(text.substr(gap, piece.begin - gap));
    take(text.substr(piece.begin, piece.end - piece.begin));
    at = gap = piece.end;
  }
  if (gap < text.size() && !drops_gaps_) take(text.substr(gap));
  return {};
}

bool is_white_space(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return first == ' ' || (first >= 9 && first <= 13) || (first >= 0x1c && first <= 0x1f);
  utf8proc_int32_t c = 0;
  if (utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(text.size()), &c) <= 0)
    return false;
  const utf8proc_category_t category = utf8proc_category(c);
  return c == 0x85 || category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
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
    const utf8proc_ssize_t length =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at), left, &character);
    if (length <= 0) return at;
    at += static_cast<std::size_t>(length);
  }
  return std::string_view::npos;
}

namespace {

/// Canonical order: the marks after each starter by their combining class. utf8proc's own sorting takes n * n swaps for
/// a run of n marks.
void sort_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto class_of = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (std::size_t begin = 0; begin < characters.size();) {
    if (class_of(characters[begin]) == 0) {
      ++begin;
      continue;
    }
    std::size_t end = begin + 1;
    while (end < characters.size() && class_of(characters[end]) != 0) ++end;
    std::stable_sort(characters.begin() + static_cast<std::ptrdiff_t>(begin),
                     characters.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](utf8proc_int32_t a, utf8proc_int32_t b) { return class_of(a) < class_of(b); });
    begin = end;
  }
}

}  // namespace

Result<std::string> to_nfc(std::string_view text) {
  bool is_ascii = true;
  for (const char c : text) is_ascii = is_ascii && static_cast<unsigned char>(c) < 0x80;
  if (is_ascii) return std::string(text);
  if (const std::size_t bad = first_invalid_utf8(text); bad != std::string_view::npos) {
    return Status::invalid_argument("text is not UTF-8 at byte %zu", bad);
  }
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    utf8proc_int32_t character = 0, parts[8];
    at += static_cast<std::size_t>(utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at),
                                                    static_cast<utf8proc_ssize_t>(text.size() - at), &character));
    int boundary_class = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(character, parts, std::size(parts), kOptions, &boundary_class);
    if (count < 0 || count > static_cast<utf8proc_ssize_t>(std::size(parts))) {
      return Status::invalid_argument("text could not be normalised: %s", utf8proc_errmsg(count));
    }
    characters.insert(characters.end(), parts, parts + count);
  }
  sort_marks(characters);
  utf8proc_ssize_t length =
      utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()), kOptions);
  if (length < 0) return Status::invalid_argument("text could not be normalised: %s", utf8proc_errmsg(length));
  std::string result;
  result.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t count = utf8proc_encode_char(characters[static_cast<std::size_t>(i)], bytes);
    result.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count));
  }
  return result;
}

}  // namespace cairn
