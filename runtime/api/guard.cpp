#include "runtime/api/guard.h"

#include <cstdio>
#include <exception>

namespace cairn::api {
namespace {

constexpr std::size_t kMessageBytes = 1024;
thread_local char message_[kMessageBytes];
thread_local int host_callback_depth_ = 0;

}  // namespace

const char* last_error_message() { return message_; }
void clear_last_error() { message_[0] = '\0'; }

cairn_status set_last_error(cairn_status status, const char* message) {
  copy_text(message, kMessageBytes, message_);
  for (char* c = message_; *c; ++c) {
    if (*c == '\n' || *c == '\r') *c = ' ';
  }
  return status;
}

HostCallbackScope::HostCallbackScope() { ++host_callback_depth_; }
HostCallbackScope::~HostCallbackScope() { --host_callback_depth_; }
bool HostCallbackScope::is_active() { return host_callback_depth_ > 0; }

cairn_status report_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return set_last_error(CAIRN_STATUS_OUT_OF_MEMORY, "no host memory");
  } catch (const std::exception& exception) {
    return set_last_error(CAIRN_STATUS_INTERNAL, exception.what());
  } catch (...) {
    return set_last_error(CAIRN_STATUS_INTERNAL, "an exception of unknown type");
  }
}

Status check_struct_size(std::size_t caller_bytes, std::size_t own_bytes, const char* name) {
  if (caller_bytes >= sizeof(std::size_t) && caller_bytes <= kMaxStructBytes) return {};
  return Status::invalid_argument("%s: struct_size is %zu, expected %zu (use the _INIT macro)", name, caller_bytes, own_bytes);
}

Status check_zero_tail(const void* data, std::size_t caller_bytes, std::size_t own_bytes, const char* name) {
  for (std::size_t i = own_bytes; i < caller_bytes; ++i) {
    if (static_cast<const unsigned char*>(data)[i] == 0) continue;
    return Status::invalid_argument("%s: byte %zu is set, but this library knows %zu bytes of it", name, i, own_bytes);
  }
  return {};
}

Status check_flag(std::int32_t value, const char* name) {
  if (value == 0 || value == 1) return {};
  return Status::invalid_argument("%s %d is neither 0 nor 1", name, value);
}

Status check_reserved(std::int32_t value, const char* struct_name) {
  if (value == 0) return {};
  return Status::invalid_argument("%s: reserved is %d, not 0", struct_name, value);
}

void copy_text(const char* text, std::size_t room_bytes, char* field) {
  std::size_t length = strnlen(text, room_bytes);
  if (length >= room_bytes) {
    length = room_bytes - 1;
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
  }
  std::memmove(field, text, length);
  std::memset(field + length, 0, room_bytes - length);
}

}  // namespace cairn::api
