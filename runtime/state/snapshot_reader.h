// Reads snapshots from bytes that nobody vouches for: structure, then meaning, then checksums and values, into memory
// beside the state; only when everything is right do the two change places.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>

#include "runtime/state/snapshot_contents.h"

namespace cairn {

struct SnapshotReadOptions {
  std::uint64_t max_bytes = ~std::uint64_t{0};
  ByteProgress progress;
};

class SnapshotReader {
 public:
  /// Structure and the header's meaning; the payload is not read.
  static Result<SnapshotReader> open(std::shared_ptr<const ByteSource> source, const SnapshotReadOptions& options);
  /// Everything: FORMAT, CHECKSUM, VERSION, LIMIT_EXCEEDED, NUMERIC, IO.
  static Result<SnapshotReader> inspect(std::shared_ptr<const ByteSource> source, const SnapshotReadOptions& options);

  /// All or nothing. MISMATCH: of another model. STATE_FULL: more key-value tokens than `state` has room for.
  /// `finish` reads the source to its end, when the header has been found to be that of a snapshot of this model.
  static Status restore(std::shared_ptr<const ByteSource> source, const SnapshotReadOptions& options, Queue& queue, State& state,
                        const std::function<Status()>& finish = nullptr);

  const SnapshotContents& contents() const { return contents_; }
  const ContainerReader& container() const { return container_; }
  /// In the order of container().sections().
  const std::vector<SnapshotSection>& sections() const { return sections_; }

 private:
  /// Takes verified bytes [offset, offset + size) of a section.
  using Deliver = std::function<Status(const std::byte* data, std::uint64_t offset_bytes, std::uint64_t size_bytes)>;

  static Result<SnapshotReader> open_front(std::shared_ptr<const ByteSource> source, const SnapshotReadOptions& options);
  SnapshotReader(ContainerReader container, SnapshotContents contents, const SnapshotReadOptions& options);

  Status check_matches(const State& state) const;
  Status read_section(const SnapshotSection& section, const Deliver& deliver);
  Status read_values(const SnapshotSection& section, Queue& queue, std::byte* to);
  Status read_table(std::int32_t checkpoint, std::int32_t slot, Queue& queue, SlotTable& table);
  Status load(Queue& queue, State& state);
  Status load_journal(Queue& queue, State& state);
  std::vector<std::size_t> wanted_checkpoints(const RewindJournal& journal) const;
  Result<std::unique_ptr<Checkpoint>> load_checkpoint(std::int32_t index, Queue& queue, State& state);
  /// The section of that place; null: it is empty and not in the file.
  const SnapshotSection* find(SnapshotSection::What what, std::int32_t checkpoint, std::int32_t slot) const;

  ContainerReader container_;
  SnapshotContents contents_;
  SnapshotReadOptions options_;
  std::vector<SnapshotSection> sections_;
  std::map<std::tuple<SnapshotSection::What, std::int32_t, std::int32_t>, std::size_t> places_;  ///< index in sections_
  std::uint64_t done_bytes_ = 0, total_bytes_ = 0;
};

}  // namespace cairn
