#include "jinja_functions.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "cli_session.h"

namespace cairn_cli::jinja {
namespace {

constexpr std::size_t kMaxSteps = 1000000;
constexpr std::size_t kMaxValueBytes = std::size_t{64} << 20, kMaxKeptBytes = std::size_t{512} << 20;
constexpr std::size_t kMaxSpentBytes = std::size_t{8} << 30;  // a few seconds of copying
constexpr std::size_t kElementBytes = 128;  // what copying one costs, as much text
constexpr int kMaxValueDepth = 64;

void add_size(const Value& value, int depth, std::size_t& size_bytes) {
  if (depth > kMaxValueDepth) refuse("more than 64 levels of a value");
  size_bytes += kElementBytes + (value.is_string() ? value.get_ref<const std::string&>().size() : 0);
  check_text_size(size_bytes);
  if (value.is_array())
    for (const Value& item : value) add_size(item, depth + 1, size_bytes);
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      size_bytes += sizeof(std::string) + key.size();
      add_size(item, depth + 1, size_bytes);
    }
  }
}

std::string stripped(const std::string& text, const std::string& characters, bool left, bool right) {
  const char* set = characters.empty() ? " \t\n\r\f\v" : characters.c_str();
  const std::size_t begin = left ? text.find_first_not_of(set) : 0;
  if (begin == std::string::npos) return {};
  const std::size_t end = right ? text.find_last_not_of(set) : text.size() - 1;
  return text.substr(begin, end - begin + 1);
}

/// As std::string::find, in linear time whatever the texts.
std::size_t find_in(const std::string& text, const std::string& part, std::size_t at = 0) {
  const void* found = memmem(text.data() + at, text.size() - at, part.data(), part.size());
  return found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) : std::string::npos;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  std::string result;
  std::size_t at = 0;
  for (std::size_t next; !from.empty() && (next = find_in(text, from, at)) != std::string::npos; at = next + from.size()) {
    result.append(text, at, next - at).append(to);
    check_text_size(result.size());
  }
  return result.append(text, at);
}

Value split(const std::string& text, const std::string& separator) {
  Value parts = Value::array();
  if (separator.empty()) {
    for (std::size_t at = 0; (at = text.find_first_not_of(" \t\n\r", at)) != std::string::npos;) {
      const std::size_t end = std::min(text.find_first_of(" \t\n\r", at), text.size());
      parts.push_back(text.substr(at, end - at));
      at = end;
    }
    return parts;
  }
  std::size_t at = 0;
  for (std::size_t end; (end = find_in(text, separator, at)) != std::string::npos; at = end + separator.size())
    parts.push_back(text.substr(at, end - at));
  parts.push_back(text.substr(at));
  return parts;
}

