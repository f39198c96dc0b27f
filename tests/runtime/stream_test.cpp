// Streams on small models of every mechanism: what a call promises about bits, batches and failures.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "runtime/support/allocator.h"
#include "tests/runtime/stream_bench.h"
#include "tests/support/faulty_allocator.h"

namespace cairn::test {

TEST_CASE("prefill equals decoding token by token, within rounding") {
  for (const char* backend : {"reference", "cpu"}) {
    CAPTURE(backend);
    const StreamBench bench(backend);
    const std::vector<std::int32_t> tokens = random_tokens(150);
    const auto read = bench.state(), stepped = bench.state();

    bench.prefill(*read, tokens);
    for (const std::int32_t token : tokens) bench.decode(*stepped, token);

    CHECK(read->position() == 150);
    CHECK(largest_difference(last_logits(*read), last_logits(*stepped)) < 2e-3);
  }
}

TEST_CASE("the cpu backend computes what the reference computes") {
  const StreamBench reference("reference"), cpu("cpu");
  for (const std::size_t count : {1, 63, 64, 65, 200}) {
    CAPTURE(count);
    const std::vector<std::int32_t> tokens = random_tokens(count, count);
    const auto expected = reference.state(), actual = cpu.state();

    reference.prefill(*expected, tokens);
    cpu.prefill(*actual, tokens);

    CHECK(largest_difference(last_logits(*expected), last_logits(*actual)) < 2e-3);
  }
}

TEST_CASE("keys of one number may have decays of low rank, or not") {
  for (const std::int32_t rank : {0, 3}) {
    CAPTURE(rank);
    std::vector<LayerConfig> layers = {delta_layer(Mechanism::kKda), delta_layer(Mechanism::kGdn2)};
    for (LayerConfig& layer : layers) {
      layer.delta.key_dim = 1;
      layer.delta.decay_rank = rank;
    }
    const auto model = random_model(layers, 5);
    const StreamBench reference("reference", model), cpu("cpu", model);
    const std::vector<std::int32_t> tokens = random_tokens(65);
    const auto expected = reference.state(), actual = cpu.state();

    reference.prefill(*expected, tokens);
    cpu.prefill(*actual, tokens);

    CHECK(largest_difference(last_logits(*expected), last_logits(*actual)) < 2e-3);
  }
}

TEST_CASE("a prompt cut at a multiple of 64 gives the same bits") {
  for (const char* backend : {"reference", "cpu"}) {
    CAPTURE(backend);
    const StreamBench bench(backend);
    const std::vector<std::int32_t> tokens = random_tokens(300);
    const auto whole = bench.state(), cut = bench.state();

    bench.prefill(*whole, tokens);
    bench.prefill(*cut, std::span(tokens).first(64));
    bench.prefill(*cut, std::span(tokens).subspan(64, 192));
    bench.prefill(*cut, std::span(tokens).subspan(256));

    CHECK(same_bits(last_logits(*whole), last_logits(*cut)));
  }
}

TEST_CASE("a ragged batch gives every sequence the bits it gets alone") {
  for (const char* backend : {"reference", "cpu"}) {
    CAPTURE(backend);
    const StreamBench bench(backend);
    const std::vector<std::int32_t> tokens = random_tokens(400);
    const std::size_t counts[] = {1, 130, 0, 64, 65};
    std::vector<std::unique_ptr<State>> together, alone;
    std::vector<SequenceInput> batch;
    for (const std::size_t count : counts) {
      together.push_back(bench.state());
      alone.push_back(bench.state());
      batch.push_back({together.back().get(), std::span(tokens).first(count), LogitsWanted::kLast});
    }

    REQUIRE(bench.stream->prefill(batch, {}, nullptr).ok());
    CHECK(bench.stream->logits_rows() == 4);
    for (std::size_t i = 0; i < alone.size(); ++i) bench.prefill(*alone[i], std::span(tokens).first(counts[i]));

    std::vector<State*> states;
    for (std::size_t i = 0; i < alone.size(); ++i) {
      CHECK(same_bits(last_logits(*together[i]), last_logits(*alone[i])));
      states.push_back(together[i].get());
    }
    const std::vector<std::int32_t> next = {1, 2, 3, 4, 5};
    REQUIRE(bench.stream->decode(states, next).ok());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      bench.decode(*alone[i], next[i]);
      CHECK(same_bits(last_logits(*together[i]), last_logits(*alone[i])));
    }
  }
}

