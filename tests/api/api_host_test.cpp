// What a host does around its calls: it changes how it computes inside a callback, sets hooks from inside a call,
// throws, is refused, forks.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <fenv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "api_agent.h"

using namespace cairn_test;

namespace {

std::vector<float> last_logits(cairn_state* state) {
  size_t count = 0;
  REQUIRE(cairn_state_get_last_logits(state, nullptr, &count) == CAIRN_STATUS_BUFFER_TOO_SMALL);
  std::vector<float> logits(count);
  REQUIRE_OK(cairn_state_get_last_logits(state, logits.data(), &count));
  return logits;
}

template <class T>
T reported(T result, int* error_number) {
  if (result < 0) *error_number = errno;
  return result;
}

/// The file system, but each read runs `on_read(user)` first.
cairn_io reading_io(void (*on_read)()) {
  static void (*before_read)() = nullptr;
  before_read = on_read;
  cairn_io io = {};
  io.struct_size = sizeof io;
  io.open = [](void*, const char* path, int flags, unsigned mode, int* e) { return reported(open(path, flags, mode), e); };
  io.openat = [](void*, int folder, const char* name, int flags, unsigned mode, int* e) { return reported(openat(folder, name, flags, mode), e); };
  io.pread = [](void*, int file, void* data, size_t size, int64_t offset, int* e) {
    before_read();
    return reported<int64_t>(pread(file, data, size, offset), e);
  };
  io.pwrite = [](void*, int file, const void* data, size_t size, int64_t offset, int* e) { return reported<int64_t>(pwrite(file, data, size, offset), e); };
  io.fsync = [](void*, int file, int* e) { return reported(fsync(file), e); };
  io.close = [](void*, int file, int* e) { return reported(close(file), e); };
  io.renameat = [](void*, int folder, const char* from, const char* to, int* e) { return reported(renameat(folder, from, folder, to), e); };
  io.unlinkat = [](void*, int folder, const char* name, int* e) { return reported(unlinkat(folder, name, 0), e); };
  io.file_size = [](void*, int file, int*) -> int64_t {
    struct stat info = {};
    return fstat(file, &info) == 0 ? info.st_size : -1;
  };
  return io;
}

/// -1: it did not end by itself.
int exit_status_of(pid_t child) {
  int how = -1;
  REQUIRE(waitpid(child, &how, 0) == child);
  return WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}

/// 0: body() was true in a forked process.
template <class Body>
int result_of_child(const Body& body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(60);
    try {
      _exit(body() ? 0 : 1);
    } catch (...) {  // a REQUIRE
      _exit(2);
    }
  }
  return exit_status_of(child);
}

}  // namespace

TEST_CASE("rounding that a callback sets changes no bit of the call, and is the host's afterwards") {
  const Agent plain, odd;
  if (!plain.has_model) return;
  REQUIRE_OK(plain.prefill(1200));
  const std::vector<float> expected = last_logits(plain.state);
  std::vector<int> seen;

  const cairn_status status = odd.prefill(
      1200,
      [](void* user, uint64_t, uint64_t) {
        static_cast<std::vector<int>*>(user)->push_back(fegetround());
        fesetround(FE_UPWARD);
        return 0;
      },
      &seen);
  const int rounding = fegetround();
  fesetround(FE_TONEAREST);

  CHECK(status == CAIRN_STATUS_OK);
  CHECK(rounding == FE_UPWARD);
  REQUIRE(seen.size() >= 2);
  CHECK(seen[0] == FE_TONEAREST);
  CHECK(seen[1] == FE_UPWARD);
  CHECK(last_logits(odd.state) == expected);
}

TEST_CASE("hooks of the file system compute as the host does, and the allocator does not change under a call") {
  const std::string path = std::string("/tmp/cairn-api-host-") + std::to_string(getpid()) + ".cairnstate";
  {
    const Agent agent;
    if (!agent.has_model) return;
    REQUIRE_OK(agent.prefill(10));
    REQUIRE_OK(cairn_state_save(agent.state, path.c_str(), nullptr));
  }
  static int rounding, refused, reads;
  rounding = refused = reads = 0;
  const cairn_io io = reading_io([] {
    const cairn_allocator allocator = {sizeof(cairn_allocator), nullptr,
                                       [](void*, size_t size, size_t alignment) { return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment); },
                                       [](void*, void* memory, size_t) { std::free(memory); }};
    ++reads;
    rounding = fegetround();
    refused += cairn_set_allocator(&allocator) == CAIRN_STATUS_WRONG_STATE;
  });
  REQUIRE_OK(cairn_set_io(&io));
  fesetround(FE_DOWNWARD);
  cairn_snapshot_info info = CAIRN_SNAPSHOT_INFO_INIT;
  const cairn_status status = cairn_snapshot_inspect(path.c_str(), nullptr, &info);
  fesetround(FE_TONEAREST);
  REQUIRE_OK(cairn_set_io(nullptr));
  REQUIRE_OK(cairn_set_allocator(nullptr));
  unlink(path.c_str());

  CHECK(status == CAIRN_STATUS_OK);
  CHECK(info.position == 10);
  CHECK(rounding == FE_DOWNWARD);
  CHECK(reads > 2);
  CHECK(refused > 0);
}

