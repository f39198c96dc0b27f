// Handles: what is refused, what stays alive, and what happens when threads race.
#include "runtime/api/handle_table.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "runtime/api/guard.h"

namespace cairn::api {
namespace {

struct Counted {
  static constexpr HandleKind kHandleKind = HandleKind::kState;
  explicit Counted(std::atomic<int>& count) : count(count) { ++count; }
  ~Counted() { --count; }
  std::atomic<int>& count;
  std::atomic<int> canary{42};
};

std::uint64_t insert(HandleTable& table, std::atomic<int>& count) {
  auto handle = table.insert(HandleKind::kState, std::make_shared<Counted>(count));
  REQUIRE(handle.ok());
  return handle.value();
}

}  // namespace

TEST_CASE("a live handle finds its object; null, stale, foreign and made-up ones find nothing") {
  std::atomic<int> count{0};
  HandleTable table, other;
  const std::uint64_t handle = insert(table, count);

  CHECK(Pin<Counted>(table, handle, HandleKind::kState)->canary == 42);
  CHECK_FALSE(Pin<Counted>(table, 0, HandleKind::kState));
  CHECK_FALSE(Pin<Counted>(table, handle, HandleKind::kModel));
  CHECK_FALSE(Pin<Counted>(table, handle + 1, HandleKind::kState));
  CHECK_FALSE(Pin<Counted>(table, handle + (std::uint64_t{1} << 32), HandleKind::kState));
  CHECK_FALSE(Pin<Counted>(table, handle ^ (std::uint64_t{7} << 60), HandleKind::kModel));
  CHECK_FALSE(Pin<Counted>(table, ~std::uint64_t{0}, HandleKind::kState));
  std::atomic<int> other_count{0};
  insert(other, other_count);
  CHECK_FALSE(Pin<Counted>(other, handle, HandleKind::kState));

  CHECK_FALSE(table.release(handle, HandleKind::kModel));
  CHECK(count == 1);
  CHECK(table.release(handle, HandleKind::kState));
  CHECK(count == 0);
  CHECK_FALSE(table.release(handle, HandleKind::kState));
  CHECK_FALSE(Pin<Counted>(table, handle, HandleKind::kState));
  const std::uint64_t reused = insert(table, count);
  CHECK(reused != handle);
  CHECK_FALSE(Pin<Counted>(table, handle, HandleKind::kState));
  CHECK(table.release(reused, HandleKind::kState));
  CHECK(table.live_count() == 0);
}

TEST_CASE("random values are never handles") {
  std::atomic<int> count{0};
  HandleTable table;
  std::vector<std::uint64_t> handles;
  for (int i = 0; i < 1000; ++i) handles.push_back(insert(table, count));
  std::mt19937_64 random(1);
  int found = 0;
  for (int i = 0; i < 200000; ++i) found += Pin<Counted>(table, random(), HandleKind::kState) ? 1 : 0;
  CHECK(found == 0);
  for (const std::uint64_t handle : handles) CHECK(table.release(handle, HandleKind::kState));
}

TEST_CASE("a released object lives until its last pin is gone") {
  std::atomic<int> count{0};
  HandleTable table;
  const std::uint64_t handle = insert(table, count);
  {
    const Pin<Counted> pin(table, handle, HandleKind::kState);
    CHECK(table.release(handle, HandleKind::kState));
    CHECK_FALSE(Pin<Counted>(table, handle, HandleKind::kState));
    CHECK(pin->canary == 42);
    CHECK(count == 1);
    CHECK(table.live_count() == 1);
  }
  CHECK(count == 0);
  CHECK(table.live_count() == 0);
}

TEST_CASE("threads that use and release the same handles see an object or nothing, and each is destroyed once") {
  std::atomic<int> count{0};
  HandleTable table;
  constexpr int kThreads = 4, kRounds = 300, kHandles = 64;
  for (int round = 0; round < kRounds / 10; ++round) {
    std::vector<std::uint64_t> handles;
    for (int i = 0; i < kHandles; ++i) handles.push_back(insert(table, count));
    std::atomic<int> releases{0}, wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(static_cast<unsigned>(t * 1000 + round));
        for (int i = 0; i < 600; ++i) {
          const std::uint64_t handle = handles[random() % kHandles];
          if (random() % 4 == 0) {
            releases += table.release(handle, HandleKind::kState) ? 1 : 0;
          } else if (const Pin<Counted> pin(table, handle, HandleKind::kState); pin) {
            wrong += pin->canary == 42 ? 0 : 1;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::uint64_t handle : handles) releases += table.release(handle, HandleKind::kState) ? 1 : 0;
    REQUIRE(releases == kHandles);
    REQUIRE(wrong == 0);
    REQUIRE(count == 0);
  }
  CHECK(table.live_count() == 0);
}

TEST_CASE("a hundred thousand handles live together and all are found") {
  std::atomic<int> count{0};
  HandleTable table;
  std::vector<std::uint64_t> handles;
  for (int i = 0; i < 100000; ++i) handles.push_back(insert(table, count));
  const auto begin = std::chrono::steady_clock::now();
  bool all = true;
  for (const std::uint64_t handle : handles) all = all && Pin<Counted>(table, handle, HandleKind::kState);
  const double nanoseconds = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
  CHECK(all);
  const auto hot_begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100000; ++i) all = all && Pin<Counted>(table, handles[5], HandleKind::kState);
  const double hot = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - hot_begin).count();
  CHECK(all);
  MESSAGE("lookup and release of a pin: ", hot / 100000, " ns, or ", nanoseconds / 100000, " ns with a new one each time");
  for (const std::uint64_t handle : handles) table.release(handle, HandleKind::kState);
  CHECK(count == 0);
}

