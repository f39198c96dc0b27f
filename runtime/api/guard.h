// The one door of the C API: every function body runs inside guarded(), which clears and sets the thread's message,
// catches everything, gives the thread back what it was left with, and refuses calls from inside a log or allocator
// callback and in a process that was forked while the library was in use.
#pragma once

#include <atomic>
#include <cfenv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "cairn/status.h"
#include "runtime/api/handle_table.h"
#include "runtime/device/host_thread.h"
#include "runtime/support/status.h"

namespace cairn::api {

/// The thread's message: a fixed buffer, so that reporting an error never fails.
const char* last_error_message();
void clear_last_error();
cairn_status set_last_error(cairn_status status, const char* message);

/// How a thread computes: rounding, denormals, traps.
#if defined(__SSE2__)
using FloatingPoint = unsigned;
#else
using FloatingPoint = std::fenv_t;
#endif

/// Default rounding, denormals and no traps while it lives: bits do not depend on how the host computes, nor which thread
/// took which piece, and a NaN in a model does not stop the host. Its own settings come back.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint();
  ~DefaultFloatingPoint();
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  friend class HostFloatingPoint;
  FloatingPoint host_;
  DefaultFloatingPoint* outer_;
};

/// The host's settings again, around each of its callbacks: what that changes is the host's and no call's.
class HostFloatingPoint {
 public:
  HostFloatingPoint();
  ~HostFloatingPoint();
  HostFloatingPoint(const HostFloatingPoint&) = delete;
  HostFloatingPoint& operator=(const HostFloatingPoint&) = delete;

 private:
  DefaultFloatingPoint* interrupted_;
};

/// Marks this thread as inside one of the host's log or allocator callbacks: calls are CAIRN_STATUS_WRONG_STATE.
class HostCallbackScope {
 public:
  HostCallbackScope();
  ~HostCallbackScope();
  HostCallbackScope(const HostCallbackScope&) = delete;
  HostCallbackScope& operator=(const HostCallbackScope&) = delete;
  static bool is_active();

 private:
  HostFloatingPoint host_;
};

/// At its end the thread has the host's own device again. Inside a log or allocator callback another call of the thread
/// goes on, which counts on its device: a release from there leaves it.
class HostDeviceScope {
 public:
  HostDeviceScope() = default;
  ~HostDeviceScope() {
    if (!HostCallbackScope::is_active()) restore_host_thread();
  }
  HostDeviceScope(const HostDeviceScope&) = delete;
  HostDeviceScope& operator=(const HostDeviceScope&) = delete;
};

/// A call of this process, counted, so that a fork in its midst is known.
class CallScope {
 public:
  CallScope() noexcept;
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  /// Whether this process was forked while a handle lived or a call ran: threads, device contexts and holders of locks
  /// are its parent's, so that no call may go further.
  static bool is_in_forked_process() noexcept;
};

/// Around a progress, read or write callback: the host's own device and floating point.
class HostTurn {
 public:
  HostTurn() { restore_host_thread(); }

 private:
  HostFloatingPoint floating_point_;
};

/// The host's progress callback, in its turn; null: none.
std::function<bool(std::uint64_t done, std::uint64_t total)> progress_of(cairn_progress_fn callback, void* user);

/// The status of the exception being handled.
cairn_status report_exception() noexcept;

/// Runs `body`, a callable that returns a Status. Only a Status that is not OK leaves a message, also when a callback's
/// own calls failed meanwhile.
template <class Body>
cairn_status guarded(Body&& body) noexcept {
  if (HostCallbackScope::is_active()) {
    return set_last_error(CAIRN_STATUS_WRONG_STATE, "called from inside a log or allocator callback of this thread");
  }
  const CallScope call;
  if (CallScope::is_in_forked_process()) {
    return set_last_error(CAIRN_STATUS_WRONG_STATE,
                          "this process was forked from one that was using the library: start it with exec, or fork "
                          "before the first handle is made");
  }
  const DefaultFloatingPoint computing;
  const HostDeviceScope device;
  try {
    clear_last_error();
    const Status status = std::forward<Body>(body)();
    if (!status.ok()) return set_last_error(status.code(), status.message().c_str());
    clear_last_error();
    return CAIRN_STATUS_OK;
  } catch (...) {
    return report_exception();
  }
}

/// As guarded(), for functions that return nothing; they leave the thread's message alone.
template <class Body>
void guarded_release(Body&& body) noexcept {
  const CallScope call;
  if (CallScope::is_in_forked_process()) return;
  const HostDeviceScope device;
  try {
    std::forward<Body>(body)();
  } catch (...) {  // NOLINT: nothing to tell it to
  }
}

inline std::uint64_t handle_value(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }
template <class Handle>
Handle* handle_pointer(std::uint64_t value) {
  static_assert(sizeof(void*) == 8, "handles are 64 bits");
  return reinterpret_cast<Handle*>(static_cast<std::uintptr_t>(value));  // NOLINT: not an address
}

