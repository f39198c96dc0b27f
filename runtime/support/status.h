// Errors inside the library: returned, never thrown; with the thing, the value and the limit in one line.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "cairn/status.h"

namespace cairn {

class [[nodiscard]] Status {
 public:
  Status() = default;  ///< OK
  Status(cairn_status code, std::string message) : code_(code), message_(std::move(message)) {}

  [[gnu::format(printf, 2, 3)]] static Status error(cairn_status code, const char* format, ...);
  [[gnu::format(printf, 1, 2)]] static Status invalid_argument(const char* format, ...);
  [[gnu::format(printf, 1, 2)]] static Status unsupported(const char* format, ...);
  [[gnu::format(printf, 1, 2)]] static Status format_error(const char* format, ...);
  [[gnu::format(printf, 1, 2)]] static Status limit_exceeded(const char* format, ...);
  [[gnu::format(printf, 1, 2)]] static Status out_of_memory(const char* format, ...);

  bool ok() const { return code_ == CAIRN_STATUS_OK; }
  cairn_status code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same error with "context: " before its message.
  Status with_context(const std::string& context) const;

 private:
  cairn_status code_ = CAIRN_STATUS_OK;
  std::string message_;
};

/// A value, or why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}           // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}   // NOLINT: must not be OK

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace cairn

#define CAIRN_CONCAT_2(a, b) a##b
#define CAIRN_CONCAT(a, b) CAIRN_CONCAT_2(a, b)

/// Returns the error of `expression` (a Status) from the calling function.
#define CAIRN_TRY(expression)                                       \
  do {                                                              \
    if (::cairn::Status cairn_try_ = (expression); !cairn_try_.ok()) \
      return cairn_try_;                                            \
  } while (false)

/// CAIRN_TRY_ASSIGN(auto x, make_x()): declares x from a Result, or returns its error.
#define CAIRN_TRY_ASSIGN(declaration, expression) \
  CAIRN_TRY_ASSIGN_2(CAIRN_CONCAT(cairn_result_, __LINE__), declaration, expression)
#define CAIRN_TRY_ASSIGN_2(result, declaration, expression) \
  auto result = (expression);                               \
  if (!result.ok()) return result.status();                 \
  declaration = std::move(result).value()
