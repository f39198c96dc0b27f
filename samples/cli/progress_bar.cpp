#include "progress_bar.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "cli_session.h"

namespace cairn_cli {

static volatile std::sig_atomic_t interrupt_flag = 0;

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupt_flag = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // and no SA_RESTART: a read that waits ends
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return interrupt_flag != 0; }

int cancel_when_interrupted(void*, uint64_t, uint64_t) { return interrupted() ? 1 : 0; }

ProgressBar::ProgressBar(std::string label, std::string unit)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      start_(std::chrono::steady_clock::now()),
      is_terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (is_drawn_) std::fputs("\r\033[K", stderr);
}

double ProgressBar::elapsed_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

int ProgressBar::callback(void* user, uint64_t done, uint64_t total) {
  static_cast<ProgressBar*>(user)->draw(done, total);
  return cancel_when_interrupted(user, done, total);
}

void ProgressBar::draw(uint64_t done, uint64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!is_terminal_ || (done < total && now - last_drawn_ < std::chrono::milliseconds(50))) return;
  last_drawn_ = now;
  is_drawn_ = true;
  constexpr int kWidth = 32;
  const double share = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
  const int filled = static_cast<int>(share * kWidth);
  std::string bar;
  for (int cell = 0; cell < kWidth; ++cell) bar += cell < filled ? "█" : "░";
  const double rate = static_cast<double>(done) / (elapsed_seconds() + 1e-9);
  std::fprintf(stderr, "\r\033[K%s %s %3.0f %%  %s %s/s", label_.c_str(), bar.c_str(), 100 * share,
               with_commas(static_cast<uint64_t>(rate)).c_str(), unit_.c_str());
  std::fflush(stderr);
}

}  // namespace cairn_cli
