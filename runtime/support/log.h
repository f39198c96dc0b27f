// Messages to the host's log callback. Silent until one is set.
#pragma once

#include "cairn/log.h"

namespace cairn {

/// max_level: messages of a higher number are dropped. Null: silent.
void set_log_callback(cairn_log_fn callback, void* user, cairn_log_level max_level);

/// Cheap: ask before building an expensive message.
bool log_enabled(cairn_log_level level);

/// One line; never tokens or text.
[[gnu::format(printf, 3, 4)]] void log_message(cairn_log_level level, const char* component, const char* format, ...);

}  // namespace cairn
