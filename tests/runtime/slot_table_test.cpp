// Copy-on-write rows: whatever is forked, captured, restored and written, every table holds what its own history says.
#include "runtime/state/slot_table.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>

#include "runtime/state/state.h"
#include "runtime/support/allocator.h"

namespace cairn {
namespace {

constexpr std::int32_t kHeads = 2, kSlots = 36, kWidth = 3;

struct Bench {
  std::shared_ptr<const Device> device;
  std::unique_ptr<Queue> queue;
  std::vector<float> m0;
  StateSlot slot;

  explicit Bench(const char* backend = "reference") {
    auto opened = Device::open(backend, {});
    REQUIRE_MESSAGE(opened.ok(), opened.status().message());
    device = opened.value();
    auto made = Queue::create(device);
    REQUIRE(made.ok());
    queue = std::move(made).value();
    slot = {"table", 0, SlotKind::kSlotTable, {kHeads, kSlots, kWidth}, nullptr, DType::kF32, 4};
    for (int i = 0; i < kHeads * kSlots * kWidth; ++i) m0.push_back(static_cast<float>(i));
  }
  std::unique_ptr<SlotTable> table() const {
    auto made = SlotTable::create(device, slot, *queue);
    REQUIRE_MESSAGE(made.ok(), made.status().message());
    return std::move(made).value();
  }
};

/// What the operator does to write one slot (op_args.h): the delayed backend's memory is host memory too, once flushed.
void write_slot(const Bench& bench, const SlotTable& table, std::int32_t slot, float value) {
  REQUIRE(bench.queue->synchronize().ok());
  const SdmTable view = table.view();
  const std::int64_t shift = table.rows_per_slab();
  const auto address = [&](std::int32_t row) { return static_cast<float*>(view.slabs[row / shift]) + row % shift * kWidth; };
  std::int32_t row = view.row_of_slot[slot];
  if (row < view.control[1]) {
    const float* from = row < 0 ? bench.m0.data() + static_cast<std::size_t>(slot) * kWidth : address(row);
    const std::int32_t fresh = view.control[0]++;
    std::copy_n(from, kWidth, address(fresh));
    row = view.row_of_slot[slot] = fresh;
  }
  for (int v = 0; v < kWidth; ++v) address(row)[v] += value;
}

using Shadow = std::map<std::int32_t, float>;  // what was added to each written slot

void write(const Bench& bench, SlotTable& table, Shadow& shadow, std::int32_t slot, float value) {
  write_slot(bench, table, slot, value);
  shadow[slot] += value;
}

void check_equal(const Bench& bench, const SlotTable& table, const Shadow& shadow) {
  std::vector<std::int32_t> rows;
  REQUIRE(table.read_index(*bench.queue, rows).ok());
  std::size_t written = 0;
  for (std::int32_t slot = 0; slot < kHeads * kSlots; ++slot) {
    const auto found = shadow.find(slot);
    REQUIRE((rows[static_cast<std::size_t>(slot)] >= 0) == (found != shadow.end()));
    if (found == shadow.end()) continue;
    ++written;
    const auto* row = reinterpret_cast<const float*>(table.row_address(rows[static_cast<std::size_t>(slot)]));
    for (int v = 0; v < kWidth; ++v) REQUIRE(row[v] == bench.m0[static_cast<std::size_t>(slot * kWidth + v)] + found->second);
  }
  CHECK(written == shadow.size());
}

std::int64_t rows_in_use(const Bench& bench, const SlotTable& table) {
  REQUIRE(bench.queue->synchronize().ok());
  return table.view().control[0];
}

}  // namespace

TEST_CASE("a fork shares rows until one of the two writes them") {
  for (const char* backend : {"reference", "delayed"}) {
    CAPTURE(backend);
    const Bench bench(backend);
    const auto parent = bench.table();
    Shadow parent_shadow;
    REQUIRE(parent->reserve(*bench.queue, 3, 0).ok());
    for (const std::int32_t slot : {0, 5, 71}) write(bench, *parent, parent_shadow, slot, 10);

    auto forked = parent->fork(*bench.queue);
    REQUIRE(forked.ok());
    SlotTable& fork = *forked.value();
    Shadow fork_shadow = parent_shadow;
    CHECK(fork.slabs()[0] == parent->slabs()[0]);
    REQUIRE(fork.reserve(*bench.queue, 1, 0).ok());
    REQUIRE(parent->reserve(*bench.queue, 1, 0).ok());
    write(bench, fork, fork_shadow, 5, 1);
    write(bench, *parent, parent_shadow, 5, 2);
    write(bench, *parent, parent_shadow, 6, 3);
    write(bench, fork, fork_shadow, 6, 4);

    check_equal(bench, *parent, parent_shadow);
    check_equal(bench, fork, fork_shadow);
  }
}

TEST_CASE("random forks, checkpoints, rewinds and writes keep every table's own contents") {
  for (const char* backend : {"reference", "delayed"}) {
    CAPTURE(backend);
    const Bench bench(backend);
    struct Agent {
      std::unique_ptr<SlotTable> table;
      Shadow shadow;
      std::vector<std::pair<SlotTableImage, Shadow>> images;
    };
    std::mt19937 random(7);
    std::vector<Agent> agents;
    agents.reserve(8);
    agents.push_back({bench.table(), {}, {}});
    for (int step = 0; step < 4000; ++step) {
      Agent& agent = agents[random() % agents.size()];
      const unsigned action = random() % 100;
      if (action < 80) {
        const std::int64_t tokens = 1 + random() % 5;
        REQUIRE(agent.table->reserve(*bench.queue, tokens, 0).ok());
        for (std::int64_t i = 0; i < tokens * kHeads * 4; ++i) {
          write(bench, *agent.table, agent.shadow, static_cast<std::int32_t>(random() % (kHeads * kSlots)), static_cast<float>(random() % 9));
        }
      } else if (action < 85 && agents.size() < 8) {
        auto forked = agent.table->fork(*bench.queue);
        REQUIRE(forked.ok());
        const Shadow shadow = agent.shadow;
        agents.push_back({std::move(forked).value(), shadow, {}});
      } else if (action < 92) {
        SlotTableImage image;
        REQUIRE(agent.table->prepare(image).ok());
        REQUIRE(agent.table->capture(*bench.queue, image).ok());
        agent.images.emplace_back(std::move(image), agent.shadow);
        if (agent.images.size() > 3) {
          agent.table->recycle(agent.images.front().first);
          agent.images.erase(agent.images.begin());
        }
      } else if (action < 96 && !agent.images.empty()) {
        const auto& [image, shadow] = agent.images[random() % agent.images.size()];
        REQUIRE(agent.table->restore(*bench.queue, image).ok());
        agent.shadow = shadow;
      } else if (action < 98 && agents.size() > 1) {
        agents.erase(agents.begin() + static_cast<std::ptrdiff_t>(random() % agents.size()));
        continue;
      } else if (action == 98) {
        REQUIRE(agent.table->reset(*bench.queue).ok());
        agent.shadow.clear();
      }
      check_equal(bench, *agent.table, agent.shadow);
    }
    for (const Agent& agent : agents) {
      check_equal(bench, *agent.table, agent.shadow);
      const auto rows = static_cast<std::int64_t>((agent.table->slabs().size() + agent.table->spare_slabs().size())) * agent.table->rows_per_slab();
      CHECK(rows < 12 * kHeads * kSlots);  // dead rows are reclaimed
    }
  }
}

TEST_CASE("a small table takes its memory at the first write and no more") {
  const Bench bench;
  const auto table = bench.table();
  Shadow shadow;
  REQUIRE(table->reserve(*bench.queue, 1, 0).ok());
  const std::uint64_t before = allocator_counters().total_count;
  const std::size_t slabs = table->slabs().size();
  std::mt19937 random(1);

  for (int step = 0; step < 500; ++step) {
    REQUIRE(table->reserve(*bench.queue, 1, 0).ok());
    for (int i = 0; i < kHeads * 4; ++i) write(bench, *table, shadow, static_cast<std::int32_t>(random() % (kHeads * kSlots)), 1);
  }

  CHECK(table->slabs().size() == slabs);
  CHECK(allocator_counters().total_count == before);
  check_equal(bench, *table, shadow);
}

TEST_CASE("checkpoints in a row reuse memory: rows and slabs stop growing") {
  const Bench bench;
  const auto table = bench.table();
  Shadow shadow;
  std::vector<SlotTableImage> images(4);
  std::mt19937 random(2);
  std::size_t slabs_at_half = 0;
  std::int64_t rows_at_half = 0;
  for (int step = 0; step < 400; ++step) {
    SlotTableImage& image = images[static_cast<std::size_t>(step) % images.size()];
    table->recycle(image);
    REQUIRE(table->reserve(*bench.queue, 2, 1).ok());
    REQUIRE(table->prepare(image).ok());
    REQUIRE(table->capture(*bench.queue, image).ok());
    for (int i = 0; i < 2 * kHeads * 4; ++i) write(bench, *table, shadow, static_cast<std::int32_t>(random() % (kHeads * kSlots)), 1);
    if (step == 200) {
      slabs_at_half = table->slabs().size() + table->spare_slabs().size();
      rows_at_half = rows_in_use(bench, *table);
    }
  }
  check_equal(bench, *table, shadow);
  CHECK(table->slabs().size() + table->spare_slabs().size() <= slabs_at_half + 8);
  CHECK(rows_in_use(bench, *table) <= 4 * rows_at_half + 8 * kHeads * kSlots);
}

TEST_CASE("a fresh state of the largest published table costs its index, and so does a fork") {
  // 9 layers of H = 2, N = 230,400, V = 1,920: 7.96 billion values, 31.9 GB, in a file without blocks.
  constexpr std::int64_t kLayers = 9, kLargeSlots = 230400, kLargeWidth = 1920;
  constexpr std::int64_t kTableBytes = 2 * kLargeSlots * kLargeWidth * 4;
  const int file = memfd_create("m0", MFD_CLOEXEC);
  REQUIRE(file >= 0);
  REQUIRE(ftruncate(file, kLayers * kTableBytes) == 0);
  void* m0 = mmap(nullptr, kLayers * kTableBytes, PROT_READ, MAP_SHARED, file, 0);
  REQUIRE(m0 != MAP_FAILED);
  const Bench bench;
  std::vector<StateSlot> slots;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    slots.push_back({"layers." + std::to_string(layer) + ".table", static_cast<std::int32_t>(layer), SlotKind::kSlotTable,
                     {2, kLargeSlots, kLargeWidth}, static_cast<const std::byte*>(m0) + layer * kTableBytes, DType::kF32, 64});
  }
  auto planned = StateLayout::plan(slots, {}, "large", 100, kLayers);
  REQUIRE(planned.ok());
  const auto layout = std::make_shared<const StateLayout>(std::move(planned).value());
  constexpr std::uint64_t kIndexBytes = kLayers * 2 * kLargeSlots * 4;
  CHECK(layout->fresh_bytes(4096) == kIndexBytes);

