// Values and expressions of chat templates: the subset of Jinja that samples/cli/README.md lists. Outside it: a Failure
// that names what was met.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace cairn_cli::jinja {

using Value = nlohmann::ordered_json;  ///< null is both none and undefined

/// Variables, innermost scope last. Namespaces are objects that `set ns.x` changes wherever they were made.
class Scopes {
 public:
  Scopes() : scopes_(1) {}
  void push() { scopes_.emplace_back(); }
  void pop() { scopes_.pop_back(); }
  void set(const std::string& name, Value value) { scopes_.back()[name] = std::move(value); }
  Value* find(const std::string& name);

 private:
  std::vector<std::map<std::string, Value>> scopes_;
};

/// Calls a macro of the template.
using MacroCall = std::function<bool(const std::string& name, const std::vector<Value>& arguments,
                                     const std::map<std::string, Value>& named, Value& result)>;

/// What one rendering may take: a template comes with a model that nobody vouches for. A Failure ends it.
class Budget {
 public:
  /// A node of the template, or a turn of a loop.
  void step();
  /// A value that is copied or made; its size is bounded too.
  void spend(const Value& value);
  /// A value that a variable keeps.
  void keep(const Value& value);

 private:
  std::size_t steps_ = 0, spent_bytes_ = 0, kept_bytes_ = 0;
};

/// Bytes of a text, and about as many for each element. Failure: more than a value may have.
std::size_t bounded_size(const Value& value);
void check_text_size(std::size_t size_bytes);

struct Environment {
  Scopes scopes;
  MacroCall call_macro;
  Budget budget;
};

bool is_true(const Value& value);
/// As a template prints it.
std::string printed(const Value& value);
/// The value of a whole expression.
Value evaluate(std::string_view expression, Environment& environment);

}  // namespace cairn_cli::jinja
