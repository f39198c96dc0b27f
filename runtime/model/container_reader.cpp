#include "runtime/model/container_reader.h"

#include <algorithm>
#include <cstring>

#include "runtime/model/container_header.h"
#include "runtime/support/checked_math.h"
#include "schema/cairn_model_generated.h"
#include "schema/cairn_snapshot_generated.h"

namespace cairn {
namespace {

using ull = unsigned long long;

constexpr std::size_t kVerifierDepth = 16;
constexpr std::size_t kVerifierTables = 500000;  // or one for each 16 bytes: less than any table takes
constexpr std::uint32_t kKnownCriticalFlags = 0;

template <class T>
T load(const std::uint8_t* bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(bytes[i]) << (8 * i));
  return value;
}

std::uint64_t aligned(std::uint64_t value) { return (value + kSectionAlignment - 1) & ~(kSectionAlignment - 1); }

/// Says what a file is that is none of ours.
Status foreign_file(const std::uint8_t* bytes, std::uint64_t size_bytes) {
  const auto begins_with = [&](const char* text, std::size_t size) {
    return size_bytes >= size && std::memcmp(bytes, text, size) == 0;
  };
  if (begins_with("GGUF", 4))
    return Status::format_error("this is a GGUF file: not supported, use the safetensors original");
  if (begins_with("PK\x03\x04", 4)) return Status::format_error("this is a ZIP archive, not a Cairn file");
  if (begins_with("\x7f"
                  "ELF",
                  4))
    return Status::format_error("this is a program (ELF), not a Cairn file");
  if (begins_with("%PDF", 4)) return Status::format_error("this is a PDF document, not a Cairn file");
  if (size_bytes > 9 && bytes[8] == '{' && load<std::uint64_t>(bytes) < (std::uint64_t{1} << 32)) {
    return Status::format_error("this is a safetensors file: load or pack its folder (config.json beside it) instead");
  }
  return Status::format_error("not a Cairn file: its first bytes are %02x %02x %02x %02x", bytes[0], bytes[1], bytes[2],
                              bytes[3]);
}

bool is_zero(const std::byte* bytes, std::size_t size_bytes) {
  return std::all_of(bytes, bytes + size_bytes, [](std::byte b) { return b == std::byte{0}; });
}

bool verify_structure(ContainerKind kind, const void* header, std::size_t size_bytes) {
  flatbuffers::Verifier verifier(static_cast<const std::uint8_t*>(header), size_bytes, kVerifierDepth,
                                 std::max(kVerifierTables, size_bytes / 16));
  return kind == ContainerKind::kModel ? schema::VerifyModelHeaderBuffer(verifier)
                                       : schema::VerifySnapshotHeaderBuffer(verifier);
}

Result<Section> read_section_entry(const schema::Section& entry, bool allow_empty) {
  CAIRN_TRY_ASSIGN(std::string name, checked_text(entry.name(), "a section name", kMaxSectionNameBytes));
  Section section;
  section.name = std::move(name);
  section.dtype = static_cast<DType>(entry.dtype());
  if (entry.shape()->size() > kMaxSectionRank) {
    return Status::format_error("section '%s': rank %u (1 to %zu)", section.name.c_str(), entry.shape()->size(),
                                kMaxSectionRank);
  }
  section.shape = copy_vector(entry.shape());
  CAIRN_TRY_ASSIGN(section.size_bytes, section_size_bytes(section.name, section.dtype, section.shape, allow_empty));
  if (section.size_bytes != entry.size()) {
    return Status::format_error("section '%s': %llu bytes, but %s of %s take %llu", section.name.c_str(),
                                ull{entry.size()}, shape_text(section.shape).c_str(), dtype_name(section.dtype),
                                ull{section.size_bytes});
  }
  section.offset_bytes = entry.offset();
  return section;
}

}  // namespace

Result<ContainerReader> ContainerReader::open(std::shared_ptr<const ByteSource> source, ContainerKind kind,
                                              const ContainerLimits& limits) {
  CAIRN_TRY_ASSIGN(ContainerReader reader, open_front(std::move(source), kind, limits));
  CAIRN_TRY(reader.read_back());
  return reader;
}

Result<ContainerReader> ContainerReader::open_front(std::shared_ptr<const ByteSource> source, ContainerKind kind,
                                                    const ContainerLimits& limits) {
  ContainerReader reader;
  reader.source_ = std::move(source);
  reader.kind_ = kind;
  CAIRN_TRY(reader.read_preamble(limits));
  CAIRN_TRY(reader.read_header());
  CAIRN_TRY(reader.read_sections(limits));
  return reader;
}

