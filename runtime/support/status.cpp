#include "runtime/support/status.h"

#include <cstdio>

namespace cairn {
namespace {

std::string format_text(const char* format, va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  for (char* c = text; *c; ++c) {
    if (static_cast<unsigned char>(*c) < 0x20 || *c == 0x7f) *c = '?';  // names from files stay on one line
  }
  return text;
}

}  // namespace

#define CAIRN_STATUS_FROM_ARGUMENTS(code)                 \
  va_list arguments;                                      \
  va_start(arguments, format);                            \
  Status status(code, format_text(format, arguments));    \
  va_end(arguments);                                      \
  return status

Status Status::error(cairn_status code, const char* format, ...) { CAIRN_STATUS_FROM_ARGUMENTS(code); }
Status Status::invalid_argument(const char* format, ...) { CAIRN_STATUS_FROM_ARGUMENTS(CAIRN_STATUS_INVALID_ARGUMENT); }
Status Status::unsupported(const char* format, ...) { CAIRN_STATUS_FROM_ARGUMENTS(CAIRN_STATUS_UNSUPPORTED); }
Status Status::format_error(const char* format, ...) { CAIRN_STATUS_FROM_ARGUMENTS(CAIRN_STATUS_FORMAT); }
Status Status::limit_exceeded(const char* format, ...) { CAIRN_STATUS_FROM_ARGUMENTS(CAIRN_STATUS_LIMIT_EXCEEDED); }
Status Status::out_of_memory(const char* format, ...) { CAIRN_STATUS_FROM_ARGUMENTS(CAIRN_STATUS_OUT_OF_MEMORY); }

Status Status::with_context(const std::string& context) const {
  return ok() ? *this : Status(code_, context + ": " + message_);
}

}  // namespace cairn
