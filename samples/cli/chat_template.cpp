// Statements: if, for, set, macro; text between them with Jinja's trim_blocks and lstrip_blocks, as chat templates
// expect.
#include "chat_template.h"

#include <ctime>

#include "cli_session.h"
#include "jinja_value.h"

namespace cairn_cli {
namespace {

using jinja::Environment;
using jinja::Value;

constexpr std::size_t kMaxOutputBytes = std::size_t{16} << 20;
constexpr int kMaxDepth = 64;

[[noreturn]] void refuse(const std::string& what) { throw Failure("chat template: " + what + " is not supported"); }

enum class Kind { kText, kOutput, kSet, kIf, kFor, kMacro };

struct Node {
  Kind kind = Kind::kText;
  std::string text;    ///< text, expression or condition
  std::string target;  ///< set, for: names; macro: name
  std::vector<Node> body, otherwise;
  std::vector<std::pair<std::string, std::string>> parameters;  ///< macro: name, default expression
};

struct Tag {
  char kind = 0;  ///< '{' output, '%' statement, 0 text
  std::string text;
};

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? std::string() : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

/// Where the tag that begins at `at` ends: quotes may hold its mark.
std::size_t end_of_tag(const std::string& source, std::size_t at, const std::string& mark) {
  char quote = 0;
  for (; at < source.size(); ++at) {
    const char c = source[at];
    if (quote != 0) {
      if (c == '\\')
        ++at;
      else if (c == quote)
        quote = 0;
    } else if (mark != "#}" && (c == '\'' || c == '"')) {
      quote = c;
    } else if (source.compare(at, 2, mark) == 0) {
      return at;
    }
  }
  throw Failure("chat template: a tag without '" + mark + "'");
}

std::vector<Tag> cut(const std::string& source) {
  std::vector<Tag> tags;
  std::string text;
  bool trims_next = false, drops_newline = false;
  const auto flush = [&](bool trims_end, bool is_block) {
    if (trims_next)
      text.erase(0, std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    else if (drops_newline && !text.empty() && text[0] == '\n')
      text.erase(0, 1);
    if (trims_end) {
      text.erase(text.find_last_not_of(" \t\r\n") + 1);
    } else if (is_block) {
      const std::size_t last = text.find_last_not_of(" \t");
      const bool begins_line = last == std::string::npos ? tags.empty() || drops_newline : text[last] == '\n';
      if (begins_line) text.erase(last == std::string::npos ? 0 : last + 1);
    }
    if (!text.empty()) tags.push_back({0, text});
    text.clear();
  };
  for (std::size_t at = 0; at < source.size();) {
    const char next = at + 1 < source.size() ? source[at + 1] : '\0';
    if (source[at] != '{' || (next != '{' && next != '%' && next != '#')) {
      text += source[at++];
      continue;
    }
    const std::string mark = next == '{' ? "}}" : next == '%' ? "%}" : "#}";
    std::size_t begin = at + 2;
    const std::size_t end = end_of_tag(source, begin, mark);
    const bool trims_end = begin < end && source[begin] == '-';
    flush(trims_end, next != '{');
    if (begin < end && (source[begin] == '-' || source[begin] == '+')) ++begin;
    trims_next = end > begin && source[end - 1] == '-';
    drops_newline = next != '{';
    if (next != '#') tags.push_back({next, trimmed(source.substr(begin, end - begin - (trims_next ? 1 : 0)))});
    at = end + 2;
  }
  flush(false, false);
  return tags;
}

bool begins_with_word(const std::string& text, const std::string& word) {
  return text.starts_with(word) &&
         (text.size() == word.size() || text[word.size()] == ' ' || text[word.size()] == '\n');
}

class TreeBuilder {
 public:
  explicit TreeBuilder(std::vector<Tag> tags) : tags_(std::move(tags)) {}

  std::vector<Node> build() {
    std::string end;
    std::vector<Node> nodes = until({}, end);
    return nodes;
  }

 private:
  /// Nodes up to a statement that begins with one of `ends`, which is given back in `end`.
  std::vector<Node> until(const std::vector<std::string>& ends, std::string& end) {
    if (++depth_ > kMaxDepth) refuse("more than 64 levels of blocks");
    std::vector<Node> nodes;
    while (at_ < tags_.size()) {
      const Tag tag = tags_[at_++];
      if (tag.kind == '%') {
        for (const std::string& word : ends) {
          if (!begins_with_word(tag.text, word)) continue;
          end = tag.text;
          --depth_;
          return nodes;
        }
        nodes.push_back(statement(tag.text));
      } else {
        nodes.push_back({tag.kind == '{' ? Kind::kOutput : Kind::kText, tag.text, "", {}, {}, {}});
      }
    }
    if (!ends.empty()) throw Failure("chat template: '" + ends.back() + "' is missing");
    --depth_;
    return nodes;
  }

  Node conditional(const std::string& condition) {
    Node node{Kind::kIf, condition, "", {}, {}, {}};
    std::string end;
    node.body = until({"elif", "else", "endif"}, end);
    if (begins_with_word(end, "elif")) {
      if (++depth_ > kMaxDepth) refuse("more than 64 levels of blocks");
      node.otherwise.push_back(conditional(trimmed(end.substr(4))));
      --depth_;
    } else if (begins_with_word(end, "else"))
      node.otherwise = until({"endif"}, end);
    return node;
  }
  Node loop(const std::string& text) {
    const std::size_t in = text.find(" in ");
    if (in == std::string::npos) refuse("'for " + text.substr(0, 60) + "'");
    Node node{Kind::kFor, trimmed(text.substr(in + 4)), trimmed(text.substr(0, in)), {}, {}, {}};
    std::string end;
    node.body = until({"else", "endfor"}, end);
    if (begins_with_word(end, "else")) node.otherwise = until({"endfor"}, end);
    return node;
  }
  Node macro(const std::string& text) {
    const std::size_t open = text.find('('), close = text.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close < open)
      refuse("'macro " + text.substr(0, 60) + "'");
    Node node{Kind::kMacro, "", trimmed(text.substr(0, open)), {}, {}, {}};
    std::string rest = text.substr(open + 1, close - open - 1);
    while (!trimmed(rest).empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      const std::string one = rest.substr(0, comma);
      const std::size_t equals = one.find('=');
      node.parameters.emplace_back(trimmed(one.substr(0, equals)),
                                   equals == std::string::npos ? "none" : trimmed(one.substr(equals + 1)));
      rest.erase(0, comma + 1);
    }
    std::string end;
    node.body = until({"endmacro"}, end);
    return node;
  }
  Node statement(const std::string& text) {
    if (begins_with_word(text, "if")) return conditional(trimmed(text.substr(2)));
    if (begins_with_word(text, "for")) return loop(trimmed(text.substr(3)));
    if (begins_with_word(text, "macro")) return macro(trimmed(text.substr(5)));
    if (begins_with_word(text, "generation") || begins_with_word(text, "endgeneration"))
      return {};  // marks for training
    const std::size_t equals = text.find('=');
    if (!begins_with_word(text, "set") || equals == std::string::npos) refuse("'" + text.substr(0, 60) + "'");
    return {Kind::kSet, trimmed(text.substr(equals + 1)), trimmed(text.substr(3, equals - 3)), {}, {}, {}};
  }

  std::vector<Tag> tags_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

class Renderer {
 public:
  Renderer() {
    environment_.call_macro = [this](const std::string& name, const std::vector<Value>& arguments,
                                     const std::map<std::string, Value>& named, Value& result) {
      const auto found = macros_.find(name);
      if (found == macros_.end()) return name == "strftime_now" ? now(arguments, result) : false;
      result = call(*found->second, arguments, named);
      return true;
    };
  }
  void set(const std::string& name, Value value) { environment_.scopes.set(name, std::move(value)); }
  std::string run(const std::vector<Node>& nodes) {
    std::string out;
    render(nodes, out);
    return out;
  }

 private:
  static bool now(const std::vector<Value>& arguments, Value& result) {
    const std::time_t seconds = std::time(nullptr);
    std::tm calendar{};
    char text[128] = "";
    if (localtime_r(&seconds, &calendar) && !arguments.empty() && arguments[0].is_string()) {
      std::strftime(text, sizeof text, arguments[0].get<std::string>().c_str(), &calendar);
    }
    result = text;
    return true;
  }

  Value call(const Node& macro, const std::vector<Value>& arguments, const std::map<std::string, Value>& named) {
    if (++depth_ > kMaxDepth) refuse("a macro that calls itself more than 64 deep");
    environment_.scopes.push();
    for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, otherwise] = macro.parameters[i];
      const auto given = named.find(name);
      set(name, i < arguments.size()   ? arguments[i]
                : given != named.end() ? given->second
                                       : jinja::evaluate(otherwise, environment_));
    }
    std::string out;
    render(macro.body, out);
    environment_.scopes.pop();
    --depth_;
    return out;
  }