TEST_CASE("all logits of a prompt are the last logits of its prefixes of whole chunks") {
  const StreamBench bench("cpu");
  const std::vector<std::int32_t> tokens = random_tokens(200);
  const auto all = bench.state();
  const SequenceInput input{all.get(), tokens, LogitsWanted::kAll};

  REQUIRE(bench.stream->prefill({&input, 1}, {}, nullptr).ok());
  REQUIRE(bench.stream->logits_rows() == 200);
  std::vector<std::vector<float>> rows;
  for (const std::int64_t end : {64, 128, 192}) rows.emplace_back(bench.stream->logits(end - 1).begin(), bench.stream->logits(end - 1).end());

  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto prefix = bench.state();
    bench.prefill(*prefix, std::span(tokens).first(64 * (i + 1)));
    CHECK(same_bits(rows[i], last_logits(*prefix)));
  }
}

TEST_CASE("a refused call changes no state") {
  const StreamBench bench("cpu");
  StateOptions small;
  small.kv_capacity_tokens = 70;
  const auto state = bench.state(small), other = bench.state(small);
  const std::vector<std::int32_t> tokens = random_tokens(64);
  bench.prefill(*state, tokens);
  const std::vector<float> before = last_logits(*state);

  const std::vector<std::int32_t> bad = {1, 40};
  const SequenceInput out_of_range{state.get(), bad, LogitsWanted::kLast};
  CHECK(bench.stream->prefill({&out_of_range, 1}, {}, nullptr).code() == CAIRN_STATUS_INVALID_ARGUMENT);

  const std::vector<SequenceInput> full = {{other.get(), std::span(tokens).first(5)}, {state.get(), std::span(tokens).first(7)}};
  CHECK(bench.stream->prefill(full, {}, nullptr).code() == CAIRN_STATUS_STATE_FULL);

  const std::vector<SequenceInput> twice = {{state.get(), std::span(tokens).first(2)}, {state.get(), std::span(tokens).first(2)}};
  CHECK(bench.stream->prefill(twice, {}, nullptr).code() == CAIRN_STATUS_INVALID_ARGUMENT);

  CHECK(state->position() == 64);
  CHECK(other->position() == 0);
  CHECK(same_bits(before, last_logits(*state)));
  bench.decode(*state, 1);
  CHECK(state->position() == 65);
}

TEST_CASE("a cancelled prefill stands at a chunk border and can go on") {
  const StreamBench bench("cpu");
  const std::vector<std::int32_t> tokens = random_tokens(1500);
  const auto state = bench.state(), whole = bench.state();
  const SequenceInput input{state.get(), tokens, LogitsWanted::kLast};

  const Status status = bench.stream->prefill({&input, 1}, {}, [](std::uint64_t done, std::uint64_t) { return done < 600; });
  CHECK(status.code() == CAIRN_STATUS_CANCELLED);
  CHECK(state->position() % 64 == 0);
  CHECK(state->position() >= 600);
  CHECK(state->is_valid());
  bench.prefill(*state, std::span(tokens).subspan(static_cast<std::size_t>(state->position())));
  bench.prefill(*whole, tokens);

  CHECK(same_bits(last_logits(*state), last_logits(*whole)));
}

TEST_CASE("a call that finds no memory changes no state, and the stream works on") {
  const auto model = random_model({delta_layer(Mechanism::kGdn), delta_layer(Mechanism::kKda)}, 1);
  const std::vector<std::int32_t> tokens = random_tokens(5);
  for (const char* backend : {"cpu", "delayed"}) {
    CAPTURE(backend);
    const StreamBench calm(backend, model);
    const auto alone = calm.state();
    calm.prefill(*alone, tokens);
    calm.decode(*alone, 7);
    calm.decode(*alone, 9);
    bool has_failed = true;
    for (long number = 0; has_failed; ++number) {
      CAPTURE(number);
      FaultyAllocator allocator;
      const StreamBench bench(backend, model);
      const auto state = bench.state(), second = bench.state(), third = bench.state();
      bench.prefill(*state, tokens);
      bench.decode(*state, 7);
      const std::span<const std::int32_t> few(tokens.data(), 2);  // only what there is for each sequence must grow
      const std::vector<SequenceInput> batch = {{second.get(), few, LogitsWanted::kNone},
                                                {third.get(), few, LogitsWanted::kNone}};

      allocator.arm(number, false);
      const Status status = bench.stream->prefill(batch, {}, nullptr);
      allocator.disarm();

      has_failed = !status.ok();
      if (has_failed) CHECK(status.code() == CAIRN_STATUS_OUT_OF_MEMORY);
      for (const State* each : {second.get(), third.get()}) {
        CHECK(each->is_valid());
        CHECK(each->position() == (has_failed ? 0 : 2));
      }
      bench.decode(*state, 9);
      CHECK(same_bits(last_logits(*state), last_logits(*alone)));
    }
  }
}

