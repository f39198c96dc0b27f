// Writes the container of FORMAT.md, front to back, in one pass, through a ByteSink. Same input, same bytes.
//
//   ContainerPlan plan(ContainerKind::kSnapshot);
//   CAIRN_TRY(plan.add("layers.0.state", DType::kF32, {4, 32, 32}));     // any order; sizes are known beforehand
//   CAIRN_TRY(plan.add("last_logits", DType::kF32, {264}));
//   CAIRN_TRY(plan.finish());                                            // sorts by name and lays out
//
//   flatbuffers::FlatBufferBuilder builder;
//   auto sections = build_sections(builder, plan);                       // the header's `sections` field
//   ... fill the other fields, then: FinishSnapshotHeaderBuffer(builder, header);
//
//   ContainerWriter writer(plan, sink, progress);                        // plan.total_bytes(builder.GetSize()) known
//   now CAIRN_TRY(writer.begin(builder.GetBufferPointer(), builder.GetSize())); for (const Section& section :
//   plan.sections())                       // in the plan's order
//     CAIRN_TRY(writer.write(data_of(section), section.size_bytes));     // or in pieces, each as large as one likes
//   CAIRN_TRY(writer.finish());
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/container_format.h"
#include "runtime/support/byte_sink.h"
#include "runtime/support/checksum.h"

namespace cairn {

/// The sections of a file that is going to be written.
class ContainerPlan {
 public:
  explicit ContainerPlan(ContainerKind kind) : kind_(kind) {}

  /// INVALID_ARGUMENT: a name, shape or size that a reader would refuse.
  Status add(std::string name, DType dtype, std::vector<std::int64_t> shape);
  Status finish();

  ContainerKind kind() const { return kind_; }
  /// Sorted by name; offset_bytes counts from the start of the PAYLOAD here.
  const std::vector<Section>& sections() const { return sections_; }
  std::uint64_t payload_bytes() const { return payload_bytes_; }
  std::uint64_t block_count() const { return block_count_; }
  std::uint64_t total_bytes(std::uint64_t header_bytes) const;

 private:
  ContainerKind kind_;
  std::vector<Section> sections_;
  std::uint64_t payload_bytes_ = 0, block_count_ = 0;
};

class ContainerWriter {
 public:
  /// `plan` and `sink` must outlive the writer.
  ContainerWriter(const ContainerPlan& plan, ByteSink& sink, ByteProgress progress = nullptr);

  Status begin(const void* header, std::uint64_t header_bytes);
  /// The next bytes of the payload. A piece may not reach over the end of a section. CANCELLED.
  Status write(const void* data, std::uint64_t size_bytes);
  Status finish();

  /// One per block, section by section; complete after the last write().
  const std::vector<std::uint64_t>& checksums() const { return checksums_; }

 private:
  Status emit(const void* data, std::uint64_t size_bytes);
  Status tell_progress() const;  ///< CANCELLED: it said so
  Status pad_to_alignment();
  Status close_empty_sections();

  const ContainerPlan& plan_;
  ByteSink& sink_;
  ByteProgress progress_;
  Xxh3Stream block_;
  Blake2bStream digest_;
  std::vector<std::uint64_t> checksums_;
  std::size_t section_ = 0;               ///< being written
  std::uint64_t section_done_bytes_ = 0;  ///< of it
  std::uint64_t written_bytes_ = 0, total_bytes_ = 0;
};

}  // namespace cairn