  auto made = State::create(layout, bench.device, {});
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  State& state = *made.value();
  CHECK(state.memory().held < kIndexBytes + (1U << 20));

  REQUIRE(state.reserve(*bench.queue, 1).ok());
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    const SdmTable table = state.table(layer);
    for (std::int32_t i = 0; i < 128; ++i) {  // one token: W = 64 slots of each head
      const std::int32_t slot = i * 3600 + layer, row = table.control[0]++;
      const std::int64_t shift = state.rows_per_slab(layer);
      const float* from = static_cast<const float*>(slots[static_cast<std::size_t>(layer)].initial) + std::int64_t{slot} * kLargeWidth;
      std::copy_n(from, kLargeWidth, static_cast<float*>(table.slabs[row / shift]) + row % shift * kLargeWidth);
      table.row_of_slot[slot] = row;
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  auto forked = state.fork(*bench.queue);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  REQUIRE(forked.ok());
  const StateMemory memory = forked.value()->memory();
  MESSAGE("fork of 9 tables of 460,800 slots: ", seconds * 1e3, " ms, shared ", memory.shared, " of ", memory.held, " bytes");
  CHECK(memory.held - memory.shared < kIndexBytes + (1U << 20));
  CHECK(memory.shared == state.memory().shared);
  CHECK(memory.shared > 0);
  munmap(m0, kLayers * kTableBytes);
  close(file);
}

}  // namespace cairn