/// The object behind a handle, or INVALID_HANDLE. T::kHandleKind says what it must be.
template <class T>
Result<Pin<T>> pin(const void* handle) {
  Pin<T> pinned(HandleTable::instance(), handle_value(handle), T::kHandleKind);
  if (pinned) return pinned;
  const char* kind = handle_kind_name(T::kHandleKind);
  if (!handle) return Status::error(CAIRN_STATUS_INVALID_HANDLE, "%s: the handle is NULL", kind);
  return Status::error(CAIRN_STATUS_INVALID_HANDLE, "%s: handle 0x%llx was released, is of another kind, or never was one",
                       kind, static_cast<unsigned long long>(handle_value(handle)));
}

/// Gives an object out. `out` is not NULL.
template <class Handle, class T>
Status give_out(std::shared_ptr<T> object, Handle** out) {
  CAIRN_TRY_ASSIGN(const std::uint64_t value, HandleTable::instance().insert(T::kHandleKind, std::move(object)));
  *out = handle_pointer<Handle>(value);
  return {};
}

/// Ends a handle; NULL and stale ones are left alone.
template <class T>
void give_back(const void* handle) noexcept {
  guarded_release([&] { HandleTable::instance().release(handle_value(handle), T::kHandleKind); });
}

/// One user at a time: holds an object's busy flag, or BUSY.
class BusyLock {
 public:
  BusyLock() = default;
  BusyLock(BusyLock&& other) noexcept : flag_(std::exchange(other.flag_, nullptr)) {}
  BusyLock& operator=(BusyLock&& other) noexcept {
    std::swap(flag_, other.flag_);
    return *this;
  }
  ~BusyLock() {
    if (flag_) flag_->store(false, std::memory_order_release);
  }
  static Result<BusyLock> acquire(std::atomic<bool>& flag, const char* what) {
    if (flag.exchange(true, std::memory_order_acquire)) {
      return Status::error(CAIRN_STATUS_BUSY, "%s is in use by another call", what);
    }
    return BusyLock(&flag);
  }

 private:
  explicit BusyLock(std::atomic<bool>* flag) : flag_(flag) {}
  std::atomic<bool>* flag_ = nullptr;
};

#define CAIRN_REQUIRE(pointer) \
  if (!(pointer)) return ::cairn::Status::invalid_argument("%s is NULL", #pointer)

/// Largest struct of a future header that is looked at.
inline constexpr std::size_t kMaxStructBytes = 4096;
Status check_struct_size(std::size_t caller_bytes, std::size_t own_bytes, const char* name);
Status check_zero_tail(const void* data, std::size_t caller_bytes, std::size_t own_bytes, const char* name);

/// Reads an option struct of any header version: `to` holds the defaults, a shorter struct sets its own fields, a longer
/// one must end in zeros. NULL: the defaults.
template <class T>
Status read_options(const T* from, const char* name, T& to) {
  if (!from) return {};
  std::size_t caller_bytes = 0;
  std::memcpy(&caller_bytes, from, sizeof caller_bytes);
  CAIRN_TRY(check_struct_size(caller_bytes, sizeof(T), name));
  CAIRN_TRY(check_zero_tail(from, caller_bytes, sizeof(T), name));
  std::memcpy(static_cast<void*>(&to), from, caller_bytes < sizeof(T) ? caller_bytes : sizeof(T));
  to.struct_size = sizeof(T);
  return {};
}

/// Writes an info struct of any header version: only the first struct_size bytes of `to` are touched.
template <class T>
Status write_info(const T& from, const char* name, T* to) {
  std::size_t caller_bytes = 0;
  std::memcpy(&caller_bytes, to, sizeof caller_bytes);
  CAIRN_TRY(check_struct_size(caller_bytes, sizeof(T), name));
  std::memcpy(static_cast<void*>(to), &from, caller_bytes < sizeof(T) ? caller_bytes : sizeof(T));
  std::memcpy(static_cast<void*>(to), &caller_bytes, sizeof caller_bytes);
  return {};
}

/// The struct_size of a struct that will be written, checked before the work.
template <class T>
Status check_info(const T* to, const char* name) {
  if (!to) return Status::invalid_argument("%s is NULL", name);
  std::size_t caller_bytes = 0;
  std::memcpy(&caller_bytes, to, sizeof caller_bytes);
  return check_struct_size(caller_bytes, sizeof(T), name);
}

/// A field of an option struct that says no or yes.
Status check_flag(std::int32_t value, const char* name);
/// A field that may get a meaning later: 0 until then.
Status check_reserved(std::int32_t value, const char* struct_name);

/// Copies text into a fixed field, cut to fit at a character border, zero-filled.
void copy_text(const char* text, std::size_t room_bytes, char* field);

/// The "ask for the size, then fill" protocol: `count` holds the room and receives the need.
template <class T>
Status check_room(const T* data, std::size_t need, const char* what, std::size_t* count) {
  const std::size_t room = *count;
  if (room != 0 && !data) return Status::invalid_argument("%s is NULL, but its room is %zu", what, room);
  *count = need;
  if (room >= need) return {};
  return Status::error(CAIRN_STATUS_BUFFER_TOO_SMALL, "%s has room for %zu, %zu are needed", what, room, need);
}

}  // namespace cairn::api