Status ContainerReader::read_preamble(const ContainerLimits& limits) {
  const std::uint64_t size = source_->size_bytes();
  std::uint8_t* p = preamble_.data();
  CAIRN_TRY(source_->read(0, p, std::min(size, kPreambleBytes)));
  if (size < 4 || std::memcmp(p, kContainerMagic.data(), std::min<std::uint64_t>(size, kContainerMagic.size())) != 0) {
    if (size < 4) return Status::format_error("not a Cairn file: it has %llu bytes", ull{size});
    return foreign_file(p, size);
  }
  if (size < kPreambleBytes) {
    return Status::format_error("truncated: %llu bytes (a preamble has %llu)", ull{size}, ull{kPreambleBytes});
  }
  const auto order = load<std::uint32_t>(p + 16);
  if (order == 0x04030201) return Status::format_error("written in big-endian byte order: only little-endian is read");
  if (order != kByteOrderMark)
    return Status::format_error("byte order mark 0x%08x (must be 0x%08x)", order, kByteOrderMark);
  major_ = load<std::uint16_t>(p + 12);
  minor_ = load<std::uint16_t>(p + 14);
  if (major_ != kContainerMajor) {
    return Status::error(CAIRN_STATUS_VERSION, "format version %u.%u (this library reads %u.x)", major_, minor_,
                         kContainerMajor);
  }
  const auto kind = load<std::uint32_t>(p + 8);
  if (kind != static_cast<std::uint32_t>(kind_)) {
    for (ContainerKind other : {ContainerKind::kModel, ContainerKind::kSnapshot}) {
      if (kind == static_cast<std::uint32_t>(other)) {
        return Status::format_error("this is a %s, not a %s", container_kind_name(other), container_kind_name(kind_));
      }
    }
    return Status::format_error("unknown kind of file 0x%08x", kind);
  }
  const std::uint32_t unknown = load<std::uint32_t>(p + 20) & kCriticalFlagsMask & ~kKnownCriticalFlags;
  if (unknown != 0) {
    return Status::error(CAIRN_STATUS_VERSION,
                         "format version %u.%u uses features that this library lacks (flags 0x%08x)", major_, minor_,
                         unknown);
  }
  header_bytes_ = load<std::uint32_t>(p + 24);
  payload_offset_ = load<std::uint64_t>(p + 32);
  payload_bytes_ = load<std::uint64_t>(p + 40);
  total_bytes_ = load<std::uint64_t>(p + 48);
  if (total_bytes_ != size) {
    return Status::format_error("the file has %llu bytes, its preamble says %llu", ull{size}, ull{total_bytes_});
  }
  if (total_bytes_ > limits.max_total_bytes) {
    return Status::limit_exceeded("%llu bytes (limit %llu)", ull{total_bytes_}, ull{limits.max_total_bytes});
  }
  if (header_bytes_ == 0 || header_bytes_ > kMaxHeaderBytes) {
    return Status::format_error("header of %llu bytes (1 to %llu)", ull{header_bytes_}, ull{kMaxHeaderBytes});
  }
  if (payload_offset_ != aligned(kPreambleBytes + header_bytes_) ||
      !range_fits(payload_offset_, payload_bytes_, size)) {
    return Status::format_error("payload [%llu, +%llu) does not fit a header of %llu and a file of %llu bytes",
                                ull{payload_offset_}, ull{payload_bytes_}, ull{header_bytes_}, ull{size});
  }
  return {};
}

Status ContainerReader::read_header() {
  // Together with its zero padding, into private memory: what is checked is what is used.
  const std::uint64_t padded = payload_offset_ - kPreambleBytes;
  CAIRN_TRY_ASSIGN(header_, HostBuffer::allocate(padded, "file header"));
  CAIRN_TRY(source_->read(kPreambleBytes, header_.data(), padded));
  Xxh3Stream checksum;
  checksum.update(preamble_.data(), 56);
  checksum.update(header_.data(), header_bytes_);
  if (checksum.value() != load<std::uint64_t>(preamble_.data() + 56)) {
    return Status::error(CAIRN_STATUS_CHECKSUM, "the header (bytes 0 to %llu) is damaged",
                         ull{kPreambleBytes + header_bytes_});
  }
  if (!is_zero(header_.data() + header_bytes_, padded - header_bytes_)) {
    return Status::format_error("the padding after the header is not zero");
  }
  if (header_bytes_ < 8 || !verify_structure(kind_, header_.data(), header_bytes_)) {
    return Status::format_error("the header is not a well-formed %s header", container_kind_name(kind_));
  }
  return {};
}

const schema::ModelHeader& ContainerReader::model_header() const { return *schema::GetModelHeader(header_.data()); }

const schema::SnapshotHeader& ContainerReader::snapshot_header() const {
  return *schema::GetSnapshotHeader(header_.data());
}

