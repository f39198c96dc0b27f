// Medians of one call. Where the backend records, a recording of many calls over the cases in turn is replayed, so that
// neither the host nor what a cache kept of the last call is timed; else calls are queued one at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/bench/op_bench.h"

namespace cairn::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Timing {
  double seconds = 0;
  bool is_recorded = false;
};

inline bool has_recordings(const Backend& backend) { return backend.begin_recording != nullptr; }

inline double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

/// Median seconds of `run` and a wait for it; `prepare` runs before, untimed.
inline double median_seconds(Rig& rig, const std::function<void()>& prepare, const std::function<void()>& run,
                             int repetitions) {
  const auto once = [&] {
    if (prepare) prepare();
    rig.synchronize();
    const Clock::time_point start = Clock::now();
    run();
    rig.synchronize();
    return seconds_since(start);
  };
  once();
  const double first = once();
  const int count = repetitions ? repetitions : static_cast<int>(std::clamp(0.5 / std::max(first, 1e-7), 5.0, 201.0));
  std::vector<double> times;
  for (int i = 0; i < count; ++i) times.push_back(once());
  return median(times);
}

/// A recording and how to replay it.
class Replay {
 public:
  Replay(Rig& rig, const std::function<void()>& queue_calls) : rig_(rig) {
    BackendError error;
    rig.synchronize();
    if (!rig.backend().begin_recording(rig.queue(), &error)) stop(error);
    queue_calls();
    recording_ = rig.backend().end_recording(rig.queue(), &error);
    if (!recording_) stop(error);
  }
  ~Replay() { rig_.backend().release_recording(recording_); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  void operator()() const {
    BackendError error;
    if (!rig_.backend().replay_recording(rig_.queue(), recording_, &error)) stop(error);
  }

 private:
  [[noreturn]] static void stop(const BackendError& error) {
    std::fprintf(stderr, "op_bench: recording: %s\n", error.text);
    std::exit(1);
  }
  Rig& rig_;
  BackendRecording* recording_ = nullptr;
};

/// Cases that must be set back before each run: one replay at a time, less what a replay of one small copy takes.
inline double reset_replay_seconds(Rig& rig, const std::vector<Case>& cases, const Replay& replay, int repetitions) {
  auto* small = static_cast<std::byte*>(rig.allocate(512));
  const Replay nothing(rig, [&] { rig.copy(small + 256, small, 256, CopyKind::kDeviceToDevice); });
  const double overhead = median_seconds(
      rig, nullptr, [&] { nothing(); }, 101);
  const auto reset = [&] {
    for (const Case& c : cases) c.reset();
  };
  const double all = median_seconds(
      rig, reset, [&] { replay(); }, repetitions);
  return std::max(0.0, all - overhead) / static_cast<double>(cases.size());
}

/// Time of one call, the median over replays of about 5 ms each.
inline double replay_seconds(Rig& rig, const std::vector<Case>& cases, int repetitions) {
  constexpr double kReplaySeconds = 5e-3, kAllSeconds = 0.4;
  constexpr int kCallsRecorded = 96;
  const bool has_reset = static_cast<bool>(cases[0].reset);
  for (const Case& c : cases) c.run();
  const Clock::time_point start = Clock::now();
  for (const Case& c : cases) c.run();
  rig.synchronize();
  const double rough = seconds_since(start);
  const int fitting = static_cast<int>(std::clamp(kReplaySeconds / rough, 1.0, 1.0 * kCallsRecorded));
  const int rounds = has_reset ? 1 : std::clamp(kCallsRecorded / static_cast<int>(cases.size()), 1, fitting);
  const Replay replay(rig, [&] {
    for (int i = 0; i < rounds; ++i) {
      for (const Case& c : cases) c.run();
    }
  });
  if (has_reset) return reset_replay_seconds(rig, cases, replay, repetitions ? repetitions : 21);
  const double one = median_seconds(
      rig, nullptr, [&] { replay(); }, 5);
  const int replays = static_cast<int>(std::clamp(kReplaySeconds / one, 1.0, 200.0));
  const int count = repetitions ? repetitions : static_cast<int>(std::clamp(kAllSeconds / (one * replays), 5.0, 51.0));
  const auto many = [&] {
    for (int i = 0; i < replays; ++i) replay();
  };
  return median_seconds(rig, nullptr, many, count) / replays / rounds / static_cast<double>(cases.size());
}

inline Timing time_cases(Rig& rig, const std::vector<Case>& cases, int repetitions) {
  if (has_recordings(rig.backend())) return {replay_seconds(rig, cases, repetitions), true};
  const auto run = [&] {
    for (const Case& c : cases) c.run();
  };
  std::function<void()> reset;
  if (cases[0].reset) {
    reset = [&] {
      for (const Case& c : cases) c.reset();
    };
  }
  return {median_seconds(rig, reset, run, repetitions) / static_cast<double>(cases.size()), false};
}

}  // namespace cairn::bench
