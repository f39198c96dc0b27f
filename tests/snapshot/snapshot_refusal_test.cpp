// What a reader must refuse, and that the refused state is byte for byte as before (reliability plan, cases 1 to 20 and
// 46 to 60).
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/snapshot/forged_snapshot.h"

namespace cairn {
namespace {

using test::AgentBench;
using test::Bytes;
using test::ForgedSnapshot;
using test::random_tokens;

StateOptions with_window(std::int64_t window) {
  StateOptions options = test::with_window(window);
  options.kv_capacity_tokens = 512;
  return options;
}

/// A state to be restored over, which must not change, and a good snapshot of another one.
struct Target {
  AgentBench bench;
  std::unique_ptr<State> state, other;
  Bytes before, other_before, good;

  explicit Target(const char* backend = "reference") : bench(backend) {
    const std::vector<std::int32_t> tokens = random_tokens(300);
    state = bench.state(with_window(256));
    bench.prefill(*state, std::span(tokens).first(90));
    other = bench.fork(*state);
    before = bench.save(*state, true);
    other_before = bench.save(*other, true);
    const auto source = bench.state(with_window(256));
    bench.prefill(*source, tokens);
    good = bench.save(*source, true);
  }

  /// The message, for tests that look at it.
  std::string refuse(const Bytes& bytes, cairn_status code, const SnapshotReadOptions& options = {}) {
    const Status status = bench.try_restore(*state, bytes, options);
    CHECK_MESSAGE(status.code() == code, status.code(), ": ", status.message());
    CHECK(status.message().find('\n') == std::string::npos);
    CHECK(bench.save(*state, true) == before);
    CHECK(bench.save(*other, true) == other_before);
    return status.message();
  }
  void refuse_forged(cairn_status code, const std::function<void(ForgedSnapshot&)>& change) {
    ForgedSnapshot forged = ForgedSnapshot::of(good);
    change(forged);
    refuse(forged.build(), code);
  }
  ~Target() {  // the library is still usable, and the good snapshot is still good
    bench.restore(*state, good);
    CHECK(bench.save(*state, true) == good);
    bench.decode(*other, random_tokens(3));
  }
};

}  // namespace

TEST_CASE("a snapshot cut at any byte is refused") {
  Target target;
  for (std::size_t size = 0; size < target.good.size(); size = size < 4096 ? size + 1 : size + 61) {
    const Bytes cut(target.good.begin(), target.good.begin() + static_cast<std::ptrdiff_t>(size));
    const Status status = target.bench.try_restore(*target.state, cut);
    REQUIRE(!status.ok());
    REQUIRE(target.bench.save(*target.state, true) == target.before);
  }
  Bytes longer = target.good;
  longer.push_back(std::byte{0});
  target.refuse(longer, CAIRN_STATUS_FORMAT);
}

TEST_CASE("a flipped bit anywhere is refused, padding included") {
  Target target;
  Bytes damaged = target.good;
  std::size_t tried = 0;
  for (std::size_t byte = 0; byte < damaged.size(); byte = byte < 4096 ? byte + 1 : byte + 37) {
    for (const int bit : {static_cast<int>(byte * 7 % 8), static_cast<int>((byte * 3 + 5) % 8)}) {
      damaged[byte] ^= static_cast<std::byte>(1 << bit);
      const Status status = target.bench.try_restore(*target.state, damaged);
      REQUIRE_MESSAGE(!status.ok(), "byte ", byte, " bit ", bit);
      damaged[byte] = target.good[byte];
      if (++tried % 16 == 0) REQUIRE(target.bench.save(*target.state, true) == target.before);
    }
  }
  CHECK(damaged == target.good);
  CHECK(target.bench.save(*target.state, true) == target.before);
}

TEST_CASE("other files are named for what they are") {
  Target target;
  Bytes bytes(200);
  std::memcpy(bytes.data(), "GGUF", 4);
  CHECK(target.refuse(bytes, CAIRN_STATUS_FORMAT).find("GGUF") != std::string::npos);
  std::memcpy(bytes.data(), "PK\x03\x04", 4);
  CHECK(target.refuse(bytes, CAIRN_STATUS_FORMAT).find("ZIP") != std::string::npos);
  target.refuse(Bytes(200), CAIRN_STATUS_FORMAT);
  target.refuse(Bytes(200, std::byte{0xff}), CAIRN_STATUS_FORMAT);
  target.refuse(Bytes(), CAIRN_STATUS_FORMAT);
}

TEST_CASE("a newer major version is named with both numbers") {
  Target target;
  Bytes newer = target.good;
  newer[12] = std::byte{9};
  CHECK(target.refuse(newer, CAIRN_STATUS_VERSION).find('9') != std::string::npos);
}

TEST_CASE("a snapshot of another model, other weights or another M0 is a mismatch") {
  Target target;
  const AgentBench other_weights("reference", test::every_mechanism_model(2));
  const auto state = other_weights.state();
  other_weights.prefill(*state, random_tokens(20));
  target.refuse(other_weights.save(*state), CAIRN_STATUS_MISMATCH);

  auto model = test::every_mechanism_model(1);
  auto changed = std::make_shared<ModelDescription>(*model);
  changed->fingerprint[31] ^= 1;  // M0 is part of the fingerprint
  const AgentBench other_m0("reference", changed);
  const auto third = other_m0.state();
  target.refuse(other_m0.save(*third), CAIRN_STATUS_MISMATCH);
}

TEST_CASE("positions that cannot be are refused") {
  Target target;
  for (const std::int64_t position : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
    target.refuse_forged(CAIRN_STATUS_FORMAT, [&](ForgedSnapshot& forged) { forged.contents.position = position; });
  }
  target.refuse_forged(CAIRN_STATUS_FORMAT, [](ForgedSnapshot& forged) { forged.contents.position = 299; });
  target.refuse_forged(CAIRN_STATUS_FORMAT, [](ForgedSnapshot& forged) { forged.contents.kv_token_count = 299; });
  target.refuse_forged(CAIRN_STATUS_FORMAT, [](ForgedSnapshot& forged) { forged.contents.kv_token_count = -1; });
}

TEST_CASE("more key-value tokens than the state has room for is STATE_FULL") {
  Target target;
  StateOptions small;
  small.kv_capacity_tokens = 299;
  const auto state = target.bench.state(small);
  const Bytes before = target.bench.save(*state);

  CHECK(target.bench.try_restore(*state, target.good).code() == CAIRN_STATUS_STATE_FULL);

  CHECK(target.bench.save(*state) == before);
  small.kv_capacity_tokens = 300;
  const auto enough = target.bench.state(small);
  target.bench.restore(*enough, target.good);
}

TEST_CASE("layers and slots that differ from the model's are refused") {
  Target target;
  const auto refuse = [&](const std::function<void(ForgedSnapshot&)>& change) { target.refuse_forged(CAIRN_STATUS_FORMAT, change); };
  refuse([](ForgedSnapshot& f) { f.contents.vocab_size = 41; });
  refuse([](ForgedSnapshot& f) { f.contents.vocab_size = 0; });
  refuse([](ForgedSnapshot& f) { f.contents.layer_count = 9; });
  refuse([](ForgedSnapshot& f) { f.contents.layer_count = -1; });
  refuse([](ForgedSnapshot& f) { std::swap(f.contents.slots[0], f.contents.slots[1]); });
  refuse([](ForgedSnapshot& f) { f.contents.slots.push_back(f.contents.slots[0]); });
  refuse([](ForgedSnapshot& f) { f.contents.slots.pop_back(); });
  refuse([](ForgedSnapshot& f) { f.contents.slots[0].name += "x"; });
  refuse([](ForgedSnapshot& f) { f.contents.slots[0].name = ""; });
  refuse([](ForgedSnapshot& f) { f.contents.slots[0].name = "../up"; });
  refuse([](ForgedSnapshot& f) { f.contents.slots[0].layer = 3; });
  refuse([](ForgedSnapshot& f) { f.contents.slots[0].kind = static_cast<SlotKind>(17); });
  refuse([](ForgedSnapshot& f) { f.contents.slots[0].row_count = 1; });
  refuse([](ForgedSnapshot& f) { f.contents.slots[0].shape[0] = 0; });
  refuse([](ForgedSnapshot& f) { f.contents.slots[0].shape[0] = -4; });
  refuse([](ForgedSnapshot& f) { f.contents.slots[0].shape = {1, 1, 1, 1, 1, 1, 1}; });
  refuse([](ForgedSnapshot& f) { f.contents.slots[0].shape.clear(); });
  for (const char* slot : {"conv", "shared_state", "keys"}) {  // a conv tail, an SSE partition, a ring of the wrong length
    refuse([&](ForgedSnapshot& f) {
      SnapshotSlot& changed = f.slot(slot);
      if (changed.kind == SlotKind::kKvFull) return void(changed.shape[1] = 99);
      changed.shape[0] += 1;
      f.sections[changed.name].shape[0] += 1;
    });
  }
}

TEST_CASE("sections missing, added, or of another type or shape are refused") {
  Target target;
  const ForgedSnapshot good = ForgedSnapshot::of(target.good);
  for (const auto& [name, array] : good.sections) {
    CAPTURE(name);
    target.refuse_forged(CAIRN_STATUS_FORMAT, [&](ForgedSnapshot& f) { f.sections.erase(name); });
    target.refuse_forged(CAIRN_STATUS_FORMAT, [&](ForgedSnapshot& f) { f.sections[name].shape.back() += 1; });
    target.refuse_forged(CAIRN_STATUS_FORMAT, [&](ForgedSnapshot& f) {
      f.sections[name].dtype = array.dtype == DType::kF32 ? DType::kI32 : DType::kF32;
    });
  }
  target.refuse_forged(CAIRN_STATUS_FORMAT, [](ForgedSnapshot& f) { f.sections["more"] = {DType::kU8, {3}, Bytes(3)}; });
}

TEST_CASE("slot lists out of range, out of order or of the wrong length are refused") {
  Target target;
  const auto refuse = [&](const std::function<void(ForgedSnapshot&)>& change) { target.refuse_forged(CAIRN_STATUS_FORMAT, change); };
  refuse([](ForgedSnapshot& f) { f.integers("table.slots")[0] = -1; });
  refuse([](ForgedSnapshot& f) {
    ForgedSnapshot::Array& slots = f.section("table.slots");
    reinterpret_cast<std::int32_t*>(slots.bytes.data())[slots.shape[0] - 1] = 72;
  });
  refuse([](ForgedSnapshot& f) { f.integers("table.slots")[1] = f.integers("table.slots")[0]; });
  refuse([](ForgedSnapshot& f) { std::swap(f.integers("table.slots")[0], f.integers("table.slots")[1]); });
  refuse([](ForgedSnapshot& f) { f.slot("table").row_count = 73; });
  refuse([](ForgedSnapshot& f) { f.slot("table").row_count += 1; });
  refuse([](ForgedSnapshot& f) { f.slot("table").row_count = ~std::uint64_t{0}; });
  refuse([](ForgedSnapshot& f) { f.slot("table").row_count = 0; });
}

TEST_CASE("numbers that are not finite are refused, however large ones are not") {
  Target target;
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const char* section : {"layers.0.state", "conv", "table.rows", "keys", "last_logits", "shared_state"}) {
      CAPTURE(section);
      target.refuse_forged(CAIRN_STATUS_NUMERIC, [&](ForgedSnapshot& f) { f.floats(section)[1] = value; });
    }
  }
  ForgedSnapshot large = ForgedSnapshot::of(target.good);
  large.floats("layers.0.state")[1] = 1e38F;
  const auto state = target.bench.state(with_window(256));
  target.bench.restore(*state, large.build());
}

