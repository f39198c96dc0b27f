// What an agent's host relies on, on the sample model: forks, rewinding, batches, split prompts.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstring>

#include "agent.h"

namespace cairn_test {
namespace {

const Agent& agent() {
  static const Agent shared(CAIRN_SAMPLE_MODEL, "cpu", 2);
  return shared;
}

std::vector<int32_t> prompt_tokens(size_t count, int flavour = 0) {
  std::string text;
  for (int line = flavour; text.size() < count; ++line) {
    text += "Note: The price of the round table is " + std::to_string(100 + line * 13 % 800) + ".\nThe stove is cold.\n";
  }
  std::vector<int32_t> tokens = agent().tokens_of(text);
  tokens.resize(count);
  return tokens;
}

State state_after(std::span<const int32_t> tokens, int64_t window = 0) {
  State state = agent().new_state(window);
  agent().read(state.get(), tokens);
  return state;
}

std::vector<float> copy(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::string answer(cairn_state* state, const std::string& question) {
  const std::vector<int32_t> tokens = agent().tokens_of("\nQ: " + question + "\nA: ");
  agent().read(state, std::span(tokens).subspan(1));
  std::string said;
  for (int32_t token = 0; said.size() < 32;) {
    token = greedy(last_logits(agent(), state));
    if (token == '\n') break;
    said.push_back(static_cast<char>(token));
    agent().decode(state, token);
  }
  return said;
}

}  // namespace

TEST_CASE("the model answers from memory") {
  const State state = state_after(
      agent().tokens_of("Note: The code of Marlen Tovik is 4821.\nNote: The iron gate has the colour teal."));

  CHECK(answer(Agent::fork(state.get()).get(), "What is the code of Marlen Tovik?") == "4821");
  CHECK(answer(Agent::fork(state.get()).get(), "Which colour does the iron gate have?") == "teal");
}

TEST_CASE("a fork and its origin are independent, both ways") {
  const State origin = state_after(prompt_tokens(200));
  const std::vector<unsigned char> before = snapshot_of(origin.get());

  const State fork = Agent::fork(origin.get());
  CHECK(snapshot_of(fork.get()) == before);
  agent().read(fork.get(), prompt_tokens(100, 5));
  CHECK(snapshot_of(origin.get()) == before);

  const State second = Agent::fork(origin.get());
  agent().read(origin.get(), prompt_tokens(70, 9));
  CHECK(snapshot_of(second.get()) == before);
}

TEST_CASE("a fork shares what neither has written") {
  const State origin = state_after(prompt_tokens(200));

  const State fork = Agent::fork(origin.get());

  CHECK(info_of(fork.get()).bytes_shared > 0);
  CHECK(info_of(fork.get()).position == 200);
}

TEST_CASE("rewinding is bit-equal to never having read the tokens") {
  const std::vector<int32_t> tokens = prompt_tokens(700);
  for (const size_t kept : {65u, 128u, 300u, 511u, 512u, 640u}) {
    CAPTURE(kept);
    const State never = state_after(std::span(tokens).first(kept), 1024);
    const State state = state_after(std::span(tokens).first(kept), 1024);
    agent().read(state.get(), std::span(tokens).subspan(kept));

    int32_t can = 0;
    check(cairn_state_can_rewind(state.get(), static_cast<int64_t>(kept), &can));
    REQUIRE(can == 1);
    check(cairn_state_rewind(state.get(), static_cast<int64_t>(kept)));

    CHECK(snapshot_of(state.get()) == snapshot_of(never.get()));
    agent().decode(state.get(), 'x');
    const std::vector<float> after = copy(agent().logits(0));
    agent().decode(never.get(), 'x');
    CHECK(same_bits(after, agent().logits(0)));
  }
}

TEST_CASE("rewinding over decoded tokens is bit-equal too") {
  const State never = state_after(prompt_tokens(90), 256);
  const State state = state_after(prompt_tokens(90), 256);
  for (int step = 0; step < 100; ++step) agent().decode(state.get(), 'a' + step % 26);

  check(cairn_state_rewind(state.get(), 90));

  CHECK(snapshot_of(state.get()) == snapshot_of(never.get()));
}

TEST_CASE("a position outside the window is refused and nothing changes") {
  const State state = state_after(prompt_tokens(400), 128);
  const std::vector<unsigned char> before = snapshot_of(state.get());
  int32_t can = 1;

  check(cairn_state_can_rewind(state.get(), 3, &can));

  CHECK(can == 0);
  CHECK(cairn_state_rewind(state.get(), 3) == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(cairn_state_rewind(state.get(), 401) == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(snapshot_of(state.get()) == before);
}

TEST_CASE("a batch of N equals N singles, bit for bit: prefill and decode") {
  const size_t lengths[] = {1, 63, 64, 65, 200, 5, 130};
  std::vector<std::vector<int32_t>> tokens;
  std::vector<State> together, alone;
  std::vector<cairn_sequence> sequences;
  for (const size_t length : lengths) tokens.push_back(prompt_tokens(length, static_cast<int>(length)));
  for (const std::vector<int32_t>& prompt : tokens) {
    together.push_back(agent().new_state());
    sequences.push_back({together.back().get(), prompt.data(), static_cast<int64_t>(prompt.size()), CAIRN_LOGITS_LAST, 0});
  }

  agent().read_batch(sequences);
  std::vector<std::vector<float>> rows;
  for (size_t i = 0; i < tokens.size(); ++i) rows.push_back(copy(agent().logits(static_cast<int64_t>(i))));
  for (size_t i = 0; i < tokens.size(); ++i) {
    CAPTURE(lengths[i]);
    alone.push_back(state_after(tokens[i]));
    CHECK(same_bits(agent().logits(0), rows[i]));
    CHECK(snapshot_of(alone[i].get()) == snapshot_of(together[i].get()));
  }

  std::vector<cairn_state*> handles;
  std::vector<int32_t> next;
  for (const State& state : together) handles.push_back(state.get());
  for (size_t i = 0; i < handles.size(); ++i) next.push_back(static_cast<int32_t>('a' + i));
  check(cairn_decode(agent().stream(), handles.data(), next.data(), static_cast<int32_t>(next.size())));
  for (size_t i = 0; i < tokens.size(); ++i) rows[i] = copy(agent().logits(static_cast<int64_t>(i)));
  for (size_t i = 0; i < tokens.size(); ++i) {
    CAPTURE(lengths[i]);
    agent().decode(alone[i].get(), next[i]);
    CHECK(same_bits(agent().logits(0), rows[i]));
    CHECK(snapshot_of(alone[i].get()) == snapshot_of(together[i].get()));
  }
}

TEST_CASE("a dense prompt split at multiples of 64 gives the same bits") {
  const std::vector<int32_t> tokens = prompt_tokens(500);
  const State whole = state_after(tokens);
  for (const size_t split : {64u, 128u, 448u}) {
    CAPTURE(split);
    const State state = state_after(std::span(tokens).first(split));
    agent().read(state.get(), std::span(tokens).subspan(split));

    CHECK(snapshot_of(state.get()) == snapshot_of(whole.get()));
  }
}

}  // namespace cairn_test