  void assign(const Node& node) {
    Value value = jinja::evaluate(node.text, environment_);
    environment_.budget.keep(value);
    const std::size_t dot = node.target.find('.');
    if (dot == std::string::npos) return set(node.target, std::move(value));
    Value* space = environment_.scopes.find(node.target.substr(0, dot));
    if (!space || !space->is_object()) refuse("'set " + node.target + "'");
    (*space)[node.target.substr(dot + 1)] = std::move(value);
  }

  void repeat(const Node& node, std::string& out) {
    std::string source = node.text, filter;
    if (const std::size_t at = source.find(" if ");
        at != std::string::npos && source.find(" else ") == std::string::npos) {
      filter = source.substr(at + 4);
      source.erase(at);
    }
    const Value given = jinja::evaluate(source, environment_);
    Value items = Value::array();
    if (given.is_object())
      for (const auto& [key, item] : given.items()) items.push_back(key);
    else if (given.is_array())
      items = given;
    const std::size_t comma = node.target.find(',');
    environment_.budget.spend(items);
    const auto bind = [&](const Value& item) {
      environment_.budget.step();
      for (int copies = 0; copies < 3; ++copies) environment_.budget.spend(item);  // also as its neighbours' neighbour
      if (comma == std::string::npos) return set(node.target, item);
      if (!item.is_array() || item.size() != 2) refuse("'for " + node.target + "' over these values");
      set(trimmed(node.target.substr(0, comma)), item[0]);
      set(trimmed(node.target.substr(comma + 1)), item[1]);
    };
    environment_.scopes.push();
    if (!filter.empty()) {
      Value kept = Value::array();
      for (const Value& item : items) {
        bind(item);
        if (jinja::is_true(jinja::evaluate(filter, environment_))) kept.push_back(item);
      }
      items = std::move(kept);
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      set("loop", {{"index", i + 1},
                   {"index0", i},
                   {"first", i == 0},
                   {"last", i + 1 == items.size()},
                   {"length", items.size()},
                   {"previtem", i > 0 ? items[i - 1] : Value()},
                   {"nextitem", i + 1 < items.size() ? items[i + 1] : Value()}});
      bind(items[i]);
      render(node.body, out);
    }
    environment_.scopes.pop();
    if (items.empty()) render(node.otherwise, out);
  }