TEST_CASE("guarded() leaves a message for a failure and none for a success, and lets nothing through") {
  CHECK(guarded([]() -> Status { return Status::invalid_argument("a %d", 1); }) == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(std::string(last_error_message()) == "a 1");
  CHECK(guarded([]() -> Status { return {}; }) == CAIRN_STATUS_OK);
  CHECK(std::string(last_error_message()).empty());
  CHECK(guarded([]() -> Status { throw std::bad_alloc(); }) == CAIRN_STATUS_OUT_OF_MEMORY);
  CHECK(guarded([]() -> Status { throw 5; }) == CAIRN_STATUS_INTERNAL);
  CHECK_FALSE(std::string(last_error_message()).empty());
  const HostCallbackScope scope;
  CHECK(guarded([]() -> Status { return {}; }) == CAIRN_STATUS_WRONG_STATE);
}

TEST_CASE("messages are one line, cut at a character border, and each thread's own") {
  (void)guarded([]() -> Status { return Status::invalid_argument("one\ntwo\r"); });
  CHECK(std::string(last_error_message()).find('\n') == std::string::npos);
  (void)guarded([]() -> Status { return Status(CAIRN_STATUS_FORMAT, std::string(1022, 'a') + "\xc3\xa9"); });
  CHECK(std::string(last_error_message()) == std::string(1022, 'a'));
  std::thread([] { CHECK(std::string(last_error_message()).empty()); }).join();
}

TEST_CASE("structs of older and newer headers are read by their size") {
  struct Options {
    std::size_t struct_size;
    int a, b;
  };
  struct Newer {
    std::size_t struct_size;
    int a, b;
    long c;
  };
  Options to{sizeof(Options), 1, 2};
  CHECK(read_options(static_cast<const Options*>(nullptr), "options", to).ok());
  const Options older{sizeof(std::size_t) + sizeof(int), 7, 8};
  CHECK(read_options(&older, "options", to).ok());
  CHECK(to.a == 7);
  CHECK(to.b == 2);
  Newer newer{sizeof(Newer), 3, 4, 0};
  CHECK(read_options(reinterpret_cast<const Options*>(&newer), "options", to).ok());
  CHECK(to.b == 4);
  newer.c = 1;
  CHECK(read_options(reinterpret_cast<const Options*>(&newer), "options", to).code() == CAIRN_STATUS_INVALID_ARGUMENT);
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{1} << 40}) {
    const Options bad{size, 0, 0};
    CHECK(read_options(&bad, "options", to).code() == CAIRN_STATUS_INVALID_ARGUMENT);
  }
  Options out{sizeof(std::size_t) + sizeof(int), 0, 99};
  CHECK(write_info(Options{sizeof(Options), 5, 6}, "options", &out).ok());
  CHECK(out.a == 5);
  CHECK(out.b == 99);
  CHECK(out.struct_size == sizeof(std::size_t) + sizeof(int));
}

}  // namespace cairn::api
