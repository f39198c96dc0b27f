// The cpu backend's thread pool: every item once, whoever calls, however often.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "backends/cpu/thread_pool.h"

namespace cairn::test {
namespace {

TEST_CASE("a region runs every item once, from several callers, on any number of threads") {
  for (const int threads : {1, 2, 4}) {
    cpu::ThreadPool pool(threads);
    std::atomic<int> wrong{0};
    const auto call_often = [&] {
      for (int round = 0; round < 500; ++round) {
        std::vector<int> runs(37);
        pool.parallel_for(37, [&](std::int64_t item) { ++runs[static_cast<std::size_t>(item)]; });
        for (const int count : runs) wrong += count != 1;
        if (round % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));  // workers park
      }
    };

    std::thread other(call_often);
    call_often();
    other.join();

    CHECK(wrong == 0);
  }
}

TEST_CASE("a region inside a region runs on the thread that asks") {
  cpu::ThreadPool pool(2);
  std::atomic<int> items{0};

  pool.parallel_for(4, [&](std::int64_t) { pool.parallel_for(3, [&](std::int64_t, int) { ++items; }); });

  CHECK(items == 12);
}

TEST_CASE("ranges cover the whole once, the last one short") {
  cpu::ThreadPool pool(2);
  std::vector<std::atomic<int>> seen(103);

  pool.parallel_ranges(103, 10, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
  });

  for (const std::atomic<int>& count : seen) CHECK(count == 1);
}

}  // namespace
}  // namespace cairn::test