TEST_CASE("decode allocates nothing after warm-up") {
  const StreamBench bench("cpu");
  std::vector<std::unique_ptr<State>> owned;
  std::vector<State*> states;
  for (int i = 0; i < 3; ++i) {
    owned.push_back(bench.state());
    states.push_back(owned.back().get());
  }
  const std::vector<std::int32_t> tokens = {1, 2, 3};
  for (int i = 0; i < 4; ++i) REQUIRE(bench.stream->decode(states, tokens).ok());

  const std::uint64_t before = allocator_counters().total_count;
  for (int i = 0; i < 50; ++i) REQUIRE(bench.stream->decode(states, tokens).ok());

  CHECK(allocator_counters().total_count == before);
}

TEST_CASE("a sparse prefill has the scratch of its own options, whatever was read before") {
  const StreamBench bench("delayed", random_model({delta_layer(Mechanism::kGdn)}, 6));
  const std::vector<std::int32_t> tokens = random_tokens(64 * 4);
  for (const bool full_inverse : {false, true}) {
    CAPTURE(full_inverse);
    SparsePrefill sparse;
    sparse.enabled = true;
    sparse.min_chunks = 1;
    sparse.full_inverse = full_inverse;
    const auto state = bench.state();
    const SequenceInput input{state.get(), tokens, LogitsWanted::kLast};

    const Status status = bench.stream->prefill({&input, 1}, sparse, nullptr);

    CHECK_MESSAGE(status.ok(), status.message());
  }
}

/// `original` with elements [first, first + count) of one tensor that are no numbers.
std::shared_ptr<const ModelDescription> poisoned_model(const ModelDescription& original, const std::string& name,
                                                       std::ptrdiff_t first, std::int32_t count) {
  return changed_model(original, name, [=](std::vector<float>& values) {
    std::fill_n(values.begin() + first, count, std::numeric_limits<float>::quiet_NaN());
  });
}

TEST_CASE("a sequence of numbers that are none touches no other sequence of its batch") {
  const auto whole = every_mechanism_model(1);
  const auto model = poisoned_model(*whole, "embed.weight", 7 * whole->model_dim, whole->model_dim);
  const std::vector<std::int32_t> poison(130, 7), tokens(130, 3);
  for (const char* backend : {"reference", "cpu"}) {
    CAPTURE(backend);
    const StreamBench bench(backend, model);
    const auto alone = bench.state(), poisoned = bench.state(), beside = bench.state();
    bench.prefill(*alone, tokens);
    bench.decode(*alone, 5);

    const std::vector<SequenceInput> batch = {{poisoned.get(), poison}, {beside.get(), tokens}};
    REQUIRE(bench.stream->prefill(batch, {}, nullptr).ok());
    const std::vector<State*> states = {poisoned.get(), beside.get()};
    REQUIRE(bench.stream->decode(states, std::vector<std::int32_t>{7, 5}).ok());

    CHECK(beside->is_valid());
    CHECK(same_bits(last_logits(*beside), last_logits(*alone)));
  }
}

TEST_CASE("a gate that is no number shows in a prefill, as it does in decode") {
  const std::vector<std::int32_t> tokens = random_tokens(130);
  const std::pair<LayerConfig, const char*> cases[] = {
      {delta_layer(Mechanism::kGdn), "layers.0.mixer.dt_bias"},
      {delta_layer(Mechanism::kKda), "layers.0.mixer.dt_bias"},
      {delta_layer(Mechanism::kGdn2), "layers.0.mixer.dt_bias"},
      {sse_layer(), "layers.0.mixer.a_bias"}};
  for (const auto& [layer, name] : cases) {
    const auto model = poisoned_model(*random_model({layer}, 1), name, 1, 1);
    for (const char* backend : {"reference", "cpu"}) {
      CAPTURE(mechanism_name(layer.mechanism));
      CAPTURE(backend);
      const StreamBench bench(backend, model);
      const auto read = bench.state(), stepped = bench.state();

      bench.prefill(*read, tokens);
      bench.decode(*stepped, tokens[0]);

      CHECK_FALSE(std::isfinite(last_logits(*read)[0]));
      CHECK_FALSE(std::isfinite(last_logits(*stepped)[0]));
    }
  }
}

}  // namespace cairn::test
