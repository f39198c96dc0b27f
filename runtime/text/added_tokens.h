// Added tokens: names such as <|im_end|> that are found in the text before anything else is done to it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/text/text_budget.h"

namespace cairn {

/// Longer ones are refused: at every place of a text each length that occurs is looked up.
inline constexpr std::size_t kMaxAddedTokenBytes = 512;

struct AddedToken {
  std::string content;
  std::int32_t id = -1;
  bool single_word = false, lstrip = false, rstrip = false, special = false;
};

/// Finds tokens leftmost-longest.
class AddedTokens {
 public:
  void add(const AddedToken& token);
  bool is_empty() const { return tokens_.empty(); }

  /// Calls plain(text) and token(id) for the parts of `text`, in order, until one fails.
  Status split(std::string_view text, TextBudget& budget, const std::function<Status(std::string_view)>& plain,
               const std::function<void(std::int32_t)>& token) const;

 private:
  struct Match {
    std::size_t begin = 0, end = 0;
    const AddedToken* token = nullptr;
  };
  Match longest_at(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, std::size_t> by_content_;
  std::vector<std::size_t> lengths_[256];  ///< by first byte: lengths that occur, longest first
};

}  // namespace cairn