Status ContainerReader::read_sections(const ContainerLimits& limits) {
  const auto* entries = kind_ == ContainerKind::kModel ? model_header().sections() : snapshot_header().sections();
  const auto declared = load<std::uint32_t>(preamble_.data() + 28);
  if (entries->size() != declared) {
    return Status::format_error("%u sections, but the preamble says %u", entries->size(), declared);
  }
  if (entries->size() > limits.max_sections) {
    return Status::limit_exceeded("%u sections (limit %llu)", entries->size(), ull{limits.max_sections});
  }
  sections_.reserve(entries->size());
  first_block_.reserve(entries->size());
  std::uint64_t end = 0, blocks = 0;
  for (const schema::Section* entry : *entries) {
    CAIRN_TRY_ASSIGN(Section section, read_section_entry(*entry, kind_ == ContainerKind::kSnapshot));
    const char* name = section.name.c_str();
    if (section.size_bytes > limits.max_section_bytes) {
      return Status::limit_exceeded("section '%s': %llu bytes (limit %llu)", name, ull{section.size_bytes},
                                    ull{limits.max_section_bytes});
    }
    if (!sections_.empty() && !(sections_.back().name < section.name)) {
      return Status::format_error("section '%s' follows '%s': not sorted, or there twice", name,
                                  sections_.back().name.c_str());
    }
    if (section.offset_bytes != aligned(end)) {
      return Status::format_error("section '%s' begins at byte %llu of the payload (expected %llu)", name,
                                  ull{section.offset_bytes}, ull{aligned(end)});
    }
    if (!range_fits(section.offset_bytes, section.size_bytes, payload_bytes_)) {
      return Status::format_error("section '%s' [%llu, +%llu) is past the payload's end at %llu", name,
                                  ull{section.offset_bytes}, ull{section.size_bytes}, ull{payload_bytes_});
    }
    end = section.offset_bytes + section.size_bytes;
    section.offset_bytes += payload_offset_;
    first_block_.push_back(blocks);
    blocks += checksum_block_count(section.size_bytes);
    sections_.push_back(std::move(section));
  }
  if (end != payload_bytes_) {
    return Status::format_error("the sections end at byte %llu of a payload of %llu", ull{end}, ull{payload_bytes_});
  }
  const std::uint64_t table_offset = aligned(payload_offset_ + payload_bytes_);
  const auto expected = checked_add(aligned(table_offset + blocks * 8), kTrailerBytes);
  if (!expected || *expected != total_bytes_) {
    return Status::format_error("%llu blocks of payload make a file of %llu bytes, not %llu", ull{blocks},
                                ull{expected.value_or(0)}, ull{total_bytes_});
  }
  block_count_ = blocks;
  return {};
}

Status ContainerReader::read_back() {
  const std::uint64_t table_offset = aligned(payload_offset_ + payload_bytes_);
  const std::uint64_t table_bytes = block_count_ * 8;
  const std::uint64_t trailer_offset = total_bytes_ - kTrailerBytes;
  std::uint8_t trailer[kTrailerBytes];
  CAIRN_TRY(source_->read(trailer_offset, trailer, sizeof trailer));
  if (std::memcmp(trailer + 56, kContainerEndMagic.data(), kContainerEndMagic.size()) != 0) {
    return Status::format_error("the end mark is missing at byte %llu", ull{trailer_offset + 56});
  }
  if (load<std::uint64_t>(trailer + 32) != block_count_ || load<std::uint64_t>(trailer + 40) != table_offset ||
      load<std::uint64_t>(trailer + 48) != 0) {
    return Status::format_error("the trailer at byte %llu disagrees with the header", ull{trailer_offset});
  }
  std::vector<std::uint8_t> table(trailer_offset - table_offset);
  CAIRN_TRY(source_->read(table_offset, table.data(), table.size()));
  if (std::any_of(table.begin() + static_cast<std::ptrdiff_t>(table_bytes), table.end(),
                  [](auto b) { return b != 0; })) {
    return Status::format_error("the padding after the checksums is not zero");
  }
  Blake2bStream digest;
  digest.update(preamble_.data(), preamble_.size());
  digest.update(header_.data(), header_bytes_);
  digest.update(table.data(), table_bytes);
  if (std::memcmp(digest.finish().data(), trailer, 32) != 0) {
    return Status::error(CAIRN_STATUS_CHECKSUM, "the checksum table or the trailer (byte %llu and after) is damaged",
                         ull{table_offset});
  }
  checksums_.resize(block_count_);
  for (std::size_t i = 0; i < checksums_.size(); ++i) checksums_[i] = load<std::uint64_t>(table.data() + i * 8);
  return {};
}

const Section* ContainerReader::find(const std::string& name) const {
  const auto found =
      std::lower_bound(sections_.begin(), sections_.end(), name,
                       [](const Section& section, const std::string& wanted) { return section.name < wanted; });
  return found != sections_.end() && found->name == name ? &*found : nullptr;
}

