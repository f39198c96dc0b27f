// The file system as Cairn sees it: one table of functions, POSIX by default.
#pragma once

#include <cerrno>
#include <string>

#include "cairn/log.h"
#include "runtime/support/status.h"

namespace cairn {

/// INVALID_ARGUMENT: a null function.
Status check_io(const cairn_io& io);

/// Replaces the table for files opened from now on; null restores the default. INVALID_ARGUMENT: a null function.
Status set_io(const cairn_io* io);

/// The table of today. A file keeps the one that it was opened with.
cairn_io current_io();

/// True when its files are file descriptors of this process, which can be mapped and listed.
bool is_default_io(const cairn_io& io);

/// A call of the table, made again while a signal interrupts it: a hundred times at most, since a host's function may
/// say so for ever.
template <class Call>
auto retry_interrupted(const Call& call, const int* error_number) {
  auto result = call();
  for (int attempt = 1; attempt < 100 && result < 0 && *error_number == EINTR; ++attempt) result = call();
  return result;
}

/// "path: what: reason", with the status that fits the error number: NOT_FOUND, NO_SPACE, OUT_OF_MEMORY or IO.
Status io_error(const std::string& path, const char* what, int error_number);

}  // namespace cairn
