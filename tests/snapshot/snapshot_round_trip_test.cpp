// What goes in comes out, and equal states give equal bytes, whatever their history.
#include <doctest/doctest.h>

#include <algorithm>
#include <ctime>

#include "runtime/model/cairn_file_writer.h"
#include "tests/snapshot/forged_snapshot.h"
#include "tests/support/agent_handles.h"

namespace cairn {
namespace {

using test::AgentBench;
using test::Bytes;
using test::random_tokens;
using test::with_window;

}  // namespace

TEST_CASE("a restored state saves the same bytes and goes on with the same bits, at every awkward length") {
  for (const char* backend : {"reference", "cpu", "delayed"}) {
    CAPTURE(backend);
    const AgentBench bench(backend);
    const std::vector<std::int32_t> tokens = random_tokens(300);
    for (const std::size_t length : {0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257}) {
      CAPTURE(length);
      const auto state = bench.state(), restored = bench.state();
      bench.prefill(*state, std::span(tokens).first(length));
      const Bytes bytes = bench.save(*state);

      bench.restore(*restored, bytes);

      CHECK(restored->position() == static_cast<std::int64_t>(length));
      CHECK(bench.save(*restored) == bytes);
      bench.decode(*state, std::span(tokens).last(5));
      bench.decode(*restored, std::span(tokens).last(5));
      CHECK(bench.save(*restored) == bench.save(*state));
    }
  }
}

TEST_CASE("a restore replaces whatever the state held, a hundred times with the same result") {
  const AgentBench bench;
  const std::vector<std::int32_t> tokens = random_tokens(200);
  const auto source = bench.state(), target = bench.state();
  bench.prefill(*source, std::span(tokens).first(70));
  const Bytes bytes = bench.save(*source);
  bench.decode(*source, std::span(tokens).first(3));
  const Bytes ahead = bench.save(*source);

  for (int i = 0; i < 100; ++i) {
    bench.restore(*target, bytes);
    REQUIRE(bench.save(*target) == bytes);
    bench.decode(*target, std::span(tokens).first(3));
    REQUIRE(bench.save(*target) == ahead);
  }
}

TEST_CASE("forks, rewinds and the order of rows do not change the bytes") {
  const AgentBench bench;
  const std::vector<std::int32_t> tokens = random_tokens(400);
  const auto plain = bench.state();
  bench.prefill(*plain, std::span(tokens).first(128));
  bench.decode(*plain, std::span(tokens).subspan(128, 40));

  const auto wandering = bench.state(with_window(1000));
  bench.prefill(*wandering, std::span(tokens).first(64));
  bench.prefill(*wandering, std::span(tokens).subspan(64, 64));
  const auto fork = bench.fork(*wandering);
  bench.prefill(*wandering, std::span(tokens).subspan(200, 150));
  bench.rewind(*wandering, 128);
  for (State* state : {wandering.get(), fork.get()}) bench.decode(*state, std::span(tokens).subspan(128, 40));
  const auto restored = bench.state();
  bench.restore(*restored, bench.save(*fork));

  const Bytes expected = bench.save(*plain);
  CHECK(bench.save(*wandering) == expected);
  CHECK(bench.save(*fork) == expected);
  CHECK(bench.save(*restored) == expected);
}

TEST_CASE("convolutions of one tap keep nothing, and are saved, restored, forked and rewound like others") {
  std::vector<LayerConfig> layers = {test::sse_layer()};
  layers[0].sse.shared_conv_kernel = 1;
  for (const Mechanism mechanism : {Mechanism::kGdn, Mechanism::kKda, Mechanism::kDeltaNet, Mechanism::kGdn2}) {
    layers.push_back(test::delta_layer(mechanism));
    layers.back().delta.conv_kernel = 1;
  }
  const std::vector<std::int32_t> tokens = random_tokens(200);
  for (const char* backend : {"reference", "cpu", "delayed"}) {
    CAPTURE(backend);
    const AgentBench bench(backend, test::random_model(layers, 9));
    const auto state = bench.state(with_window(1000)), restored = bench.state(), plain = bench.state();
    bench.prefill(*state, std::span(tokens).first(130));
    bench.decode(*state, std::span(tokens).subspan(130, 20));
    const Bytes bytes = bench.save(*state);
    bench.restore(*restored, bytes);
    CHECK(bench.save(*restored) == bytes);

    const auto fork = bench.fork(*state);
    bench.decode(*fork, std::span(tokens).subspan(150));
    bench.decode(*restored, std::span(tokens).subspan(150));
    CHECK(bench.save(*fork) == bench.save(*restored));

    bench.rewind(*state, 130);
    bench.prefill(*plain, std::span(tokens).first(130));
    CHECK(bench.save(*state) == bench.save(*plain));
  }
}

TEST_CASE("a snapshot of one backend is read by another") {
  const AgentBench reference("reference"), cpu("cpu"), delayed("delayed");
  const auto source = reference.state();
  reference.prefill(*source, random_tokens(150));
  const Bytes bytes = reference.save(*source);

  for (const AgentBench* bench : {&cpu, &delayed}) {
    const auto target = bench->state();
    bench->restore(*target, bytes);
    CHECK(bench->save(*target) == bytes);
  }
}

TEST_CASE("the rewind window travels when asked, and only then") {
  for (const char* backend : {"reference", "delayed"}) {
    CAPTURE(backend);
    const AgentBench bench(backend);
    const std::vector<std::int32_t> tokens = random_tokens(600);
    const auto source = bench.state(with_window(256));
    bench.prefill(*source, std::span(tokens).first(500));
    bench.decode(*source, std::span(tokens).subspan(500, 70));
    const Bytes with_rewind = bench.save(*source, true), without = bench.save(*source, false);
    CHECK(with_rewind.size() > without.size());

    const auto same = bench.state(with_window(256)), none = bench.state(), shorter = bench.state(with_window(100)),
               fresh_window = bench.state(with_window(256));
    for (State* target : {same.get(), none.get(), shorter.get()}) bench.restore(*target, with_rewind);
    bench.restore(*fresh_window, without);

    CHECK(bench.save(*same, true) == with_rewind);
    CHECK(same->oldest_rewind_position() == source->oldest_rewind_position());
    CHECK(none->oldest_rewind_position() == 570);
    CHECK(fresh_window->oldest_rewind_position() == 570);
    CHECK(shorter->oldest_rewind_position() > source->oldest_rewind_position());
    CHECK(shorter->can_rewind(470));
    for (const std::int64_t position : {560, 500, 480}) {
      bench.rewind(*source, position);
      for (State* target : {same.get(), shorter.get()}) {
        bench.rewind(*target, position);
        CHECK(bench.save(*target) == bench.save(*source));
      }
    }
    for (const auto& target : {same.get(), source.get()}) {
      bench.rewind(*target, 350);
      bench.decode(*target, std::span(tokens).first(100));
    }
    CHECK(bench.save(*same, true) == bench.save(*source, true));
  }
}

TEST_CASE("a state with rarer checkpoints keeps what its own spacing asks for, and reaches the same positions") {
  const AgentBench bench("cpu", test::random_model({test::delta_layer(Mechanism::kGdn)}, 1));
  const std::vector<std::int32_t> tokens = random_tokens(8000);
  const auto source = bench.state(with_window(8192, 64)), target = bench.state(with_window(8192, 8192));
  bench.prefill(*source, std::span(tokens).first(7000));
  bench.sparse_prefill(*source, std::span(tokens).subspan(7000, 200));
  bench.prefill(*source, std::span(tokens).subspan(7200, 700));

  bench.restore(*target, bench.save(*source, true));

  CHECK(target->oldest_rewind_position() == 0);
  CHECK(target->memory().rewind < source->memory().rewind / 4);
  for (const std::int64_t position : {7700, 7200, 7000, 6999, 100}) {
    bench.rewind(*source, position);
    bench.rewind(*target, position);
    bench.decode(*source, std::span(tokens).first(1));
    bench.decode(*target, std::span(tokens).first(1));
    CHECK(bench.save(*target) == bench.save(*source));
  }
}

TEST_CASE("a window of very many short turns comes back, and many checkpoints in it are looked up quickly") {
  const AgentBench bench("cpu", test::random_model({test::delta_layer(Mechanism::kDeltaNet)}, 1));
  const auto window = with_window(1 << 20, 1 << 20);
  const auto source = bench.state(window), target = bench.state(window);
  bench.prefill(*source, random_tokens(64));
  test::ForgedSnapshot forged = test::ForgedSnapshot::of(bench.save(*source, true));
  constexpr std::int64_t kTurns = 600000;  // a token is read, a token is said
  forged.contents.position = kTurns;
  forged.contents.token_count = kTurns;
  forged.contents.spans.clear();
  for (std::int64_t i = 0; i < kTurns; ++i) {
    forged.contents.spans.push_back({i, 1, i % 2 == 0 ? Phase::kPrefill : Phase::kDecode, false});
  }
  forged.sections["rewind.tokens"] = {DType::kI32, {kTurns}, Bytes(4 * kTurns)};

  bench.restore(*target, forged.build());

  CHECK(target->position() == kTurns);
  CHECK(target->oldest_rewind_position() == 0);
  CHECK(bench.save(*target, true) == forged.build());

  forged.contents.slots.clear();
  std::erase_if(forged.sections, [](const auto& section) { return section.first != "rewind.tokens"; });
  forged.contents.has_last_logits = false;
  forged.contents.checkpoints.resize(1);
  forged.contents.checkpoints[0].row_counts.clear();
  while (forged.contents.checkpoints.size() < 200000) {
    forged.contents.checkpoints.push_back({static_cast<std::int64_t>(forged.contents.checkpoints.size()), false, {}});
  }
  const Bytes bytes = forged.build();
  const std::clock_t begin = std::clock();
  AgentBench::take(SnapshotReader::inspect(memory_source(bytes.data(), bytes.size()), {}));
  CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 20);  // comparing all pairs takes minutes
}