  void render(const std::vector<Node>& nodes, std::string& out) {
    for (const Node& node : nodes) {
      environment_.budget.step();
      if (out.size() > kMaxOutputBytes) throw Failure("chat template: it says more than 16 MiB");
      switch (node.kind) {
        case Kind::kText: out += node.text; break;
        case Kind::kOutput: out += jinja::printed(jinja::evaluate(node.text, environment_)); break;
        case Kind::kSet: assign(node); break;
        case Kind::kIf:
          render(jinja::is_true(jinja::evaluate(node.text, environment_)) ? node.body : node.otherwise, out);
          break;
        case Kind::kFor: repeat(node, out); break;
        case Kind::kMacro: macros_[node.target] = &node; break;
      }
    }
  }

  Environment environment_;
  std::map<std::string, const Node*> macros_;
  int depth_ = 0;
};

}  // namespace

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const {
  const std::vector<Node> tree = TreeBuilder(cut(source_)).build();
  Value list = Value::array();
  for (const ChatMessage& message : messages) list.push_back({{"role", message.role}, {"content", message.content}});
  Renderer renderer;
  renderer.set("messages", std::move(list));
  renderer.set("add_generation_prompt", add_generation_prompt);
  try {
    return renderer.run(tree);
  } catch (const nlohmann::json::exception& error) {
    throw Failure(std::string("chat template: ") + error.what());
  }
}

std::string ChatTemplate::next_text(const std::vector<ChatMessage>& messages) const {
  if (messages.size() < 2 || messages[messages.size() - 2].role != "assistant") return render(messages, true);
  // The answer has been read while it was said, maybe with thoughts that the template leaves out: a mark stands for it.
  const std::string kMark = "\x01 answer \x01";
  std::vector<ChatMessage> marked = messages;
  marked[marked.size() - 2].content = kMark;
  const std::string whole = render(marked, true);
  const std::size_t at = whole.find(kMark);
  if (at == std::string::npos) throw Failure("chat template: it changes answers, which is not supported");
  return whole.substr(at + kMark.size());
}

}  // namespace cairn_cli
