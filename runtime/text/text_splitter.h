// Cutting text into pre-tokens with the regular expression of a tokenizer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/text/text_budget.h"

namespace cairn {

/// A compiled pattern, which means what split_pattern.h says. Immutable, thread-safe.
class TextSplitter {
 public:
  /// FORMAT: the pattern does not compile. UNSUPPORTED: it may mean another thing here than where it was written.
  /// LIMIT_EXCEEDED: it has more than 16 KiB.
  static Result<std::unique_ptr<TextSplitter>> compile(const std::string& pattern, bool drops_gaps = false);
  ~TextSplitter();
  TextSplitter(const TextSplitter&) = delete;
  TextSplitter& operator=(const TextSplitter&) = delete;

  /// Calls `take` with every match and (unless they are dropped) with every gap between matches, in order. `text` is
  /// valid UTF-8. LIMIT_EXCEEDED: the budget is spent, or a single match takes too many steps.
  Status split(std::string_view text, TextBudget& budget, const std::function<void(std::string_view)>& take) const;

 private:
  TextSplitter() = default;
  struct Compiled;
  class Matcher;
  std::unique_ptr<Compiled> compiled_;
  bool drops_gaps_ = false;
  bool is_known_ = false;  ///< matches are known to take few steps
};

/// Canonical composition (NFC); ASCII comes back as it is. INVALID_ARGUMENT: not UTF-8.
Result<std::string> to_nfc(std::string_view text);

/// The text begins with a character that Python's str.isspace() takes for a blank. Not empty; UTF-8.
bool is_white_space(std::string_view text);

/// Byte offset of the first byte that is not UTF-8; npos: all of it is.
std::size_t first_invalid_utf8(std::string_view text);

}  // namespace cairn
