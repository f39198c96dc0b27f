// F3: bytes as a snapshot, without a model.
#include <cstdlib>

#include "runtime/state/snapshot_reader.h"
#include "runtime/support/allocator.h"
#include "tests/fuzz/fuzz_targets.h"

namespace cairn::test {

void fuzz_snapshot_inspect(const std::uint8_t* data, std::size_t size) {
  const AllocatorCounters before = allocator_counters();
  {
    const auto reader = SnapshotReader::inspect(memory_source(data, size), {});
    if (!reader.ok() && (reader.status().message().empty() || reader.status().code() == CAIRN_STATUS_INTERNAL)) std::abort();
  }
  if (allocator_counters().live_bytes != before.live_bytes) std::abort();
}

}  // namespace cairn::test

CAIRN_FUZZ_ENTRY(fuzz_snapshot_inspect)