TEST_CASE("a sparse prefill is recorded, and its snapshot goes on with the same bits") {
  const AgentBench bench;
  const std::vector<std::int32_t> tokens = random_tokens(500);
  const auto source = bench.state(with_window(1000)), target = bench.state(with_window(1000));
  bench.prefill(*source, std::span(tokens).first(64));
  bench.sparse_prefill(*source, std::span(tokens).subspan(64, 320));
  bench.prefill(*source, std::span(tokens).subspan(384, 70));

  bench.restore(*target, bench.save(*source, true));

  CHECK(target->has_sparse_prefill());
  CHECK_FALSE(target->can_rewind(200));
  for (State* state : {source.get(), target.get()}) bench.rewind(*state, 400);
  CHECK(bench.save(*target, true) == bench.save(*source, true));
  for (State* state : {source.get(), target.get()}) bench.rewind(*state, 30);
  CHECK_FALSE(target->has_sparse_prefill());
  CHECK(bench.save(*target) == bench.save(*source));
}

TEST_CASE("a snapshot holds no byte that is not state: padding and unread memory are zero or absent") {
  // The delayed backend fills fresh memory with 0xff, so anything copied from beyond the state would show.
  const AgentBench bench("delayed"), reference("reference");
  const auto state = bench.state(), expected = reference.state();
  const std::vector<std::int32_t> tokens = random_tokens(5);
  bench.prefill(*state, tokens);
  reference.prefill(*expected, tokens);

  CHECK(bench.save(*state) == reference.save(*expected));
}

