#include "runtime/import/json_reader.h"

#include <cmath>

#include "runtime/support/checked_math.h"

namespace cairn {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxValues = std::size_t{1} << 22, kMaxStructures = std::size_t{1} << 20;  // each costs memory
constexpr std::size_t kMaxTokenBytes = std::size_t{1} << 20;

const Json& empty_object() {
  static const Json instance = Json::object();
  return instance;
}

/// Depth and duplicate keys, before anything is kept. The library's parser with a callback could look for them while it
/// builds, but it searches what an object lies in whenever one ends: n * n steps for n of them.
class Watch final : public nlohmann::json_sax<Json> {
 public:
  const std::string& problem() const { return problem_; }
  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(std::int64_t) override { return count(); }
  bool number_unsigned(std::uint64_t) override { return count(); }
  bool number_float(double, const std::string&) override { return count(); }
  bool string(std::string&) override { return count(); }
  bool binary(Json::binary_t&) override { return count(); }
  bool start_array(std::size_t) override { return enter(); }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return enter();
  }
  bool end_array() override { return --depth_, true; }
  bool end_object() override {
    keys_.pop_back();
    return --depth_, true;
  }
  bool key(std::string& key) override {
    if (keys_.back().insert(key).second) return true;
    return refuse("key '" + key.substr(0, 100) + "' is there twice");
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool refuse(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  bool count() { return ++values_ <= kMaxValues || refuse("more than 4,194,304 values"); }
  bool enter() {
    if (++depth_ > kMaxDepth) return refuse("more than 32 levels");
    if (++structures_ > kMaxStructures) return refuse("more than 1,048,576 objects and arrays");
    return count();
  }
  std::vector<std::set<std::string>> keys_;
  std::string problem_;
  int depth_ = 0;
  std::size_t values_ = 0, structures_ = 0;
};

}  // namespace

Result<Json> parse_json(const std::string& text, const std::string& label) {
  Watch watch;
  const bool is_sound = Json::sax_parse(text, &watch);
  if (!watch.problem().empty()) return Status::format_error("%s: %s", label.c_str(), watch.problem().c_str());
  Json json = is_sound ? Json::parse(text, nullptr, /*allow_exceptions=*/false) : Json(Json::value_t::discarded);
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
    if (!read_.contains(key) && !value.is_null())
      return Status::unsupported("%s: unknown field '%.100s'", where_.c_str(), key.c_str());
  }
  return {};
}

}  // namespace cairn
