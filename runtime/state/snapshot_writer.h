// A state as the bytes of a snapshot. Equal states give equal bytes: slot tables are written by (head, slot), whatever
// their rows' order; key-value rows by position; padding is zero; nothing else is in the file.
//
//   CAIRN_TRY_ASSIGN(SnapshotWriter writer, SnapshotWriter::prepare(state, queue, include_rewind));
//   writer.total_bytes();                       // known before the first byte
//   CAIRN_TRY(writer.write(sink, progress));
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "runtime/state/snapshot_contents.h"

namespace cairn {

class SnapshotWriter {
 public:
  /// STATE_INVALID: an invalid state is not saved. The state and the queue must outlive the writer, unchanged.
  static Result<SnapshotWriter> prepare(const State& state, Queue& queue, bool include_rewind);

  std::uint64_t total_bytes() const { return plan_.total_bytes(header_.size()); }
  /// NUMERIC: the state holds a number that is not finite, which no reader would take.
  Status write(ByteSink& sink, const ByteProgress& progress = nullptr);

 private:
  /// The written slots of one table at one time, by (head, slot), and the row of each.
  struct Written {
    std::vector<std::int32_t> slots, rows;
  };
  SnapshotWriter(const State& state, Queue& queue) : state_(&state), queue_(&queue), plan_(ContainerKind::kSnapshot) {}

  Status collect_slots();
  Status collect_rewind();
  Status collect_written(std::int32_t checkpoint, std::int32_t slot, const void* index, const SlotTable::Geometry& geometry);
  Status build();
  Status write_section(ContainerWriter& writer, const SnapshotSection& section);
  Status write_values(ContainerWriter& writer, const SnapshotSection& section);
  Status write_rows(ContainerWriter& writer, const SnapshotSection& section);

  const State* state_;
  Queue* queue_;
  SnapshotContents contents_;
  std::map<std::pair<std::int32_t, std::int32_t>, Written> written_;  ///< by (checkpoint, slot)
  std::vector<SnapshotSection> sections_;
  ContainerPlan plan_;
  std::vector<std::uint8_t> header_;
  HostBuffer staging_;
};

}  // namespace cairn
