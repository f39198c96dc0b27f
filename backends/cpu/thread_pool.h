// The device's own threads. Workers spin for a moment after each piece of work, then park: the host program keeps its
// cores.
//
// Work is cut into items by the operator, from shapes alone; which thread takes an item is decided as they come.
// Results therefore do not depend on the number of threads, as long as an item's result does not depend on its thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace cairn::cpu {

/// Cores that this process may use: its affinity mask, limited by its cgroup's cpu quota. At least 1.
int usable_core_count();

class ThreadPool {
 public:
  /// thread_count: with the calling thread; 0 means usable_core_count(). Fewer are started when the system refuses
  /// more.
  explicit ThreadPool(int thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(workers_->size()) + 1; }

  /// Calls fn(item) or fn(item, thread) for every item in [0, count), and returns when all are done. The calling thread
  /// takes part; thread lies in [0, thread_count()), for a piece of scratch per thread. Inside a region, while another
  /// thread has the workers, or in a forked process, which has none, all items run on the calling thread (as thread 0):
  /// no waiting, no deadlock, never more threads than callers and workers.
  template <class F>
  void parallel_for(std::int64_t count, const F& fn) {
    static_assert(std::is_invocable_v<const F&, std::int64_t> || std::is_invocable_v<const F&, std::int64_t, int>);
    const auto call = [](const void* context, std::int64_t item, int thread) {
      const F& f = *static_cast<const F*>(context);
      if constexpr (std::is_invocable_v<const F&, std::int64_t, int>) {
        f(item, thread);
      } else {
        f(item);
      }
    };
    run(count, call, &fn);
  }

  /// Calls fn(begin, end) over [0, total) in pieces of `grain`: for element-wise work. One piece runs on the calling
  /// thread.
  template <class F>
  void parallel_ranges(std::int64_t total, std::int64_t grain, const F& fn) {
    parallel_for((total + grain - 1) / grain, [&](std::int64_t i) {
      const std::int64_t begin = i * grain;
      fn(begin, begin + grain < total ? begin + grain : total);
    });
  }

 private:
  using Call = void (*)(const void* context, std::int64_t item, int thread);

  void run(std::int64_t count, Call call, const void* context);
  void take_items(int thread);
  void work(int thread);
  bool join_region(std::uint32_t gate);
  void leave_region();

  // gate_: even: closed; odd: a region is open. Grows by one at each change; kStop ends the workers.
  static constexpr std::uint32_t kStop = ~0u, kLastGate = kStop - 7;
  alignas(64) std::atomic<std::uint32_t> gate_{0};
  alignas(64) std::atomic<std::uint32_t> inside_{0};  ///< workers that may touch the region's fields
  alignas(64) std::atomic<std::int64_t> next_{0};
  std::int64_t count_ = 0;
  Call call_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<bool> is_owned_{false};  ///< some thread has the workers
  std::unique_ptr<std::vector<std::thread>> workers_ = std::make_unique<std::vector<std::thread>>();
  const unsigned process_;  ///< where the workers are: a process that was forked since has none
};

}  // namespace cairn::cpu
