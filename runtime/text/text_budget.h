// What one call may cost: hostile patterns, vocabularies and texts end with an error, not with a hang.
#pragma once

#include <ctime>

#include "runtime/support/status.h"

namespace cairn {

/// CPU time of the calling thread: 2 seconds and a microsecond for each byte, some ten times what slow texts take.
class TextBudget {
 public:
  explicit TextBudget(std::size_t text_bytes) : text_bytes_(text_bytes), start_(now()) {}

  /// LIMIT_EXCEEDED once it is spent. Looks at the clock at every 256th call, or at each one that is told to be dear.
  Status check(bool is_dear = false) {
    if (!is_dear && ++calls_ % 256 != 0) return {};
    const double spent = now() - start_, limit = 2 + 1e-6 * static_cast<double>(text_bytes_);
    if (spent <= limit) return {};
    return Status::limit_exceeded("tokenizer: %zu bytes of text took more than %.1f s: gave up", text_bytes_, limit);
  }

 private:
  static double now() {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  std::size_t text_bytes_;
  double start_;
  unsigned calls_ = 0;
};

}  // namespace cairn
