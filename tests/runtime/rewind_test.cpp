// Forking and rewinding whole states: bit for bit as if the other history had never been.
#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/support/allocator.h"
#include "tests/support/agent_bench.h"

namespace cairn {
namespace {

using test::AgentBench;
using test::Bytes;
using test::random_tokens;
using test::with_window;

/// A state that has only ever read the first `count` tokens, in one prefill call.
Bytes read_directly(const AgentBench& bench, std::span<const std::int32_t> tokens, std::size_t count) {
  const auto state = bench.state(with_window(4096));
  bench.prefill(*state, tokens.first(count));
  return bench.save(*state);
}

}  // namespace

TEST_CASE("rewinding equals never having read the tokens, bit for bit") {
  for (const char* backend : {"reference", "delayed", "cpu"}) {
    CAPTURE(backend);
    const AgentBench bench(backend);
    const std::vector<std::int32_t> tokens = random_tokens(400);
    for (const std::size_t position : {0, 1, 63, 64, 65, 128, 200, 256, 333, 399, 400}) {
      CAPTURE(position);
      const auto state = bench.state(with_window(4096));
      bench.prefill(*state, tokens);

      CHECK(state->can_rewind(static_cast<std::int64_t>(position)));
      bench.rewind(*state, static_cast<std::int64_t>(position));

      CHECK(state->position() == static_cast<std::int64_t>(position));
      CHECK(bench.save(*state) == read_directly(bench, tokens, position));
    }
  }
}

TEST_CASE("rewinding through decoded tokens equals never having decoded them") {
  const AgentBench bench;
  const std::vector<std::int32_t> tokens = random_tokens(300);
  const auto state = bench.state(with_window(4096)), expected = bench.state();
  bench.prefill(*state, std::span(tokens).first(70));
  bench.decode(*state, std::span(tokens).subspan(70));
  bench.prefill(*expected, std::span(tokens).first(70));
  bench.decode(*expected, std::span(tokens).subspan(70, 61));

  bench.rewind(*state, 131);

  CHECK(bench.save(*state) == bench.save(*expected));
  bench.decode(*state, std::span(tokens).subspan(131));
  bench.decode(*expected, std::span(tokens).subspan(131));
  CHECK(bench.save(*state) == bench.save(*expected));
}

TEST_CASE("the window is reached, and what is told is what is done") {
  const AgentBench bench;
  const std::vector<std::int32_t> tokens = random_tokens(1000);
  const auto state = bench.state(with_window(200));
  bench.prefill(*state, std::span(tokens).first(600));
  bench.decode(*state, std::span(tokens).subspan(600, 150));

  CHECK(state->oldest_rewind_position() <= 550);
  CHECK(state->oldest_rewind_position() > 400);
  CHECK(state->can_rewind(550));
  CHECK_FALSE(state->can_rewind(state->oldest_rewind_position() - 1));
  CHECK_FALSE(state->can_rewind(751));
  CHECK_FALSE(state->can_rewind(-1));
  const Bytes before = bench.save(*state);
  for (const std::int64_t position : {std::int64_t{-1}, std::int64_t{751}, state->oldest_rewind_position() - 1}) {
    CHECK(bench.try_rewind(*state, position).code() == CAIRN_STATUS_INVALID_ARGUMENT);
    CHECK(bench.save(*state) == before);
  }
  bench.rewind(*state, 550);
  CHECK(bench.save(*state) == read_directly(bench, tokens, 550));
}

TEST_CASE("a state without a window can only stay where it is") {
  const AgentBench bench;
  const auto state = bench.state();
  bench.prefill(*state, random_tokens(100));

  CHECK(state->oldest_rewind_position() == 100);
  CHECK(state->can_rewind(100));
  CHECK_FALSE(state->can_rewind(99));
  CHECK(bench.try_rewind(*state, 50).code() == CAIRN_STATUS_INVALID_ARGUMENT);
}

TEST_CASE("a sparse prefill cannot be cut, but is gone back before and after") {
  const AgentBench bench;
  const std::vector<std::int32_t> tokens = random_tokens(700);
  const auto state = bench.state(with_window(4096)), before_sparse = bench.state(), after_sparse = bench.state();
  for (State* each : {state.get(), before_sparse.get(), after_sparse.get()}) bench.prefill(*each, std::span(tokens).first(100));
  for (State* each : {state.get(), after_sparse.get()}) bench.sparse_prefill(*each, std::span(tokens).subspan(100, 320));
  bench.prefill(*after_sparse, std::span(tokens).subspan(420, 90));
  bench.prefill(*state, std::span(tokens).subspan(420));

  CHECK(state->has_sparse_prefill());
  for (const std::int64_t inside : {101, 164, 300, 419}) CHECK_FALSE(state->can_rewind(inside));
  bench.rewind(*state, 510);
  CHECK(bench.save(*state) == bench.save(*after_sparse));
  CHECK(state->can_rewind(420));
  bench.rewind(*state, 100);
  CHECK_FALSE(state->has_sparse_prefill());
  CHECK(bench.save(*state) == bench.save(*before_sparse));
}

TEST_CASE("forks are independent, and their window begins where they do") {
  for (const char* backend : {"reference", "delayed"}) {
    CAPTURE(backend);
    const AgentBench bench(backend);
    const std::vector<std::int32_t> tokens = random_tokens(500);
    const auto parent = bench.state(with_window(4096));
    bench.prefill(*parent, std::span(tokens).first(150));
    const Bytes at_fork = bench.save(*parent);

    const auto fork = bench.fork(*parent);
    bench.prefill(*fork, std::span(tokens).subspan(150, 200));
    CHECK(bench.save(*parent) == at_fork);
    const Bytes fork_ahead = bench.save(*fork);
    bench.decode(*parent, std::span(tokens).subspan(400, 30));
    CHECK(bench.save(*fork) == fork_ahead);

    CHECK(fork->oldest_rewind_position() == 150);
    bench.rewind(*fork, 200);
    bench.rewind(*fork, 150);
    bench.rewind(*parent, 150);
    fork->forget_last_logits();
    parent->forget_last_logits();
    CHECK(bench.save(*fork) == bench.save(*parent));
  }
}

TEST_CASE("a fork of a fork of a fork, each released before its child, holds everything") {
  const AgentBench bench;
  const std::vector<std::int32_t> tokens = random_tokens(200);
  auto state = bench.state();
  const auto expected = bench.state();
  for (int i = 0; i < 60; ++i) {
    state = bench.fork(*state);
    bench.decode(*state, std::span(tokens).subspan(static_cast<std::size_t>(i), 1));
    bench.decode(*expected, std::span(tokens).subspan(static_cast<std::size_t>(i), 1));
  }
  CHECK(bench.save(*state) == bench.save(*expected));
}

TEST_CASE("an invalid state is mended by rewinding and by reset") {
  const AgentBench bench;
  const std::vector<std::int32_t> tokens = random_tokens(200);
  const auto state = bench.state(with_window(4096)), fresh = bench.state();
  bench.prefill(*state, tokens);

  state->invalidate();
  CHECK(bench.try_prefill(*state, tokens).code() == CAIRN_STATUS_STATE_INVALID);
  CHECK(state->can_rewind(128));
  bench.rewind(*state, 128);
  CHECK(state->is_valid());
  CHECK(bench.save(*state) == read_directly(bench, tokens, 128));

  state->invalidate();
  AgentBench::require_ok(state->reset(*bench.queue));
  CHECK(state->is_valid());
  CHECK(bench.save(*state) == bench.save(*fresh));
}

TEST_CASE("reset leaves nothing behind: the state reads on as a fresh one") {
  const AgentBench bench("delayed");
  const std::vector<std::int32_t> tokens = random_tokens(300);
  const auto state = bench.state(with_window(256)), fresh = bench.state(with_window(256));
  bench.prefill(*state, tokens);
  const auto fork = bench.fork(*state);

  AgentBench::require_ok(state->reset(*bench.queue));
  CHECK(bench.save(*state, true) == bench.save(*fresh, true));
  bench.prefill(*state, std::span(tokens).first(90));
  bench.prefill(*fresh, std::span(tokens).first(90));

  CHECK(bench.save(*state, true) == bench.save(*fresh, true));
  CHECK(fork->position() == 300);
}

TEST_CASE("memory for rewinding follows the window, not the length of a call") {
  const AgentBench bench("cpu");
  const std::vector<std::int32_t> tokens = random_tokens(4000);
  const auto at_once = bench.state(with_window(256)), in_pieces = bench.state(with_window(256));
  bench.prefill(*at_once, tokens);
  for (std::size_t at = 0; at < tokens.size(); at += 64)
    bench.prefill(*in_pieces, std::span(tokens).subspan(at, std::min<std::size_t>(64, tokens.size() - at)));

  const StateMemory memory = at_once->memory(), expected = in_pieces->memory();
  CHECK(memory.held < 2 * expected.held);
  CHECK(memory.rewind < memory.held);
  CHECK(bench.save(*at_once) == bench.save(*in_pieces));
  for (const std::int64_t position : {3999, 3900, 3744}) {
    CHECK(at_once->can_rewind(position));
    bench.rewind(*at_once, position);
    CHECK(bench.save(*at_once) == read_directly(bench, tokens, static_cast<std::size_t>(position)));
  }
}

TEST_CASE("checkpoints in steady state allocate nothing") {
  const AgentBench bench("cpu");
  const auto state = bench.state(with_window(256));
  const std::vector<std::int32_t> tokens = random_tokens(2000);
  bench.decode(*state, std::span(tokens).first(1400));

  const std::uint64_t before = allocator_counters().total_count;
  bench.decode(*state, std::span(tokens).subspan(1400));

  CHECK(allocator_counters().total_count == before);
}

}  // namespace cairn
