#include "runtime/api/guard.h"

#include <pthread.h>

#include <cstdio>
#include <exception>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace cairn::api {
namespace {

constexpr std::size_t kMessageBytes = 1024;
thread_local char message_[kMessageBytes];
thread_local int host_callback_depth_ = 0;
std::atomic<std::uint64_t> calls_in_flight_{0};
std::atomic<bool> is_in_forked_process_{false};
thread_local DefaultFloatingPoint* computing_ = nullptr;  // the innermost; null outside of calls and inside callbacks

#if defined(__SSE2__)
FloatingPoint floating_point() { return _mm_getcsr(); }
void set_floating_point(const FloatingPoint& settings) { _mm_setcsr(settings); }
void set_default_floating_point() { _mm_setcsr(0x1f80); }  // all exceptions masked, to nearest, denormals as they are
#else
FloatingPoint floating_point() {
  FloatingPoint settings;
  std::fegetenv(&settings);
  return settings;
}
void set_floating_point(const FloatingPoint& settings) { std::fesetenv(&settings); }
void set_default_floating_point() { std::fesetenv(FE_DFL_ENV); }
#endif

/// In a process that was just forked, on its only thread.
void note_fork() {
  if (calls_in_flight_.load() != 0 || HandleTable::instance().live_count() != 0) is_in_forked_process_.store(true);
}
[[maybe_unused]] const int is_watching_ = pthread_atfork(nullptr, nullptr, note_fork);

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

DefaultFloatingPoint::DefaultFloatingPoint() : host_(floating_point()), outer_(computing_) {
  computing_ = this;
  set_default_floating_point();
}

DefaultFloatingPoint::~DefaultFloatingPoint() {
  computing_ = outer_;
  set_floating_point(host_);
}

HostFloatingPoint::HostFloatingPoint() : interrupted_(std::exchange(computing_, nullptr)) {
  if (interrupted_) set_floating_point(interrupted_->host_);
}

HostFloatingPoint::~HostFloatingPoint() {
  if (!interrupted_) return;
  interrupted_->host_ = floating_point();
  set_default_floating_point();
  computing_ = interrupted_;
}

std::function<bool(std::uint64_t, std::uint64_t)> progress_of(cairn_progress_fn callback, void* user) {
  if (!callback) return nullptr;
  return [callback, user](std::uint64_t done, std::uint64_t total) {
    const HostTurn turn;
    return callback(user, done, total) == 0;
  };
}

CallScope::CallScope() noexcept { ++calls_in_flight_; }
CallScope::~CallScope() { --calls_in_flight_; }
bool CallScope::is_in_forked_process() noexcept { return is_in_forked_process_.load(std::memory_order_relaxed); }

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
