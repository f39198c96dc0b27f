// A progress bar on standard error, and Ctrl-C as a clean cancel. Draws only on a terminal.
#pragma once

#include <cairn/status.h>

#include <chrono>
#include <string>

namespace cairn_cli {

/// The next Ctrl-C ends waits for input and cancels at the next progress call; the one after it kills the program.
void catch_interrupts();
bool interrupted();
/// A cairn_progress_fn that shows nothing. Returns 1 after Ctrl-C.
int cancel_when_interrupted(void* user, uint64_t done, uint64_t total);

class ProgressBar {
 public:
  /// @param unit  shown behind the rate: "tokens", "bytes"
  ProgressBar(std::string label, std::string unit);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// A cairn_progress_fn; user is the ProgressBar. Returns 1 after Ctrl-C.
  static int callback(void* user, uint64_t done, uint64_t total);
  double elapsed_seconds() const;

 private:
  void draw(uint64_t done, uint64_t total);

  std::string label_, unit_;
  std::chrono::steady_clock::time_point start_, last_drawn_;
  bool is_terminal_;
  bool is_drawn_ = false;
};

}  // namespace cairn_cli