TEST_CASE("an agent of years goes on: positions pass 2^31 and 2^32") {
  const AgentBench bench("reference", test::random_model({test::delta_layer(Mechanism::kGdn), test::attention_layer(8), test::sdm_layer()}, 4));
  const std::vector<std::int32_t> tokens = random_tokens(100);
  const auto young = bench.state();
  bench.prefill(*young, tokens);
  test::ForgedSnapshot forged = test::ForgedSnapshot::of(bench.save(*young));
  for (const std::int64_t position : {(std::int64_t{1} << 31) - 2, (std::int64_t{1} << 32) - 2, std::int64_t{1} << 50}) {
    CAPTURE(position);
    forged.contents.position = position;
    const auto old = bench.state(with_window(128)), again = bench.state(with_window(128));
    bench.restore(*old, forged.build());

    bench.decode(*old, std::span(tokens).first(5));
    bench.prefill(*old, tokens);
    CHECK(old->position() == position + 105);
    bench.restore(*again, bench.save(*old, true));
    for (State* state : {old.get(), again.get()}) bench.rewind(*state, position + 40);
    CHECK(bench.save(*again, true) == bench.save(*old, true));
  }
}

TEST_CASE("a state goes no further than its snapshot can say") {
  const AgentBench bench("reference", test::random_model({test::delta_layer(Mechanism::kGdn)}, 4));
  const std::vector<std::int32_t> tokens = random_tokens(3);
  const auto state = bench.state();
  bench.prefill(*state, tokens);
  test::ForgedSnapshot forged = test::ForgedSnapshot::of(bench.save(*state));
  forged.contents.position = kMaxPosition - 2;
  bench.restore(*state, forged.build());

  CHECK(bench.try_prefill(*state, tokens).code() == CAIRN_STATUS_LIMIT_EXCEEDED);
  CHECK(state->position() == kMaxPosition - 2);
  bench.prefill(*state, std::span(tokens).first(2));
  bench.restore(*state, bench.save(*state));
  CHECK(state->position() == kMaxPosition);
}