Result<const Section*> ContainerReader::require(const std::string& name, DType dtype,
                                                const std::vector<std::int64_t>& shape) const {
  const Section* section = find(name);
  if (!section) return Status::format_error("section '%s' is missing", name.c_str());
  if (section->dtype != dtype || section->shape != shape) {
    return Status::format_error("section '%s' is %s %s (expected %s %s)", name.c_str(), dtype_name(section->dtype),
                                shape_text(section->shape).c_str(), dtype_name(dtype), shape_text(shape).c_str());
  }
  return section;
}

std::size_t ContainerReader::index_of(const Section& section) const {
  return static_cast<std::size_t>(&section - sections_.data());
}

const std::uint64_t* ContainerReader::checksums(const Section& section) const {
  return checksums_.data() + first_block_[index_of(section)];
}

const std::byte* ContainerReader::data(const Section& section) const {
  const std::byte* memory = source_->memory();
  return memory ? memory + section.offset_bytes : nullptr;
}

Status ContainerReader::check_block(const Section& section, std::uint64_t block, const void* data,
                                    std::size_t size_bytes) const {
  if (xxh3_64(data, size_bytes) == checksums(section)[block]) return {};
  const std::uint64_t begin = section.offset_bytes + block * kChecksumBlockBytes;
  return Status::error(CAIRN_STATUS_CHECKSUM, "section '%s': bytes %llu to %llu of the file are damaged",
                       section.name.c_str(), ull{begin}, ull{begin + size_bytes});
}

Status ContainerReader::read(const Section& section, void* to) const {
  return read_blocks(section, 0, to, section.size_bytes);
}

Status ContainerReader::read_blocks(const Section& section, std::uint64_t offset_bytes, void* to,
                                    std::uint64_t size_bytes) const {
  const bool ends_well =
      (offset_bytes + size_bytes) % kChecksumBlockBytes == 0 || offset_bytes + size_bytes == section.size_bytes;
  if (!range_fits(offset_bytes, size_bytes, section.size_bytes) || offset_bytes % kChecksumBlockBytes != 0 ||
      !ends_well) {
    return Status::error(CAIRN_STATUS_INTERNAL, "section '%s': [%llu, +%llu) is no run of blocks", section.name.c_str(),
                         ull{offset_bytes}, ull{size_bytes});
  }
  auto* bytes = static_cast<std::byte*>(to);
  for (std::uint64_t done = 0; done < size_bytes; done += kChecksumBlockBytes) {
    const auto piece = static_cast<std::size_t>(std::min<std::uint64_t>(kChecksumBlockBytes, size_bytes - done));
    CAIRN_TRY(source_->read(section.offset_bytes + offset_bytes + done, bytes + done, piece));
    CAIRN_TRY(check_block(section, (offset_bytes + done) / kChecksumBlockBytes, bytes + done, piece));
  }
  return {};
}

Status ContainerReader::verify_payload(const ByteProgress& progress) const {
  std::vector<std::byte> copy(source_->memory() ? 0 : std::min<std::uint64_t>(kChecksumBlockBytes, payload_bytes_));
  std::uint64_t end = payload_offset_;
  for (const Section& section : sections_) {
    std::byte padding[kSectionAlignment];
    CAIRN_TRY(source_->read(end, padding, section.offset_bytes - end));
    if (!is_zero(padding, section.offset_bytes - end)) {
      return Status::format_error("the padding before section '%s' is not zero", section.name.c_str());
    }
    end = section.offset_bytes + section.size_bytes;
    for (std::uint64_t done = 0; done < section.size_bytes; done += kChecksumBlockBytes) {
      const auto piece =
          static_cast<std::size_t>(std::min<std::uint64_t>(kChecksumBlockBytes, section.size_bytes - done));
      const std::byte* bytes = source_->memory() ? source_->memory() + section.offset_bytes + done : copy.data();
      if (!source_->memory()) CAIRN_TRY(source_->read(section.offset_bytes + done, copy.data(), piece));
      CAIRN_TRY(check_block(section, done / kChecksumBlockBytes, bytes, piece));
      if (progress && !progress(section.offset_bytes + done + piece - payload_offset_, payload_bytes_)) {
        return Status::error(CAIRN_STATUS_CANCELLED, "verifying a %s was cancelled", container_kind_name(kind_));
      }
    }
  }
  std::byte padding[kSectionAlignment];
  const std::uint64_t padding_bytes = aligned(end) - end;
  CAIRN_TRY(source_->read(end, padding, padding_bytes));
  if (!is_zero(padding, padding_bytes)) return Status::format_error("the padding after the payload is not zero");
  return {};
}

}  // namespace cairn