/// JSON as Python's json.dumps writes it: a blank behind each comma and colon.
std::string to_json(const Value& value) {
  if (!value.is_structured()) return value.dump(-1, ' ', false, Value::error_handler_t::replace);
  std::string text;
  for (const auto& [key, item] : value.items()) {
    text += text.empty() ? "" : ", ";
    text += value.is_object() ? Value(key).dump(-1, ' ', false, Value::error_handler_t::replace) + ": " + to_json(item)
                              : to_json(item);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

}  // namespace

void check_text_size(std::size_t size_bytes) {
  if (size_bytes > kMaxValueBytes) throw Failure("chat template: a value of more than 64 MiB");
}

std::size_t bounded_size(const Value& value) {
  std::size_t size_bytes = 0;
  add_size(value, 0, size_bytes);
  return size_bytes;
}

void Budget::step() {
  if (++steps_ > kMaxSteps) throw Failure("chat template: it does not end");
}

void Budget::spend(const Value& value) {
  spent_bytes_ += bounded_size(value);
  if (spent_bytes_ > kMaxSpentBytes) throw Failure("chat template: it does not end");
}

void Budget::keep(const Value& value) {
  kept_bytes_ += bounded_size(value);
  if (kept_bytes_ > kMaxKeptBytes) throw Failure("chat template: its variables take more than 512 MiB");
}

void refuse(const std::string& what) { throw Failure("chat template: " + what + " is not supported"); }

bool is_true(const Value& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  if (value.is_number()) return value != 0;
  return !value.empty();
}

std::string printed(const Value& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return {};
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return to_json(value);
}

bool contains(const Value& container, const Value& item) {
  if (container.is_string() && item.is_string())
    return find_in(container.get_ref<const std::string&>(), item.get_ref<const std::string&>()) != std::string::npos;
  if (container.is_object() && item.is_string()) return container.contains(item.get<std::string>());
  return container.is_array() && std::find(container.begin(), container.end(), item) != container.end();
}

bool passes_test(const Value& value, const std::string& name, bool was_defined) {
  if (name == "defined") return !value.is_null() || was_defined;
  if (name == "undefined") return value.is_null() && !was_defined;
  if (name == "none") return value.is_null();
  if (name == "string") return value.is_string();
  if (name == "mapping") return value.is_object();
  if (name == "iterable" || name == "sequence") return value.is_string() || value.is_structured();
  if (name == "number") return value.is_number();
  if (name == "boolean") return value.is_boolean();
  if (name == "true") return value.is_boolean() && value.get<bool>();
  if (name == "false") return value.is_boolean() && !value.get<bool>();
  refuse("test '" + name + "'");
}

Value filtered(const Value& value, const std::string& filter, const Arguments& arguments) {
  if (filter == "trim") return stripped(printed(value), "", true, true);
  if (filter == "length" || filter == "count")
    return value.is_string() ? value.get<std::string>().size() : value.size();
  if (filter == "tojson") return to_json(value);
  if (filter == "string") return printed(value);
  if (filter == "safe" || filter == "list") return value;
  if (filter == "int") return value.is_string() ? Value(std::atoll(value.get<std::string>().c_str())) : value;
  if (filter == "default" || filter == "d")
    return value.is_null() || (is_true(arguments.at(1)) && !is_true(value)) ? arguments.at(0) : value;
  if (filter == "first") return value.empty() ? Value() : value.front();
  if (filter == "last") return value.empty() ? Value() : value.back();
  if (filter == "join") {
    std::string joined;
    for (std::size_t i = 0; i < value.size(); ++i) {
      joined += (i > 0 ? printed(arguments.at(0)) : "") + printed(value[i]);
      check_text_size(joined.size());
    }
    return joined;
  }
  if (filter == "upper" || filter == "lower" || filter == "items") return method(value, filter, arguments);
  refuse("filter '" + filter + "'");
}

Value sliced(const Value& value, const Value& first, const Value& last, std::int64_t step) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  const auto size = static_cast<std::int64_t>(value.is_string() ? text.size() : value.size());
  const auto bound = [&](const Value& given, std::int64_t otherwise) {
    if (given.is_null()) return otherwise;
    if (!given.is_number_integer()) refuse("arithmetic on this value");
    const auto index = given.get<std::int64_t>();
    return std::clamp<std::int64_t>(index < 0 ? index + size : index, 0, size);
  };
  if (step == -1 && value.is_array() && first.is_null() && last.is_null()) {
    Value reversed = Value::array();
    for (auto item = value.rbegin(); item != value.rend(); ++item) reversed.push_back(*item);
    return reversed;
  }
  if (step != 1) refuse("this slice");
  const std::int64_t begin = bound(first, 0), end = std::max(begin, bound(last, size));
  if (value.is_string()) return text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  Value part = Value::array();
  for (std::int64_t i = begin; i < end; ++i) part.push_back(value[static_cast<std::size_t>(i)]);
  return part;
}

Value method(const Value& value, const std::string& called, const Arguments& arguments) {
  if (value.is_object() && called == "get")
    return value.contains(printed(arguments.at(0))) ? value.at(printed(arguments.at(0))) : arguments.at(1);
  if (value.is_object() && (called == "items" || called == "keys" || called == "values")) {
    Value list = Value::array();
    for (const auto& [key, item] : value.items())
      list.push_back(called == "keys" ? Value(key) : called == "values" ? item : Value::array({key, item}));
    return list;
  }
  if (!value.is_string()) refuse("method '" + called + "' of this value");
  const std::string text = value.get<std::string>();
  const std::string first = arguments.at(0).is_string() ? arguments.at(0).get<std::string>() : "";
  if (called == "strip") return stripped(text, first, true, true);
  if (called == "lstrip") return stripped(text, first, true, false);
  if (called == "rstrip") return stripped(text, first, false, true);
  if (called == "startswith") return text.starts_with(first);
  if (called == "endswith") return text.ends_with(first);
  if (called == "split") return split(text, first);
  if (called == "replace") return replaced(text, first, printed(arguments.at(1)));
  if (called == "upper" || called == "lower") {
    std::string changed = text;
    for (char& c : changed)
      c = static_cast<char>(called == "upper" ? std::toupper(static_cast<unsigned char>(c))
                                              : std::tolower(static_cast<unsigned char>(c)));
    return changed;
  }
  refuse("method '" + called + "'");
}

}  // namespace cairn_cli::jinja