TEST_CASE("limits that the caller raised hold for all of a model's life: loading, saving, restoring") {
  LayerConfig layer;
  layer.mechanism = Mechanism::kDeltaNet;
  layer.delta.key_heads = layer.delta.value_heads = layer.delta.key_dim = layer.delta.value_dim = 1;
  layer.mlp.kind = MlpKind::kNone;
  VectorSink file;
  AgentBench::require_ok(write_cairn(*test::random_model(std::vector(4097, layer), 1), file));
  cairn_device* device = nullptr;
  REQUIRE(cairn_device_open(nullptr, &device) == CAIRN_STATUS_OK);
  cairn_limits limits = CAIRN_LIMITS_INIT;
  cairn_model_options options = CAIRN_MODEL_OPTIONS_INIT;
  options.limits = &limits;
  cairn_model* model = nullptr;
  cairn_state *state = nullptr, *restored = nullptr;
  const auto load = [&] { return cairn_model_load_from_memory(device, file.bytes().data(), file.bytes().size(), &options, &model); };

  CHECK(load() == CAIRN_STATUS_LIMIT_EXCEEDED);
  limits.max_layers = 4097;
  REQUIRE_MESSAGE(load() == CAIRN_STATUS_OK, cairn_last_error_message());
  REQUIRE(cairn_state_create(model, nullptr, &state) == CAIRN_STATUS_OK);
  REQUIRE(cairn_state_create(model, nullptr, &restored) == CAIRN_STATUS_OK);
  std::size_t size_bytes = 0;
  CHECK(cairn_state_save_to_memory(state, nullptr, &size_bytes, nullptr) == CAIRN_STATUS_BUFFER_TOO_SMALL);
  Bytes bytes(size_bytes);
  REQUIRE(cairn_state_save_to_memory(state, bytes.data(), &size_bytes, nullptr) == CAIRN_STATUS_OK);
  CHECK_MESSAGE(cairn_state_restore_from_memory(restored, bytes.data(), bytes.size(), nullptr) == CAIRN_STATUS_OK,
                cairn_last_error_message());

  cairn_state_release(state), cairn_state_release(restored), cairn_model_release(model), cairn_device_release(device);
}

TEST_CASE("inspection needs no model and tells what is inside") {
  const AgentBench bench;
  const auto state = bench.state(with_window(256));
  bench.prefill(*state, random_tokens(200));
  const Bytes bytes = bench.save(*state, true);

  const auto reader = SnapshotReader::inspect(memory_source(bytes.data(), bytes.size()), {});

  REQUIRE_MESSAGE(reader.ok(), reader.status().message());
  const SnapshotContents& contents = reader.value().contents();
  CHECK(contents.position == 200);
  CHECK(contents.kv_token_count == 200);
  CHECK(contents.fingerprint == bench.plan->state_layout()->fingerprint());
  CHECK(contents.slots.size() == bench.plan->state_layout()->slots().size());
  CHECK(contents.has_rewind);
  CHECK(contents.has_last_logits);
  const bool has_rows = std::any_of(contents.slots.begin(), contents.slots.end(), [](const auto& slot) { return slot.row_count > 0; });
  CHECK(has_rows);
}

}  // namespace cairn
