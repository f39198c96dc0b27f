// JSON from files that nobody vouches for: bounded depth, no duplicate keys, every field accounted for.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "runtime/support/status.h"

namespace cairn {

/// Strict: duplicate keys, more than 32 levels, 2^20 objects and arrays or 2^22 values, trailing text and invalid UTF-8
/// are FORMAT errors. `label` names the file.
Result<nlohmann::json> parse_json(const std::string& text, const std::string& label);

/// FORMAT: a string, number or blank of more than 1 MiB, which a parser would copy. For texts of many megabytes.
Status check_token_lengths(const char* text, std::size_t size_bytes, const std::string& label);

/// Reads the fields of one object. The first error sticks; values after it are defaults. finish() refuses fields that
/// nobody asked for, by name; null is no value.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string where);

  bool has(const char* key) const;        ///< present and not null; does not count as reading it
  bool is_null(const char* key) const;    ///< present, and null
  std::int64_t integer(const char* key);  ///< required
  std::int64_t integer(const char* key, std::int64_t fallback);
  std::int32_t int32(const char* key) { return narrowed(key, integer(key)); }
  std::int32_t int32(const char* key, std::int32_t fallback) { return narrowed(key, integer(key, fallback)); }
  float number(const char* key);
  float number(const char* key, float fallback);
  bool boolean(const char* key);
  bool boolean(const char* key, bool fallback);
  std::string text(const char* key);
  std::string text(const char* key, const std::string& fallback);
  /// The value itself, or null when absent; it is the caller's to check.
  const nlohmann::json* value(const char* key);
  /// A required object, read in full by its own reader: pass its finish() to check().
  const nlohmann::json& object(const char* key);
  std::vector<std::string> texts(const char* key);             ///< a required array of strings
  std::vector<std::int32_t> integers_or_one(const char* key);  ///< absent or null: none; a number: one; an array

  /// The field must have this value when it is there: other values are UNSUPPORTED.
  void expect(const char* key, const nlohmann::json& only);
  /// Fields without a meaning for the arithmetic.
  void ignore(std::initializer_list<const char*> keys);
  void fail(Status status);
  void check(const Status& status) {
    if (!status.ok()) fail(status);
  }
  const std::string& where() const { return where_; }

  Status finish();

 private:
  const nlohmann::json* find(const char* key, bool is_required);
  std::int32_t narrowed(const char* key, std::int64_t value);
  void fail_type(const char* key, const char* wanted);

  const nlohmann::json& object_;
  std::string where_;
  std::set<std::string> read_;
  Status status_;
};

}  // namespace cairn
