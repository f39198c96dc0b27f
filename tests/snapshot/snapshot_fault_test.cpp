// Saving, restoring and everything else while the file system or the allocator fails at every single call: once, and from
// there on. Nothing is lost: the old file, the state, and the next attempt gives the same bits.
#include <cerrno>
#include <functional>

#include "tests/runtime/file_fixture.h"
#include "tests/support/agent_handles.h"
#include "tests/support/faulty_allocator.h"

namespace cairn {
namespace {

using test::AgentBench;
using test::Bytes;
using test::random_tokens;
using test::with_window;

std::string as_string(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

struct Saver {
  AgentBench bench;
  cairn_state* state = nullptr;
  test::TemporaryFolder folder;
  std::string path = folder / "agent.cairnstate", old_bytes, new_bytes;

  Saver() {
    auto made = bench.state();
    bench.prefill(*made, random_tokens(40));
    old_bytes = as_string(bench.save(*made));
    bench.prefill(*made, random_tokens(10));
    new_bytes = as_string(bench.save(*made));
    state = test::handle_of(bench, std::move(made));
    test::put_file(path, old_bytes);
  }
  ~Saver() { cairn_state_release(state); }

  /// Saves with a fault at call `k`; false: the fault came too late to strike.
  bool save_with_fault(int k, int error_number, bool forever, bool is_short) {
    cairn_status status = CAIRN_STATUS_OK;
    bool has_struck = false, may_leave_temporary = false;
    {
      test::FaultyIo io;
      io.fail_at = k;
      io.error_number = error_number;
      io.forever = forever;
      io.makes_short = is_short;
      status = cairn_state_save(state, path.c_str(), nullptr);
      has_struck = !io.failed_call.empty();
      may_leave_temporary = forever && !is_short;  // unlink fails too: the next save sweeps it
    }
    CAPTURE(k);
    CAPTURE(error_number);
    if (status == CAIRN_STATUS_OK || status == CAIRN_STATUS_DURABILITY) {
      REQUIRE(test::file_bytes(path) == new_bytes);
    } else {
      REQUIRE(cairn_last_error_message()[0] != '\0');
      REQUIRE(test::file_bytes(path) == old_bytes);
      if (error_number == ENOSPC && has_struck) REQUIRE((status == CAIRN_STATUS_NO_SPACE || status == CAIRN_STATUS_IO));
    }
    if (!may_leave_temporary) REQUIRE(folder.entry_count() == 1);
    REQUIRE(as_string(bench.save(test::state_of(state))) == new_bytes);
    std::filesystem::remove_all(folder.path());
    std::filesystem::create_directory(folder.path());
    test::put_file(path, old_bytes);
    return has_struck;
  }
};

}  // namespace

TEST_CASE("a save whose file system fails at any call leaves the old file or the new one, and no other") {
  Saver saver;
  int most_calls = 0;
  for (const int error_number : {EIO, ENOSPC, EDQUOT, EACCES, EROFS, EMFILE, ENOENT, EINTR, EAGAIN}) {
    for (const bool forever : {false, true}) {
      int k = 0;
      while (saver.save_with_fault(k, error_number, forever, false)) ++k;
      most_calls = std::max(most_calls, k);
    }
  }
  CHECK(most_calls >= 8);  // open the folder, make, write, sync, read back, close, rename, sync the folder
}

TEST_CASE("short reads and writes are completed") {
  Saver saver;
  for (const bool forever : {false, true}) {
    int k = 0;
    while (saver.save_with_fault(k, 0, forever, true)) ++k;
    CHECK(k >= 2);
  }
}

TEST_CASE("a restore whose file system fails at any call leaves the state as it was") {
  Saver saver;
  test::put_file(saver.path, saver.old_bytes);
  for (const bool forever : {false, true}) {
    for (int k = 0;; ++k) {
      cairn_status status = CAIRN_STATUS_OK;
      bool has_struck = false;
      {
        test::FaultyIo io;
        io.fail_at = k;
        io.forever = forever;
        status = cairn_state_restore(saver.state, saver.path.c_str(), nullptr);
        has_struck = !io.failed_call.empty();
      }
      const std::string now = as_string(saver.bench.save(test::state_of(saver.state)));
      REQUIRE(now == (status == CAIRN_STATUS_OK ? saver.old_bytes : saver.new_bytes));
      REQUIRE(cairn_state_restore_from_memory(saver.state, saver.new_bytes.data(), saver.new_bytes.size(), nullptr) == CAIRN_STATUS_OK);
      if (!has_struck) break;
    }
  }
}

// ---------------------------------------------------------------- no memory

namespace {

/// One thing that may run out of memory: does it to `state`, which stays as it was on failure.
struct Scenario {
  const char* name;
  std::function<Status(const AgentBench&, State&)> run;
};

std::vector<Scenario> scenarios(const Bytes& snapshot) {
  static const std::vector<std::int32_t> tokens = random_tokens(300, 5);
  const auto prefill = [](std::size_t count) {
    return [count](const AgentBench& bench, State& state) { return bench.try_prefill(state, std::span(tokens).first(count)); };
  };
  return {
      {"prefill 1", prefill(1)},
      {"prefill 65", prefill(65)},
      {"prefill 260", prefill(260)},
      {"sparse prefill",
       [](const AgentBench& bench, State& state) {
         SparsePrefill sparse;
         sparse.enabled = true;
         sparse.min_chunks = 1;
         return bench.try_prefill(state, std::span(tokens).first(200), sparse);
       }},
      {"decode",
       [](const AgentBench& bench, State& state) {
         State* const one = &state;
         return bench.stream->decode({&one, 1}, {tokens.data(), 1});
       }},
      {"rewind", [](const AgentBench& bench, State& state) { return bench.try_rewind(state, 30); }},
      {"rewind to a checkpoint", [](const AgentBench& bench, State& state) { return bench.try_rewind(state, 64); }},
      {"fork, and the fork reads",
       [](const AgentBench& bench, State& state) {
         auto fork = state.fork(*bench.queue);
         return fork.ok() ? bench.try_prefill(*fork.value(), std::span(tokens).first(70)) : fork.status();
       }},
      {"save",
       [](const AgentBench& bench, State& state) -> Status {
         CAIRN_TRY_ASSIGN(SnapshotWriter writer, SnapshotWriter::prepare(state, *bench.queue, true));
         VectorSink sink;
         return writer.write(sink);
       }},
      {"restore", [&snapshot](const AgentBench& bench, State& state) { return bench.try_restore(state, snapshot); }},
  };
}

}  // namespace

TEST_CASE("an allocation that fails, once or for ever, changes no state, and the next attempt gives the same bits") {
  test::FaultyAllocator allocator;
  for (const char* backend : {"reference", "delayed"}) {
    CAPTURE(backend);
    AgentBench bench(backend);
    const auto source = bench.state(with_window());
    bench.prefill(*source, random_tokens(150));
    const Bytes before = bench.save(*source, true);
    const auto other = bench.state(with_window());
    bench.prefill(*other, random_tokens(77, 9));
    const Bytes snapshot = bench.save(*other, true);
    for (const Scenario& scenario : scenarios(snapshot)) {
      CAPTURE(scenario.name);
      const auto expected_state = bench.state(with_window());
      bench.restore(*expected_state, before);
      AgentBench::require_ok(scenario.run(bench, *expected_state));
      const Bytes expected = bench.save(*expected_state, true);
      for (const bool forever : {false, true}) {
        if (forever && !bench.device->backend().host_memory) continue;  // the same allocations: once is enough here
        for (long k = 0;; ++k) {
          CAPTURE(k);
          const auto state = bench.state(with_window());
          bench.restore(*state, before);
          bench.stream = AgentBench::take(Stream::create(bench.plan, {}));  // its memory is planned again
          allocator.arm(k, forever);
          const Status status = scenario.run(bench, *state);
          const bool has_struck = allocator.calls > k;
          allocator.disarm();
          if (!status.ok()) {
            REQUIRE(status.code() == CAIRN_STATUS_OUT_OF_MEMORY);
            REQUIRE(state->is_valid());
            REQUIRE(bench.save(*state, true) == before);
            if (k % 4 != 0) continue;
            AgentBench::require_ok(scenario.run(bench, *state));
          }
          REQUIRE(bench.save(*state, true) == expected);
          if (!has_struck) break;
        }
      }
    }
    CHECK(bench.save(*source, true) == before);
  }
}

TEST_CASE("making states without memory fails cleanly and leaks nothing") {
  test::FaultyAllocator allocator;
  const AgentBench bench;
  const std::uint64_t live_before = allocator_counters().live_count;
  for (const bool forever : {false, true}) {
    for (long k = 0;; ++k) {
      allocator.arm(k, forever);
      const auto state = State::create(bench.plan->state_layout(), bench.device, with_window());
      const bool has_struck = allocator.calls > k;
      allocator.disarm();
      if (!has_struck) break;
      REQUIRE(state.status().code() == CAIRN_STATUS_OUT_OF_MEMORY);
      REQUIRE(allocator_counters().live_count == live_before);
    }
  }
  CHECK(allocator_counters().live_count == live_before);
}

}  // namespace cairn
