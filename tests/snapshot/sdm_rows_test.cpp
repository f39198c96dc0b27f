// Rows of SDM tables in bf16: forks, rewinds and snapshots keep their bits, and snapshots go between f32 and bf16.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/model/element_conversion.h"
#include "runtime/state/state_statistics.h"
#include "tests/snapshot/forged_snapshot.h"

namespace cairn {
namespace {

using test::AgentBench;
using test::Bytes;
using test::ForgedSnapshot;
using test::random_tokens;
using test::with_window;

constexpr const char* kBackends[] = {"reference", "cpu", "delayed"};

AgentBench bench_of(const char* backend, DType rows) {
  PlanOptions options;
  options.sdm_rows = rows;
  return AgentBench(backend, test::every_mechanism_model(1), options);
}

/// The rows of a snapshot's table, as f32.
std::vector<float> rows_of(const Bytes& bytes) {
  ForgedSnapshot taken = ForgedSnapshot::of(bytes);
  const ForgedSnapshot::Array& array = taken.section("table.rows");
  std::vector<float> values(static_cast<std::size_t>(array.shape[0] * array.shape[1]));
  REQUIRE(convert_to_f32(array.bytes.data(), array.dtype, values.size(), values.data()));
  return values;
}

}  // namespace

TEST_CASE("bf16 rows: a restored, a forked and a rewound state go on with the same bits") {
  for (const char* backend : kBackends) {
    CAPTURE(backend);
    const AgentBench bench = bench_of(backend, DType::kBF16);
    const std::vector<std::int32_t> tokens = random_tokens(260);
    const auto plain = bench.state(), wandering = bench.state(with_window(1000)), restored = bench.state();
    bench.prefill(*plain, std::span(tokens).first(128));
    bench.prefill(*wandering, std::span(tokens).first(128));
    const Bytes saved = bench.save(*plain);

    bench.restore(*restored, saved);
    const auto fork = bench.fork(*wandering);
    bench.prefill(*wandering, std::span(tokens).subspan(128, 70));
    bench.rewind(*wandering, 128);
    for (State* state : {plain.get(), wandering.get(), fork.get(), restored.get()}) {
      bench.decode(*state, std::span(tokens).last(40));
    }

    CHECK(ForgedSnapshot::of(saved).section("table.rows").dtype == DType::kBF16);
    const Bytes expected = bench.save(*plain);
    CHECK(bench.save(*wandering) == expected);
    CHECK(bench.save(*fork) == expected);
    CHECK(bench.save(*restored) == expected);
    CHECK(rows_of(expected) != rows_of(saved));
  }
}

TEST_CASE("bf16 rows: a prefill in pieces keeps its bits on the cpu, over an M0 in f32") {
  const AgentBench bench = bench_of("cpu", DType::kBF16);
  const std::vector<std::int32_t> tokens = random_tokens(192);
  const auto whole = bench.state(), pieces = bench.state();

  bench.prefill(*whole, tokens);
  for (int piece = 0; piece < 3; ++piece) bench.prefill(*pieces, std::span(tokens).subspan(piece * 64, 64));

  CHECK(rows_of(bench.save(*pieces)) == rows_of(bench.save(*whole)));
}

TEST_CASE("bf16 rows take half the bytes, and statistics read them as numbers") {
  const AgentBench wide = bench_of("cpu", DType::kF32), half = bench_of("cpu", DType::kBF16);
  const auto wide_state = wide.state(), half_state = half.state();
  wide.prefill(*wide_state, random_tokens(40));
  half.prefill(*half_state, random_tokens(40));

  const Bytes wide_bytes = wide.save(*wide_state), half_bytes = half.save(*half_state);
  ForgedSnapshot wide_taken = ForgedSnapshot::of(wide_bytes), half_taken = ForgedSnapshot::of(half_bytes);
  CHECK(half_taken.section("table.rows").shape == wide_taken.section("table.rows").shape);
  CHECK(2 * half_taken.section("table.rows").bytes.size() == wide_taken.section("table.rows").bytes.size());
  const std::int32_t layer = half_taken.slot("table").layer;
  const StateStatistics statistics = AgentBench::take(read_statistics(*half_state, *half.queue, layer));
  const std::vector<float> rows = rows_of(half_bytes);
  float largest = 0;
  for (const float value : rows) largest = std::max(largest, std::abs(value));
  CHECK(statistics.max_abs == largest);
  CHECK(statistics.non_finite_count == 0);
}

TEST_CASE("a snapshot with f32 rows is rounded into bf16 rows, and bf16 rows come back exactly, between any backends") {
  for (const char* from : kBackends) {
    for (const char* to : kBackends) {
      CAPTURE(from);
      CAPTURE(to);
      const AgentBench wide = bench_of(from, DType::kF32), half = bench_of(to, DType::kBF16);
      const auto source = wide.state(), rounded = half.state(), back = wide.state(), again = half.state();
      wide.prefill(*source, random_tokens(100));
      const Bytes original = wide.save(*source);

      half.restore(*rounded, original);
      const Bytes narrow = half.save(*rounded);
      wide.restore(*back, narrow);
      const Bytes widened = wide.save(*back);
      half.restore(*again, widened);

      std::vector<float> expected = rows_of(original);
      for (float& value : expected) value = bf16_to_f32(f32_to_bf16(value));
      CHECK(rows_of(narrow) == expected);
      CHECK(rows_of(widened) == expected);
      CHECK(ForgedSnapshot::of(widened).section("table.rows").dtype == DType::kF32);
      CHECK(half.save(*again) == narrow);
      half.decode(*again, random_tokens(5));
      half.decode(*rounded, random_tokens(5));
      CHECK(half.save(*again) == half.save(*rounded));
    }
  }
}

TEST_CASE("the rewind window goes between f32 and bf16 rows") {
  for (const DType rows : {DType::kF32, DType::kBF16}) {
    const AgentBench from = bench_of("reference", rows),
                     to = bench_of("cpu", rows == DType::kF32 ? DType::kBF16 : DType::kF32);
    const std::vector<std::int32_t> tokens = random_tokens(300);
    const auto source = from.state(with_window(256)), target = to.state(with_window(256));
    from.prefill(*source, std::span(tokens).first(256));
    from.decode(*source, std::span(tokens).last(20));

    to.restore(*target, from.save(*source, true));

    CHECK(target->oldest_rewind_position() == source->oldest_rewind_position());
    to.rewind(*target, 192);
    CHECK(target->position() == 192);
    const auto again = to.state(with_window(256));
    to.restore(*again, to.save(*target, true));
    CHECK(to.save(*again, true) == to.save(*target, true));
  }
}

TEST_CASE("rows that a table cannot hold are refused, and the state stays as it was") {
  const AgentBench wide = bench_of("cpu", DType::kF32), half = bench_of("cpu", DType::kBF16);
  const auto wide_state = wide.state(), half_state = half.state();
  wide.prefill(*wide_state, random_tokens(20));
  half.prefill(*half_state, random_tokens(30));
  const Bytes wide_bytes = wide.save(*wide_state), half_bytes = half.save(*half_state);

  ForgedSnapshot large = ForgedSnapshot::of(wide_bytes);
  large.floats("table.rows")[7] = std::numeric_limits<float>::max();  // rounds to infinity
  CHECK(half.try_restore(*half_state, large.build()).code() == CAIRN_STATUS_NUMERIC);
  CHECK(half.save(*half_state) == half_bytes);
  CHECK(wide.try_restore(*wide_state, large.build()).ok());

  ForgedSnapshot infinite = ForgedSnapshot::of(half_bytes);
  reinterpret_cast<std::uint16_t*>(infinite.section("table.rows").bytes.data())[3] = 0x7f80;
  CHECK(half.try_restore(*half_state, infinite.build()).code() == CAIRN_STATUS_NUMERIC);

  ForgedSnapshot f16 = ForgedSnapshot::of(half_bytes);
  f16.slot("table").row_dtype = f16.section("table.rows").dtype = DType::kF16;
  CHECK(half.try_restore(*half_state, f16.build()).code() == CAIRN_STATUS_FORMAT);

  ForgedSnapshot other = ForgedSnapshot::of(half_bytes);
  other.slot("table").row_dtype = DType::kF32;  // the section still says bf16
  CHECK(half.try_restore(*half_state, other.build()).code() == CAIRN_STATUS_FORMAT);

  ForgedSnapshot dense = ForgedSnapshot::of(half_bytes);
  for (SnapshotSlot& slot : dense.contents.slots) {
    if (slot.kind != SlotKind::kSlotTable) slot.row_dtype = DType::kBF16;
  }
  CHECK(half.try_restore(*half_state, dense.build()).code() == CAIRN_STATUS_FORMAT);
  CHECK(half.save(*half_state) == half_bytes);
}

}  // namespace cairn
