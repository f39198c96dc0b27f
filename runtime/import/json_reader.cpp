#include "runtime/import/json_reader.h"

#include <cmath>

#include "runtime/support/checked_math.h"

namespace cairn {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxTokenBytes = std::size_t{1} << 20;

const Json& empty_object() {
  static const Json instance = Json::object();
  return instance;
}

/// Watches the parser: depth and duplicate keys.
struct Watch {
  std::vector<std::set<std::string>> keys;
  std::string problem;

  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    if (!problem.empty()) return false;  // nothing more is kept
    if (depth > kMaxDepth) problem = "more than 32 levels";
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.empty() &&
        !keys.back().insert(parsed.get_ref<std::string&>()).second) {
      problem = "key '" + parsed.get_ref<std::string&>().substr(0, 100) + "' is there twice";
    }
    return problem.empty();
  }
};

}  // namespace

Result<Json> parse_json(const std::string& text, const std::string& label) {
  Watch watch;
  const Json::parser_callback_t callback = [&watch](int depth, Json::parse_event_t event, Json& parsed) {
    return watch(depth, event, parsed);
  };
  Json json = Json::parse(text, callback, /*allow_exceptions=*/false);
  if (!watch.problem.empty()) return Status::format_error("%s: %s", label.c_str(), watch.problem.c_str());
  if (json.is_discarded()) return Status::format_error("%s: not valid JSON", label.c_str());
  return json;
}

Status check_token_lengths(const char* text, std::size_t size_bytes, const std::string& label) {
  std::size_t begin = 0;  // of what is between two marks
  bool is_string = false;
  for (std::size_t i = 0; i < size_bytes; ++i) {
    const char c = text[i];
    if (i - begin > kMaxTokenBytes)
      return Status::format_error("%s: byte %zu: a token of more than 1 MiB", label.c_str(), begin);
    if (is_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      is_string = !is_string;
      begin = i;
    } else if (!is_string && (c == ',' || c == ':' || c == '{' || c == '}' || c == '[' || c == ']')) {
      begin = i;
    }
  }
  if (size_bytes - begin > kMaxTokenBytes)
    return Status::format_error("%s: byte %zu: a token of more than 1 MiB", label.c_str(), begin);
  return {};
}

ConfigReader::ConfigReader(const Json& object, std::string where)
    : object_(object.is_object() ? object : empty_object()), where_(std::move(where)) {
  if (!object.is_object()) fail(Status::format_error("%s: not a JSON object", where_.c_str()));
}

bool ConfigReader::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

bool ConfigReader::is_null(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && found->is_null();
}

const Json* ConfigReader::find(const char* key, bool is_required) {
  read_.insert(key);
  const auto found = object_.find(key);
  if (found != object_.end() && !(found->is_null() && !is_required)) return &*found;
  if (is_required) fail(Status::format_error("%s: field '%s' is missing", where_.c_str(), key));
  return nullptr;
}

void ConfigReader::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void ConfigReader::fail_type(const char* key, const char* wanted) {
  fail(Status::format_error(
      "%s: field '%s' is %s (expected %s)", where_.c_str(), key,
      object_.find(key)->dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60).c_str(), wanted));
}

std::int32_t ConfigReader::narrowed(const char* key, std::int64_t value) {
  const auto narrow = checked_cast<std::int32_t>(value);
  if (!narrow) fail_type(key, "an integer of 32 bits");
  return narrow.value_or(0);
}

std::int64_t ConfigReader::integer(const char* key) {
  const Json* found = find(key, true);
  if (!found) return 0;
  if (found->is_number_unsigned() && found->get<std::uint64_t>() <= INT64_MAX) return found->get<std::int64_t>();
  if (found->is_number_integer() && !found->is_number_unsigned()) return found->get<std::int64_t>();
  fail_type(key, "an integer");
  return 0;
}

std::int64_t ConfigReader::integer(const char* key, std::int64_t fallback) {
  return find(key, false) ? integer(key) : fallback;
}

float ConfigReader::number(const char* key) {
  const Json* found = find(key, true);
  if (!found) return 0;
  if (found->is_number() && std::abs(found->get<double>()) <= 3.4e38) return static_cast<float>(found->get<double>());
  fail_type(key, "a number");
  return 0;
}

float ConfigReader::number(const char* key, float fallback) { return find(key, false) ? number(key) : fallback; }

bool ConfigReader::boolean(const char* key) {
  const Json* found = find(key, true);
  if (found && found->is_boolean()) return found->get<bool>();
  if (found) fail_type(key, "true or false");
  return false;
}

bool ConfigReader::boolean(const char* key, bool fallback) { return find(key, false) ? boolean(key) : fallback; }

std::string ConfigReader::text(const char* key) {
  const Json* found = find(key, true);
  if (found && found->is_string()) return found->get<std::string>();
  if (found) fail_type(key, "a string");
  return {};
}

std::string ConfigReader::text(const char* key, const std::string& fallback) {
  return find(key, false) ? text(key) : fallback;
}

const Json* ConfigReader::value(const char* key) { return find(key, false); }

const Json& ConfigReader::object(const char* key) {
  const Json* found = find(key, true);
  if (found && found->is_object()) return *found;
  if (found) fail_type(key, "an object");
  return empty_object();
}

std::vector<std::string> ConfigReader::texts(const char* key) {
  const Json* found = find(key, true);
  std::vector<std::string> result;
  if (!found) return result;
  if (!found->is_array()) fail_type(key, "an array of strings");
  for (const Json& item : *found) {
    if (!item.is_string()) {
      fail_type(key, "an array of strings");
      return {};
    }
    result.push_back(item.get<std::string>());
  }
  return result;
}

std::vector<std::int32_t> ConfigReader::integers_or_one(const char* key) {
  const Json* found = find(key, false);
  std::vector<std::int32_t> result;
  if (!found) return result;
  const auto add = [&](const Json& item) {
    const bool is_small = !item.is_number_unsigned() || item.get<std::uint64_t>() <= INT32_MAX;  // not one that wraps
    const bool fits = item.is_number_integer() && is_small && item.get<std::int64_t>() >= INT32_MIN &&
                      item.get<std::int64_t>() <= INT32_MAX;
    if (fits) {
      result.push_back(static_cast<std::int32_t>(item.get<std::int64_t>()));
    } else {
      fail_type(key, "an integer or an array of them");
    }
  };
  if (found->is_array()) {
    for (const Json& item : *found) add(item);
  } else {
    add(*found);
  }
  return result;
}

void ConfigReader::expect(const char* key, const Json& only) {
  const Json* found = find(key, false);
  if (!found || *found == only) return;
  const auto shown = [](const Json& value) {
    return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60);
  };
  fail(Status::unsupported("%s: field '%s' is %s (supported: %s)", where_.c_str(), key, shown(*found).c_str(),
                           shown(only).c_str()));
}

void ConfigReader::ignore(std::initializer_list<const char*> keys) {
  for (const char* key : keys) read_.insert(key);
}

Status ConfigReader::finish() {
  if (!status_.ok()) return status_;
  for (const auto& [key, value] : object_.items()) {
    if (!read_.contains(key)) return Status::unsupported("%s: unknown field '%.100s'", where_.c_str(), key.c_str());
  }
  return {};
}

}  // namespace cairn
