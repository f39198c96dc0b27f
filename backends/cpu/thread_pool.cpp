#include "backends/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace cairn::cpu {
namespace {

// Between two operators of a step pass a few microseconds: spinning that long saves the wake-up (~5 us and a system
// call).
constexpr auto kSpinTime = std::chrono::microseconds(40);

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Spins until ready() or the spin time is over; says whether it became ready.
template <class Ready>
bool spin(const Ready& ready) {
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

int affinity_core_count() {
  cpu_set_t* set = CPU_ALLOC(4096);
  if (!set) return 1;
  const std::size_t set_bytes = CPU_ALLOC_SIZE(4096);
  const int count = sched_getaffinity(0, set_bytes, set) == 0 ? CPU_COUNT_S(set_bytes, set) : 1;
  CPU_FREE(set);
  return std::max(count, 1);
}

/// Cores granted by one cgroup v2 directory, rounded up; 0: no limit said.
int quota_core_count(const char* directory) {
  char path[512];
  std::snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", directory);
  std::FILE* file = std::fopen(path, "re");
  if (!file) return 0;
  long long quota = 0, period = 0;
  const bool is_limited = std::fscanf(file, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0;
  std::fclose(file);
  return is_limited ? static_cast<int>(std::min<long long>((quota + period - 1) / period, 4096)) : 0;
}

/// The tightest cpu quota of this process's cgroup and its parents; 0: none.
int cgroup_core_count() {
  std::FILE* file = std::fopen("/proc/self/cgroup", "re");
  if (!file) return 0;
  char line[400];
  int cores = 0;
  while (std::fgets(line, sizeof line, file)) {
    if (std::strncmp(line, "0::", 3) != 0) continue;
    char* directory = line + 3;
    directory[std::strcspn(directory, "\n")] = 0;
    while (true) {
      const int limit = quota_core_count(directory);
      if (limit && (!cores || limit < cores)) cores = limit;
      char* slash = std::strrchr(directory, '/');
      if (!slash || !*directory) break;
      *slash = 0;
    }
  }
  std::fclose(file);
  return cores;
}

std::atomic<unsigned> forks{0};  // between the first process that had a pool and this one

unsigned this_process() {
  [[maybe_unused]] static const int is_watching = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  return forks.load(std::memory_order_relaxed);
}

/// Signals are for the host's threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

int usable_core_count() {
  const int affinity = affinity_core_count(), quota = cgroup_core_count();
  return quota ? std::min(affinity, quota) : affinity;
}

ThreadPool::ThreadPool(int thread_count) : process_(this_process()) {
  const int wanted = std::clamp(thread_count > 0 ? thread_count : usable_core_count(), 1, 1024);
  const SignalsBlocked blocked;
  try {
    workers_->reserve(static_cast<std::size_t>(wanted));
    for (int thread = 1; thread < wanted; ++thread) workers_->emplace_back([this, thread] { work(thread); });
  } catch (const std::exception&) {
    // The threads that did start are enough; thread_count() says how many.
  }
}

ThreadPool::~ThreadPool() {
  if (process_ != forks.load(std::memory_order_relaxed)) {
    (void)workers_.release();  // threads that are not there can be neither joined nor forgotten
    return;
  }
  gate_.store(kStop);
  gate_.notify_all();
  for (std::thread& worker : *workers_) worker.join();
}

void ThreadPool::run(std::int64_t count, Call call, const void* context) {
  const bool has_workers = !workers_->empty() && process_ == forks.load(std::memory_order_relaxed);
  if (count > 1 && has_workers && !is_owned_.exchange(true)) {
    call_ = call;
    context_ = context;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    const std::uint32_t closed = gate_.load(), open = closed < kLastGate ? closed + 1 : 1;
    gate_.store(open);
    gate_.notify_all();
    take_items(0);
    gate_.store(open + 1);
    while (!spin([this] { return inside_.load() == 0; })) {
      if (const std::uint32_t inside = inside_.load()) inside_.wait(inside);
    }
    is_owned_.store(false);
    return;
  }
  for (std::int64_t item = 0; item < count; ++item) call(context, item, 0);
}

void ThreadPool::take_items(int thread) {
  while (true) {
    const std::int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
    if (item >= count_) return;
    call_(context_, item, thread);
  }
}

/// True: this worker is inside the region, whose fields stay until leave_region().
bool ThreadPool::join_region(std::uint32_t gate) {
  inside_.fetch_add(1);
  if (gate_.load() == gate) return true;  // the owner sees inside_ before it goes on
  leave_region();
  return false;
}

void ThreadPool::leave_region() {
  inside_.fetch_sub(1);
  inside_.notify_all();
}

void ThreadPool::work(int thread) {
  pthread_setname_np(pthread_self(), "cairn-cpu");
  std::fesetenv(FE_DFL_ENV);  // rounding and denormals do not depend on who made the thread
  std::uint32_t seen = 0;     // the last gate that this worker has dealt with
  while (true) {
    const auto changed = [&] {
      const std::uint32_t gate = gate_.load();
      return gate != seen && gate & 1;
    };
    if (!spin(changed)) {
      for (std::uint32_t gate = gate_.load(); !changed(); gate = gate_.load()) gate_.wait(gate);
    }
    const std::uint32_t gate = gate_.load();
    if (gate == kStop) return;
    seen = gate;
    if (!(gate & 1) || !join_region(gate)) continue;  // closed again meanwhile
    take_items(thread);
    leave_region();
  }
}

}  // namespace cairn::cpu
