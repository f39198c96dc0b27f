// Renders a model's chat template: a subset of Jinja, listed in README.md. Nothing in it can reach outside the text.
#pragma once

#include <string>
#include <vector>

namespace cairn_cli {

struct ChatMessage {
  std::string role, content;
};

class ChatTemplate {
 public:
  /// "": no template. A Failure names what is outside the subset, as soon as it is met.
  explicit ChatTemplate(std::string source) : source_(std::move(source)) {}

  bool is_empty() const { return source_.empty(); }
  std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const;

  /// What to read next so that `messages`, the last of them the user's, are told and an answer is asked for. A state that
  /// has said the answer before has read its words, but not what stands behind them.
  std::string next_text(const std::vector<ChatMessage>& messages) const;

 private:
  std::string source_;
};

}  // namespace cairn_cli