TEST_CASE("in a process forked while the library is in use every call is refused and nothing waits") {
  const Agent agent;
  if (!agent.has_model) return;
  cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
  options.backend = "cpu";
  options.thread_count = 3;
  cairn_device* device = nullptr;
  REQUIRE_OK(cairn_device_open(&options, &device));
  REQUIRE_OK(agent.prefill(100));
  std::atomic<bool> is_done{false};
  std::thread busy([&] {  // takes every lock again and again
    while (!is_done) {
      cairn_state* state = nullptr;
      cairn_device* other = nullptr;
      if (cairn_state_create(agent.model, nullptr, &state) == CAIRN_STATUS_OK) cairn_state_release(state);
      if (cairn_device_open(&options, &other) == CAIRN_STATUS_OK) cairn_device_release(other);
    }
  });

  std::vector<int> results;
  for (int i = 0; i < 20; ++i) {
    results.push_back(result_of_child([&] {
      cairn_state_info info = CAIRN_STATE_INFO_INIT;
      cairn_device* mine = nullptr;
      int32_t count = 0;
      const bool are_refused = agent.prefill(200) == CAIRN_STATUS_WRONG_STATE &&
                               cairn_state_reset(agent.state) == CAIRN_STATUS_WRONG_STATE &&
                               cairn_state_get_info(agent.state, &info) == CAIRN_STATUS_WRONG_STATE &&
                               cairn_device_open(&options, &mine) == CAIRN_STATUS_WRONG_STATE &&
                               cairn_backend_count(&count) == CAIRN_STATUS_WRONG_STATE;
      const bool says_why = std::string(cairn_last_error_message()).find("forked") != std::string::npos;
      cairn_state_release(agent.state);
      cairn_stream_release(agent.stream);
      cairn_model_release(agent.model);
      cairn_device_release(device);
      return are_refused && !mine && says_why;
    }));
  }
  is_done = true;
  busy.join();

  CHECK(results == std::vector<int>(20, 0));
  CHECK(agent.prefill(200) == CAIRN_STATUS_OK);
  CHECK(position_of(agent.state) == 300);
  cairn_device_release(device);
}

TEST_CASE("a process forked before the first handle is made, or after the last is gone, uses the library as any other") {
  {
    const Agent agent;
    if (!agent.has_model) return;
    REQUIRE_OK(agent.prefill(10));
  }

  const int result = result_of_child([] {
    const Agent agent;
    return agent.prefill(10) == CAIRN_STATUS_OK;
  });

  CHECK(result == 0);
}

TEST_CASE("a process forked in a callback ends the call that it inherits, and may make no other") {
  static pid_t child;
  static cairn_status seen;
  child = -1, seen = CAIRN_STATUS_OK;
  const Agent agent;
  if (!agent.has_model) return;

  const cairn_status status = agent.prefill(1200, [](void* state, uint64_t, uint64_t) {
    if (child < 0) child = fork();
    if (child == 0) {
      alarm(60);
      seen = cairn_state_reset(static_cast<cairn_state*>(state));
    }
    return 0;
  }, agent.state);
  if (child == 0) _exit(status == CAIRN_STATUS_OK && seen == CAIRN_STATUS_WRONG_STATE ? 0 : 1);

  REQUIRE(child > 0);
  CHECK(status == CAIRN_STATUS_OK);
  CHECK(exit_status_of(child) == 0);
}

TEST_CASE("after a success the message is empty, whatever a callback was refused meanwhile") {
  Agent agent;
  if (!agent.has_model) return;
  const cairn_progress_fn progress = [](void*, uint64_t, uint64_t) {
    CHECK(cairn_state_reset(nullptr) == CAIRN_STATUS_INVALID_HANDLE);
    return 0;
  };

  CHECK(agent.prefill(70, progress) == CAIRN_STATUS_OK);

  CHECK(std::string(cairn_last_error_message()).empty());
}

TEST_CASE("an exception that leaves a progress callback is an error, and the state stands at a chunk border") {
  Agent agent;
  if (!agent.has_model) return;

  CHECK(agent.prefill(70, [](void*, uint64_t, uint64_t) -> int { throw std::runtime_error("from the host"); }) ==
        CAIRN_STATUS_INTERNAL);

  CHECK(std::string(cairn_last_error_message()) == "from the host");
  CHECK(position_of(agent.state) == 70);
  CHECK(agent.prefill(3) == CAIRN_STATUS_OK);
}