TEST_CASE("a state with a number that is not finite is not saved") {
  const AgentBench bench;
  const auto state = bench.state();
  bench.prefill(*state, random_tokens(5));
  state->dense(0)[3] = std::numeric_limits<float>::quiet_NaN();
  SnapshotWriter writer = AgentBench::take(SnapshotWriter::prepare(*state, *bench.queue, false));
  VectorSink sink;

  CHECK(writer.write(sink).code() == CAIRN_STATUS_NUMERIC);
}

TEST_CASE("rewind data that contradicts itself is refused, also by a state that keeps none") {
  Target target;
  const auto no_window = target.bench.state();
  const Bytes no_window_before = target.bench.save(*no_window);
  const auto refuse = [&](const std::function<void(ForgedSnapshot&)>& change) {
    target.refuse_forged(CAIRN_STATUS_FORMAT, change);
    ForgedSnapshot forged = ForgedSnapshot::of(target.good);
    change(forged);
    CHECK(target.bench.try_restore(*no_window, forged.build()).code() == CAIRN_STATUS_FORMAT);
    CHECK(target.bench.save(*no_window) == no_window_before);
  };
  refuse([](ForgedSnapshot& f) { f.contents.window_tokens = 0; });
  refuse([](ForgedSnapshot& f) { f.contents.window_tokens = -5; });
  refuse([](ForgedSnapshot& f) { f.contents.spacing_tokens = 63; });
  refuse([](ForgedSnapshot& f) { f.contents.spacing_tokens = -64; });
  refuse([](ForgedSnapshot& f) { f.contents.token_count += 1; });
  refuse([](ForgedSnapshot& f) { f.contents.token_count = ~std::uint64_t{0}; });
  refuse([](ForgedSnapshot& f) { f.contents.spans[0].begin += 1; });
  refuse([](ForgedSnapshot& f) { f.contents.spans[0].count -= 1; });
  refuse([](ForgedSnapshot& f) { f.contents.spans[0].count = -1; });
  refuse([](ForgedSnapshot& f) { f.contents.spans[0].count = std::numeric_limits<std::int64_t>::max(); });
  refuse([](ForgedSnapshot& f) { f.contents.spans[0].phase = static_cast<Phase>(2); });
  refuse([](ForgedSnapshot& f) { f.contents.spans[0].sparse = true; });
  refuse([](ForgedSnapshot& f) { f.contents.spans.push_back({300, 1, Phase::kDecode, false}); });
  refuse([](ForgedSnapshot& f) { f.contents.spans.clear(); });
  refuse([](ForgedSnapshot& f) { f.contents.checkpoints[1].position += 1; });
  refuse([](ForgedSnapshot& f) { f.contents.checkpoints[1].position = f.contents.checkpoints[2].position; });
  refuse([](ForgedSnapshot& f) { f.contents.checkpoints.back().position = 320; });
  refuse([](ForgedSnapshot& f) { f.contents.checkpoints[0].position = -64; });
  refuse([](ForgedSnapshot& f) { f.contents.checkpoints[0].row_counts[0] = 1; });
  refuse([](ForgedSnapshot& f) { f.contents.checkpoints[1].row_counts.pop_back(); });
  refuse([](ForgedSnapshot& f) { f.contents.checkpoints.clear(); });
  refuse([](ForgedSnapshot& f) { f.integers("rewind.tokens")[7] = 40; });
  refuse([](ForgedSnapshot& f) { f.integers("rewind.tokens")[7] = -1; });
  refuse([](ForgedSnapshot& f) { f.integers("rewind.1.layers.6.table.slots")[0] = 72; });
}

