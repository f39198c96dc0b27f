// Tests, filters and methods of chat templates: functions of values alone. Outside the subset that
// samples/cli/README.md lists: a Failure that names what was met.
#pragma once

#include "jinja_value.h"

namespace cairn_cli::jinja {

[[noreturn]] void refuse(const std::string& what);

struct Arguments {
  std::vector<Value> plain;
  std::map<std::string, Value> named;
  Value at(std::size_t i) const { return i < plain.size() ? plain[i] : Value(); }
};

/// `item in container`.
bool contains(const Value& container, const Value& item);
/// `value is name`; was_defined: the name or member that gave the value was there.
bool passes_test(const Value& value, const std::string& name, bool was_defined);
/// `value | name(arguments)`.
Value filtered(const Value& value, const std::string& name, const Arguments& arguments);
/// `value.name(arguments)`.
Value method(const Value& value, const std::string& name, const Arguments& arguments);
/// `value[first:last:step]`; null bounds are open.
Value sliced(const Value& value, const Value& first, const Value& last, std::int64_t step);

}  // namespace cairn_cli::jinja
