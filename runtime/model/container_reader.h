// Reads the container of FORMAT.md from bytes that nobody vouches for. Order: structure -> meaning -> checksum.
//
//   CAIRN_TRY_ASSIGN(auto source, file_source(path, FileAccess::kPositional));   // or memory_source(data, size)
//   CAIRN_TRY_ASSIGN(ContainerReader reader, ContainerReader::open(source, ContainerKind::kSnapshot));
//   const schema::SnapshotHeader& header = reader.snapshot_header();             // verified structure; check its
//   meaning! CAIRN_TRY_ASSIGN(const Section* section, reader.require("last_logits", DType::kF32, {264}));
//   CAIRN_TRY(reader.read(*section, buffer.data()));     // copies, and checks the checksums of exactly the bytes
//   copied
//
// open() has checked: preamble, header checksum, FlatBuffers structure, the section table (sorted, unique, no holes, no
// overlap, sizes = shape x dtype, 64-bit sums), total length = size of the source, trailer and its digest. It has read
// everything but the payload. verify_payload() reads that too. open_front() leaves the trailer, and with it the checksums
// of the payload, to read_back(): for sources that come front to back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/model/container_format.h"
#include "runtime/support/allocator.h"
#include "runtime/support/byte_source.h"
#include "runtime/support/checksum.h"

namespace cairn {

namespace schema {
struct ModelHeader;
struct SnapshotHeader;
}  // namespace schema

struct ContainerLimits {
  std::uint64_t max_total_bytes = ~std::uint64_t{0};
  std::uint64_t max_sections = kMaxSections;
  std::uint64_t max_section_bytes = kMaxSectionBytes;
};

class ContainerReader {
 public:
  static Result<ContainerReader> open(std::shared_ptr<const ByteSource> source, ContainerKind kind,
                                      const ContainerLimits& limits = {});
  static Result<ContainerReader> open_front(std::shared_ptr<const ByteSource> source, ContainerKind kind,
                                            const ContainerLimits& limits = {});
  Status read_back();

  ContainerKind kind() const { return kind_; }
  std::uint16_t major() const { return major_; }
  std::uint16_t minor() const { return minor_; }
  std::uint64_t total_bytes() const { return total_bytes_; }

  /// Only of the kind that was opened. Lives as long as the reader.
  const schema::ModelHeader& model_header() const;
  const schema::SnapshotHeader& snapshot_header() const;

  /// Sorted by name; offset_bytes counts from the start of the file.
  const std::vector<Section>& sections() const { return sections_; }
  const Section* find(const std::string& name) const;  ///< null: absent
  /// FORMAT: absent, or another type or shape.
  Result<const Section*> require(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape) const;

  /// Copies a whole section; CHECKSUM names the block. `to` has size_bytes.
  Status read(const Section& section, void* to) const;
  /// Copies [offset, offset + size) of a section; offset is a multiple of kChecksumBlockBytes, and the range ends at
  /// another multiple or at the section's end.
  Status read_blocks(const Section& section, std::uint64_t offset_bytes, void* to, std::uint64_t size_bytes) const;
  /// The section in the source's own memory (not checked: see verify_payload); null when the source has none.
  const std::byte* data(const Section& section) const;
  /// As stored; checked by verify_payload() and read().
  const std::uint64_t* checksums(const Section& section) const;

  /// Every block and every padding byte of the payload. CHECKSUM, FORMAT (padding), IO, CANCELLED.
  Status verify_payload(const ByteProgress& progress = nullptr) const;

  const std::shared_ptr<const ByteSource>& source() const { return source_; }

 private:
  ContainerReader() = default;
  Status read_preamble(const ContainerLimits& limits);
  Status read_header();
  Status read_sections(const ContainerLimits& limits);
  Status check_block(const Section& section, std::uint64_t block, const void* data, std::size_t size_bytes) const;
  std::size_t index_of(const Section& section) const;

  std::shared_ptr<const ByteSource> source_;
  ContainerKind kind_ = ContainerKind::kModel;
  std::uint16_t major_ = 0, minor_ = 0;
  std::uint64_t header_bytes_ = 0, payload_offset_ = 0, payload_bytes_ = 0, total_bytes_ = 0,
                block_count_ = 0;
  std::array<std::uint8_t, kPreambleBytes> preamble_{};
  HostBuffer header_;
  std::vector<Section> sections_;
  std::vector<std::size_t> first_block_;  ///< of each section
  std::vector<std::uint64_t> checksums_;
};

}  // namespace cairn
