#include "runtime/support/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <mutex>

namespace cairn {
namespace {

struct Sink {
  std::mutex mutex;
  cairn_log_fn callback = nullptr;
  void* user = nullptr;
  std::atomic<cairn_log_level> max_level{0};
};

Sink& sink() {
  static Sink& instance = *new Sink;  // never destroyed: messages may come at process exit
  return instance;
}

}  // namespace

void set_log_callback(cairn_log_fn callback, void* user, cairn_log_level max_level) {
  const std::lock_guard lock(sink().mutex);
  sink().callback = callback;
  sink().user = user;
  sink().max_level.store(callback ? max_level : 0, std::memory_order_release);
}

bool log_enabled(cairn_log_level level) { return level <= sink().max_level.load(std::memory_order_acquire); }

void log_message(cairn_log_level level, const char* component, const char* format, ...) {
  if (!log_enabled(level)) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  cairn_log_fn callback = nullptr;
  void* user = nullptr;
  {
    const std::lock_guard lock(sink().mutex);
    callback = sink().callback;
    user = sink().user;
  }
  if (callback) callback(user, level, component, text);  // outside the lock: it may call Cairn
}

}  // namespace cairn
