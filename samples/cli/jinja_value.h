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

struct Environment {
  Scopes scopes;
  MacroCall call_macro;
};

bool is_true(const Value& value);
/// As a template prints it.
std::string printed(const Value& value);
/// The value of a whole expression.
Value evaluate(std::string_view expression, Environment& environment);

}  // namespace cairn_cli::jinja
