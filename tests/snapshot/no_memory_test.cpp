// What happens to a state when operator new fails inside a call, once and from there on: as for the host's allocator, no
// state changes, and the next attempt gives the same bits.
#include <cstdlib>
#include <functional>
#include <new>

#include "runtime/api/guard.h"
#include "runtime/model/cairn_file_writer.h"
#include "tests/runtime/file_fixture.h"
#include "tests/support/agent_handles.h"

namespace cairn::test {
namespace {

/// Of this thread: the call number `fail_at` to operator new fails, and when `forever` every later one.
struct FaultyNew {
  long calls = 0, fail_at = -1;
  bool forever = false;

  void arm(long number, bool stays) { calls = 0, fail_at = number, forever = stays; }
  void disarm() { fail_at = -1; }
  bool strikes() {
    const long number = calls++;
    return fail_at >= 0 && (number == fail_at || (forever && number > fail_at));
  }
};
thread_local FaultyNew faulty_new;

void* allocate(std::size_t size_bytes) { return faulty_new.strikes() ? nullptr : std::malloc(size_bytes ? size_bytes : 1); }

}  // namespace
}  // namespace cairn::test

void* operator new(std::size_t size_bytes) {
  void* memory = cairn::test::allocate(size_bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t size_bytes, const std::nothrow_t&) noexcept { return cairn::test::allocate(size_bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace cairn {
namespace {

using test::AgentBench;
using test::Bytes;
using test::faulty_new;
using test::random_tokens;
using test::with_window;

struct Agent {
  const AgentBench& bench;
  cairn_state* handle;
  State& state;

  Agent(const AgentBench& bench_in, const Bytes& snapshot)
      : bench(bench_in), handle(test::handle_of(bench, bench.state(with_window()))), state(test::state_of(handle)) {
    bench.restore(state, snapshot);
  }
  ~Agent() { cairn_state_release(handle); }
  Agent(const Agent&) = delete;

  Bytes bytes() const { return bench.save(state, true); }
  cairn_status prefill(std::span<const std::int32_t> tokens, const SparsePrefill& sparse = {}) const {
    return api::guarded([&] { return bench.try_prefill(state, tokens, sparse); });
  }
};

struct Scenario {
  const char* name;
  std::function<cairn_status(const Agent&)> run;
};

std::vector<Scenario> scenarios(const Bytes& other, const std::string& path) {
  static const std::vector<std::int32_t> tokens = random_tokens(300, 5);
  const auto prefill = [](std::size_t count) { return [count](const Agent& agent) { return agent.prefill(std::span(tokens).first(count)); }; };
  const auto rewind = [](std::int64_t position) { return [position](const Agent& agent) { return cairn_state_rewind(agent.handle, position); }; };
  return {
      {"prefill 1", prefill(1)},
      {"prefill 65", prefill(65)},
      {"prefill 260", prefill(260)},
      {"sparse prefill",
       [](const Agent& agent) {
         SparsePrefill sparse;
         sparse.enabled = true;
         sparse.min_chunks = 1;
         return agent.prefill(std::span(tokens).first(200), sparse);
       }},
      {"decode",
       [](const Agent& agent) {
         State* const one = &agent.state;
         return api::guarded([&] { return agent.bench.stream->decode({&one, 1}, {tokens.data(), 1}); });
       }},
      {"rewind", rewind(30)},
      {"rewind to a checkpoint", rewind(64)},
      {"rewind to the begin", rewind(0)},
      {"reset", [](const Agent& agent) { return cairn_state_reset(agent.handle); }},
      {"restore", [&other](const Agent& agent) { return cairn_state_restore_from_memory(agent.handle, other.data(), other.size(), nullptr); }},
      {"restore a file", [&path](const Agent& agent) { return cairn_state_restore(agent.handle, path.c_str(), nullptr); }},
      {"fork",
       [](const Agent& agent) {
         cairn_state* fork = nullptr;
         const cairn_status status = cairn_state_fork(agent.handle, &fork);
         cairn_state_release(fork);
         return status;
       }},
  };
}

/// Runs the scenario on what `before` holds with a fault at call `k`; false: the fault came too late to strike.
bool run_with_fault(AgentBench& bench, const Scenario& scenario, const Bytes& before, const Bytes& expected, long k, bool forever) {
  CAPTURE(scenario.name);
  CAPTURE(k);
  CAPTURE(forever);
  const Agent agent(bench, before);
  bench.stream = AgentBench::take(Stream::create(bench.plan, {}));  // its memory is planned again
  faulty_new.arm(k, forever);
  const cairn_status status = scenario.run(agent);
  const bool has_struck = faulty_new.calls > k;
  faulty_new.disarm();
  if (status != CAIRN_STATUS_OK) {
    REQUIRE(status == CAIRN_STATUS_OUT_OF_MEMORY);
    REQUIRE(agent.state.is_valid());
    REQUIRE(agent.bytes() == before);
    REQUIRE(scenario.run(agent) == CAIRN_STATUS_OK);
  }
  REQUIRE(agent.bytes() == expected);
  return has_struck;
}

}  // namespace

TEST_CASE("operator new that fails, once or for ever, changes no state, and the next attempt gives the same bits") {
  AgentBench bench("cpu");
  const auto source = bench.state(with_window());
  bench.prefill(*source, random_tokens(150));
  const Bytes before = bench.save(*source, true);
  bench.prefill(*source, random_tokens(77, 9));
  const Bytes other = bench.save(*source, true);
  const test::TemporaryFolder folder;
  const std::string path = folder / "agent.cairnstate";
  test::put_file(path, {reinterpret_cast<const char*>(other.data()), other.size()});
  for (const Scenario& scenario : scenarios(other, path)) {
    const Agent untroubled(bench, before);
    REQUIRE(scenario.run(untroubled) == CAIRN_STATUS_OK);
    const Bytes expected = untroubled.bytes();
    for (const bool forever : {false, true}) {
      long k = 0;
      while (run_with_fault(bench, scenario, before, expected, k, forever)) ++k;
      CHECK(k > 0);
    }
  }
}

TEST_CASE("operator new that fails while a device is opened or a model loaded: there is one, or none and no leak") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "model.cairn";
  AgentBench::require_ok(write_cairn_file(*test::every_mechanism_model(1), path, {}));
  cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
  options.backend = "cpu";
  options.thread_count = 1;
  cairn_device* opened = nullptr;
  REQUIRE(cairn_device_open(&options, &opened) == CAIRN_STATUS_OK);
  const std::uint64_t live_before = allocator_counters().live_count;
  for (const bool forever : {false, true}) {
    for (const bool loads : {false, true}) {
      for (long k = 0;; ++k) {
        CAPTURE(loads);
        CAPTURE(k);
        cairn_device* device = nullptr;
        cairn_model* model = nullptr;
        faulty_new.arm(k, forever);
        const cairn_status status = loads ? cairn_model_load(opened, path.c_str(), nullptr, &model) : cairn_device_open(&options, &device);
        const bool has_struck = faulty_new.calls > k;
        faulty_new.disarm();
        REQUIRE((status == CAIRN_STATUS_OK) == (loads ? model != nullptr : device != nullptr));
        REQUIRE((status == CAIRN_STATUS_OK || status == CAIRN_STATUS_OUT_OF_MEMORY));
        cairn_model_release(model);
        cairn_device_release(device);
        REQUIRE(allocator_counters().live_count == live_before);
        if (!has_struck) break;
      }
    }
  }
  cairn_device_release(opened);
}

}  // namespace cairn
