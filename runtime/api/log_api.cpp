// cairn/log.h: the host's hooks. Log and allocator callbacks run inside a HostCallbackScope, so that a Cairn call from
// there is refused instead of deadlocking or recursing; all of them compute as the host does.
#include "cairn/log.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "runtime/api/guard.h"
#include "runtime/support/allocator.h"
#include "runtime/support/io_hooks.h"
#include "runtime/support/log.h"

namespace cairn::api {
namespace {

struct LogHook {
  cairn_log_fn callback;
  void* user;
};

void forward_log(void* user, cairn_log_level level, const char* component, const char* message) {
  const auto* hook = static_cast<const LogHook*>(user);
  const HostCallbackScope scope;
  hook->callback(hook->user, level, component, message);
}

void* forward_allocate(void* user, std::size_t size_bytes, std::size_t alignment) {
  const auto* hook = static_cast<const cairn_allocator*>(user);
  const HostCallbackScope scope;
  return hook->allocate(hook->user, size_bytes, alignment);
}

void forward_release(void* user, void* memory, std::size_t size_bytes) {
  const auto* hook = static_cast<const cairn_allocator*>(user);
  const HostCallbackScope scope;
  hook->release(hook->user, memory, size_bytes);
}

template <auto kFunction>
struct ForwardIo;
template <class Value, class... Arguments, Value (*cairn_io::*kFunction)(void*, Arguments...)>
struct ForwardIo<kFunction> {
  static Value call(void* user, Arguments... arguments) {
    const auto* hook = static_cast<const cairn_io*>(user);
    const HostFloatingPoint host;
    return (hook->*kFunction)(hook->user, arguments...);
  }
};

/// Each hook is kept once, and for good: a call in flight may still be about to use an old one.
template <class T>
T* keep(const T& hook) {
  static_assert(std::has_unique_object_representations_v<T>);
  static std::mutex& mutex = *new std::mutex;
  static std::vector<std::unique_ptr<T>>& kept = *new std::vector<std::unique_ptr<T>>;
  const std::lock_guard lock(mutex);
  for (const std::unique_ptr<T>& known : kept) {
    if (std::memcmp(known.get(), &hook, sizeof hook) == 0) return known.get();
  }
  kept.push_back(std::make_unique<T>(hook));
  return kept.back().get();
}

Status set_log(cairn_log_fn callback, void* user, cairn_log_level max_level) {
  if (!callback) {
    set_log_callback(nullptr, nullptr, 0);
    return {};
  }
  if (max_level < CAIRN_LOG_ERROR || max_level > CAIRN_LOG_DEBUG) {
    return Status::invalid_argument("max_level %d is outside [%d, %d]", max_level, CAIRN_LOG_ERROR, CAIRN_LOG_DEBUG);
  }
  set_log_callback(forward_log, keep(LogHook{callback, user}), max_level);
  return {};
}

Status set_allocator(const cairn_allocator* allocator) {
  if (const std::uint64_t live = HandleTable::instance().live_count(); live != 0) {
    return Status::error(CAIRN_STATUS_WRONG_STATE, "the allocator cannot change while %llu handles are alive",
                         static_cast<unsigned long long>(live));
  }
  if (!allocator) return cairn::set_allocator(nullptr);
  cairn_allocator table{};
  CAIRN_TRY(read_options(allocator, "cairn_allocator", table));
  if (!table.allocate || !table.release) return Status::invalid_argument("cairn_allocator: allocate and release must not be NULL");
  const cairn_allocator forwarding = {sizeof(cairn_allocator), keep(table), forward_allocate, forward_release};
  return cairn::set_allocator(&forwarding);
}

Status set_io(const cairn_io* io) {
  if (!io) return cairn::set_io(nullptr);
  cairn_io table{};
  CAIRN_TRY(read_options(io, "cairn_io", table));
  CAIRN_TRY(check_io(table));
  const cairn_io forwarding = {sizeof(cairn_io),
                               keep(table),
                               ForwardIo<&cairn_io::open>::call,
                               ForwardIo<&cairn_io::openat>::call,
                               ForwardIo<&cairn_io::pread>::call,
                               ForwardIo<&cairn_io::pwrite>::call,
                               ForwardIo<&cairn_io::fsync>::call,
                               ForwardIo<&cairn_io::close>::call,
                               ForwardIo<&cairn_io::renameat>::call,
                               ForwardIo<&cairn_io::unlinkat>::call,
                               ForwardIo<&cairn_io::file_size>::call};
  return cairn::set_io(&forwarding);
}

}  // namespace
}  // namespace cairn::api

using namespace cairn::api;

extern "C" {

cairn_status cairn_set_log_callback(cairn_log_fn callback, void* user, cairn_log_level max_level) {
  return guarded([&] { return set_log(callback, user, max_level); });
}

cairn_status cairn_set_allocator(const cairn_allocator* allocator) {
  return guarded([&] { return set_allocator(allocator); });
}

cairn_status cairn_set_io(const cairn_io* io) {
  return guarded([&] { return set_io(io); });
}

}  // extern "C"
