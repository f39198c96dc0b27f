// Memory that held a state is zeroed before it is given back: a marked value is looked for in every block on its way out.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "runtime/support/allocator.h"
#include "tests/support/agent_bench.h"

namespace cairn {
namespace {

using test::AgentBench;
using test::Bytes;
using test::random_tokens;
using test::with_window;

constexpr float kMark = 1.2345678e-3F;

/// Counts released blocks that still hold the mark.
class WatchingAllocator {
 public:
  WatchingAllocator() {
    const cairn_allocator table = {sizeof(cairn_allocator), this, allocate, release};
    (void)set_allocator(&table).ok();
  }
  ~WatchingAllocator() { (void)set_allocator(nullptr).ok(); }
  int marked_blocks = 0, blocks = 0;

 private:
  static void* allocate(void*, std::size_t size_bytes, std::size_t alignment) {
    const std::size_t room = (size_bytes + 4095) / 4096 * 4096 + 4096;
    void* memory = std::aligned_alloc(std::max<std::size_t>(alignment, 8), room);
    if (memory) std::memset(memory, 0, room);  // what others left in the heap is not ours
    return memory;
  }
  static void release(void* user, void* memory, std::size_t size_bytes) {
    auto& self = *static_cast<WatchingAllocator*>(user);
    ++self.blocks;
    const auto* words = static_cast<const std::uint32_t*>(memory);
    std::uint32_t mark = 0;
    std::memcpy(&mark, &kMark, sizeof mark);
    if (std::find(words, words + size_bytes / sizeof mark, mark) != words + size_bytes / sizeof mark) ++self.marked_blocks;
    std::free(memory);
  }
};

/// Puts the mark into every slot: dense ones directly, the table by its written rows.
void mark(const AgentBench& bench, State& state) {
  const std::vector<StateSlot>& slots = state.layout().slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto slot = static_cast<std::int32_t>(i);
    if (const SlotTable* table = state.slot_table(slot)) {
      std::vector<std::int32_t> rows;
      AgentBench::require_ok(table->read_index(*bench.queue, rows));
      for (const std::int32_t row : rows) {
        if (row >= 0) *reinterpret_cast<float*>(table->row_address(row)) = kMark;
      }
    } else if (state.layout().slot_bytes(slot, 1) > 0) {
      state.dense(slot)[0] = kMark;
    }
  }
}

}  // namespace

TEST_CASE("no block given back holds what a state held or a stream said: release, fork, rewind, reset, restore, refused restore") {
  WatchingAllocator allocator;
  {
    AgentBench bench;
    const std::vector<std::int32_t> tokens = random_tokens(300);
    const auto state = bench.state(with_window());
    bench.prefill(*state, std::span(tokens).first(70));
    mark(bench, *state);
    const Bytes snapshot = bench.save(*state, true);
    {
      const auto fork = bench.fork(*state);
      bench.prefill(*fork, std::span(tokens).first(100));
      mark(bench, *fork);
    }
    bench.decode(*state, std::span(tokens).first(150));
    mark(bench, *state);
    bench.rewind(*state, 140);
    Bytes damaged = snapshot;
    damaged[damaged.size() / 2] ^= std::byte{1};
    CHECK_FALSE(bench.try_restore(*state, damaged).ok());
    SnapshotReadOptions cancelled;
    cancelled.progress = [](std::uint64_t done, std::uint64_t total) { return done < total * 3 / 4; };
    CHECK(bench.try_restore(*state, snapshot, cancelled).code() == CAIRN_STATUS_CANCELLED);
    bench.restore(*state, snapshot);
    mark(bench, *state);
    AgentBench::require_ok(state->reset(*bench.queue));
    const auto& slots = state->layout().slots();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto slot = static_cast<std::int32_t>(i);
      if (!state->slot_table(slot)) CHECK(state->dense(slot)[0] == 0);
    }
    bench.restore(*state, snapshot);
    const_cast<float&>(bench.stream->logits(0)[0]) = kMark;
    bench.stream.reset();
  }
  CHECK(allocator.blocks > 20);
  CHECK(allocator.marked_blocks == 0);
}

}  // namespace cairn