TEST_CASE("a quota smaller than the snapshot refuses it") {
  Target target;
  SnapshotReadOptions options;
  options.max_bytes = target.good.size() - 1;
  target.refuse(target.good, CAIRN_STATUS_LIMIT_EXCEEDED, options);
  options.max_bytes = target.good.size();
  AgentBench::require_ok(target.bench.try_restore(*target.state, target.good, options));
}

TEST_CASE("a restore that is cancelled changes nothing, at every step") {
  Target target;
  for (int steps = 0;; ++steps) {
    int left = steps;
    SnapshotReadOptions options;
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
      CHECK(done <= total);
      return left-- > 0;
    };
    const Status status = target.bench.try_restore(*target.state, target.good, options);
    if (status.ok()) break;
    REQUIRE(status.code() == CAIRN_STATUS_CANCELLED);
    REQUIRE(target.bench.save(*target.state, true) == target.before);
  }
}

TEST_CASE("an invalid state is not saved, and a restore mends it") {
  Target target;
  target.state->invalidate();
  CHECK(SnapshotWriter::prepare(*target.state, *target.bench.queue, false).status().code() == CAIRN_STATUS_STATE_INVALID);
  target.bench.restore(*target.state, target.good);
  CHECK(target.state->is_valid());
}

TEST_CASE("inspection refuses what a restore refuses") {
  Target target;
  const auto inspect = [](const Bytes& bytes) {
    return SnapshotReader::inspect(memory_source(bytes.data(), bytes.size()), {}).status().code();
  };
  CHECK(inspect(target.good) == CAIRN_STATUS_OK);
  ForgedSnapshot forged = ForgedSnapshot::of(target.good);
  forged.integers("table.slots")[0] = -1;
  CHECK(inspect(forged.build()) == CAIRN_STATUS_FORMAT);
  forged = ForgedSnapshot::of(target.good);
  forged.floats("layers.0.state")[0] = std::nanf("");
  CHECK(inspect(forged.build()) == CAIRN_STATUS_NUMERIC);
  forged = ForgedSnapshot::of(target.good);
  forged.contents.position = -1;
  CHECK(inspect(forged.build()) == CAIRN_STATUS_FORMAT);
}

}  // namespace cairn
