// Snapshots through the C API: memory, file and callback tell the same, and a callback is not trusted.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "api_agent.h"

using namespace cairn_test;

TEST_CASE("snapshots come out and go in by memory, file and callback, and tell the same") {
  Agent agent;
  if (!agent.has_model) return;
  REQUIRE_OK(agent.prefill(100));
  const std::vector<char> bytes = save(agent.state);
  struct Pipe {
    std::vector<char> bytes;
    size_t read = 0;
  } pipe;
  REQUIRE_OK(cairn_state_save_to_callback(
      agent.state,
      [](void* user, const void* data, size_t size) {
        auto& to = static_cast<Pipe*>(user)->bytes;
        to.insert(to.end(), static_cast<const char*>(data), static_cast<const char*>(data) + size);
        return 0;
      },
      &pipe, nullptr));
  CHECK(pipe.bytes == bytes);
  const std::string path = std::string("/tmp/cairn-api-test-") + std::to_string(std::rand()) + ".cairnstate";
  REQUIRE_OK(cairn_state_save(agent.state, path.c_str(), nullptr));

  const cairn_read_fn read = [](void* user, void* data, size_t size, size_t* count) {
    auto& from = *static_cast<Pipe*>(user);
    *count = std::min(size, std::min<size_t>(977, from.bytes.size() - from.read));
    std::memcpy(data, from.bytes.data() + from.read, *count);
    from.read += *count;
    return 0;
  };
  REQUIRE_OK(cairn_state_reset(agent.state));
  REQUIRE_OK(cairn_state_restore_from_callback(agent.state, read, &pipe, nullptr));
  CHECK(save(agent.state) == bytes);
  REQUIRE_OK(cairn_state_reset(agent.state));
  REQUIRE_OK(cairn_state_restore(agent.state, path.c_str(), nullptr));
  CHECK(save(agent.state) == bytes);
  cairn_snapshot_info info = CAIRN_SNAPSHOT_INFO_INIT;
  REQUIRE_OK(cairn_snapshot_inspect(path.c_str(), nullptr, &info));
  CHECK(info.position == 100);
  CHECK(info.total_bytes == bytes.size());
  cairn_snapshot_section section = CAIRN_SNAPSHOT_SECTION_INIT;
  for (int32_t i = 0; i < info.section_count; ++i) REQUIRE_OK(cairn_snapshot_get_section(path.c_str(), i, &section));
  CHECK(cairn_snapshot_get_section(path.c_str(), info.section_count, &section) == CAIRN_STATUS_INVALID_ARGUMENT);
  std::remove(path.c_str());
  cairn_limits limits = CAIRN_LIMITS_INIT;
  limits.max_snapshot_bytes = bytes.size() - 1;
  cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
  options.limits = &limits;
  CHECK(cairn_state_restore_from_memory(agent.state, bytes.data(), bytes.size(), &options) == CAIRN_STATUS_LIMIT_EXCEEDED);
  pipe.read = 0;
  CHECK(cairn_state_restore_from_callback(agent.state, read, &pipe, &options) == CAIRN_STATUS_LIMIT_EXCEEDED);
  CHECK(save(agent.state) == bytes);
}

namespace {

/// Gives `bytes` and then zeros without an end; gives up after 64 MiB.
struct EndlessPipe {
  std::vector<char> bytes;
  size_t given = 0;
  static int read(void* user, void* data, size_t size, size_t* count) {
    auto& pipe = *static_cast<EndlessPipe*>(user);
    if (pipe.given > size_t{64} << 20) return 1;
    std::memset(data, 0, size);
    if (pipe.given < pipe.bytes.size()) {
      std::memcpy(data, pipe.bytes.data() + pipe.given, std::min(size, pipe.bytes.size() - pipe.given));
    }
    *count = size;
    pipe.given += size;
    return 0;
  }
};

}  // namespace

TEST_CASE("progress of saving and of restoring ends with all bytes done") {
  struct Seen {
    uint64_t done = 0, total = 0;
  };
  const cairn_progress_fn progress = [](void* user, uint64_t done, uint64_t total) {
    *static_cast<Seen*>(user) = {done, total};
    return 0;
  };
  const Agent agent;
  if (!agent.has_model) return;
  REQUIRE_OK(agent.prefill(100));
  Seen saving, restoring;
  std::vector<char> bytes = save(agent.state);
  size_t size = bytes.size();
  cairn_snapshot_options options = CAIRN_SNAPSHOT_OPTIONS_INIT;
  options.progress = progress, options.progress_user = &saving;
  cairn_restore_options restore = CAIRN_RESTORE_OPTIONS_INIT;
  restore.progress = progress, restore.progress_user = &restoring;

  REQUIRE_OK(cairn_state_save_to_memory(agent.state, bytes.data(), &size, &options));
  REQUIRE_OK(cairn_state_restore_from_memory(agent.state, bytes.data(), size, &restore));

  CHECK(saving.done == size);
  CHECK(saving.total == size);
  CHECK(restoring.done == restoring.total);
  CHECK(restoring.total > 0);
}

TEST_CASE("a callback that never ends is read no further than the snapshot that it began, and the state stays") {
  Agent agent;
  if (!agent.has_model) return;
  REQUIRE_OK(agent.prefill(100));
  const std::vector<char> bytes = save(agent.state);
  const auto restore = [&](EndlessPipe& pipe) {
    return cairn_state_restore_from_callback(agent.state, &EndlessPipe::read, &pipe, nullptr);
  };

  EndlessPipe zeros;
  CHECK(restore(zeros) == CAIRN_STATUS_FORMAT);
  CHECK(zeros.given <= 64);

  EndlessPipe longer{bytes};
  CHECK(restore(longer) == CAIRN_STATUS_FORMAT);
  CHECK(longer.given == bytes.size() + 1);

  EndlessPipe liar{{bytes.begin(), bytes.begin() + 64}};
  const uint64_t total = uint64_t{1} << 60;
  std::memcpy(liar.bytes.data() + 48, &total, sizeof total);
  CHECK(restore(liar) == CAIRN_STATUS_CHECKSUM);
  CHECK(liar.given < bytes.size());

  EndlessPipe cut{{bytes.begin(), bytes.begin() + 64}};
  cairn_limits limits = CAIRN_LIMITS_INIT;
  limits.max_snapshot_bytes = bytes.size() - 1;
  cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
  options.limits = &limits;
  CHECK(cairn_state_restore_from_callback(agent.state, &EndlessPipe::read, &cut, &options) == CAIRN_STATUS_LIMIT_EXCEEDED);
  CHECK(cut.given <= 64);
  CHECK(save(agent.state) == bytes);
}
