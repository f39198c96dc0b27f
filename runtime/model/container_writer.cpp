#include "runtime/model/container_writer.h"

#include <algorithm>
#include <cstring>

#include "runtime/model/container_header.h"
#include "runtime/support/checked_math.h"

namespace cairn {
namespace {

template <class T>
void store(std::uint8_t* bytes, std::size_t offset, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes[offset + i] = static_cast<std::uint8_t>(value >> (8 * i));
}

std::uint64_t aligned(std::uint64_t value) { return (value + kSectionAlignment - 1) & ~(kSectionAlignment - 1); }

/// The reader's words about a name or shape, as the caller's mistake.
Status as_argument_error(const Status& status) { return Status(CAIRN_STATUS_INVALID_ARGUMENT, status.message()); }

}  // namespace

Status ContainerPlan::add(std::string name, DType dtype, std::vector<std::int64_t> shape) {
  Result<std::uint64_t> size = section_size_bytes(name, dtype, shape, kind_ == ContainerKind::kSnapshot);
  if (!size.ok()) return as_argument_error(size.status());
  if (size.value() > kMaxSectionBytes) {
    return Status::limit_exceeded("section '%s': %llu bytes (limit %llu)", name.c_str(),
                                  static_cast<unsigned long long>(size.value()),
                                  static_cast<unsigned long long>(kMaxSectionBytes));
  }
  if (sections_.size() >= kMaxSections) {
    return Status::limit_exceeded("more than %llu sections", static_cast<unsigned long long>(kMaxSections));
  }
  sections_.push_back({std::move(name), dtype, std::move(shape), 0, size.value()});
  return {};
}

Status ContainerPlan::finish() {
  std::sort(sections_.begin(), sections_.end(), [](const Section& a, const Section& b) { return a.name < b.name; });
  std::uint64_t end = 0;
  block_count_ = 0;
  for (std::size_t i = 0; i < sections_.size(); ++i) {
    Section& section = sections_[i];
    if (i > 0 && sections_[i - 1].name == section.name) {
      return Status::invalid_argument("two sections are named '%s'", section.name.c_str());
    }
    section.offset_bytes = aligned(end);  // at most 2^18 sections of 2^44 bytes: no overflow
    end = section.offset_bytes + section.size_bytes;
    block_count_ += checksum_block_count(section.size_bytes);
  }
  payload_bytes_ = end;
  return {};
}

std::uint64_t ContainerPlan::total_bytes(std::uint64_t header_bytes) const {
  const std::uint64_t payload_offset = aligned(kPreambleBytes + header_bytes);
  return aligned(aligned(payload_offset + payload_bytes_) + block_count_ * 8) + kTrailerBytes;
}

ContainerWriter::ContainerWriter(const ContainerPlan& plan, ByteSink& sink, ByteProgress progress)
    : plan_(plan), sink_(sink), progress_(std::move(progress)) {}

Status ContainerWriter::emit(const void* data, std::uint64_t size_bytes) {
  CAIRN_TRY(sink_.write(data, size_bytes));
  written_bytes_ += size_bytes;
  return {};
}

Status ContainerWriter::pad_to_alignment() {
  static constexpr std::uint8_t kZeros[kSectionAlignment] = {};
  return emit(kZeros, aligned(written_bytes_) - written_bytes_);
}

Status ContainerWriter::begin(const void* header, std::uint64_t header_bytes) {
  if (header_bytes == 0 || header_bytes > kMaxHeaderBytes) {
    return Status::limit_exceeded("a file header of %llu bytes (1 to %llu)",
                                  static_cast<unsigned long long>(header_bytes),
                                  static_cast<unsigned long long>(kMaxHeaderBytes));
  }
  total_bytes_ = plan_.total_bytes(header_bytes);
  std::uint8_t preamble[kPreambleBytes] = {};
  std::memcpy(preamble, kContainerMagic.data(), kContainerMagic.size());
  store(preamble, 8, static_cast<std::uint32_t>(plan_.kind()));
  store(preamble, 12, kContainerMajor);
  store(preamble, 14, kContainerMinor);
  store(preamble, 16, kByteOrderMark);
  store(preamble, 20, std::uint32_t{0});
  store(preamble, 24, static_cast<std::uint32_t>(header_bytes));
  store(preamble, 28, static_cast<std::uint32_t>(plan_.sections().size()));
  store(preamble, 32, aligned(kPreambleBytes + header_bytes));
  store(preamble, 40, plan_.payload_bytes());
  store(preamble, 48, total_bytes_);
  Xxh3Stream checksum;
  checksum.update(preamble, 56);
  checksum.update(header, header_bytes);
  store(preamble, 56, checksum.value());
  digest_.update(preamble, sizeof preamble);
  digest_.update(header, header_bytes);
  checksums_.reserve(plan_.block_count());
  CAIRN_TRY(emit(preamble, sizeof preamble));
  CAIRN_TRY(emit(header, header_bytes));
  CAIRN_TRY(pad_to_alignment());
  return close_empty_sections();
}

/// Steps over sections that are complete: full ones and those of no bytes.
Status ContainerWriter::close_empty_sections() {
  const auto& sections = plan_.sections();
  while (section_ < sections.size() && section_done_bytes_ == sections[section_].size_bytes) {
    if (section_done_bytes_ % kChecksumBlockBytes != 0) checksums_.push_back(block_.value());
    block_.reset();
    section_done_bytes_ = 0;
    ++section_;
    if (section_ < sections.size() && sections[section_].size_bytes > 0) CAIRN_TRY(pad_to_alignment());
  }
  return {};
}

Status ContainerWriter::write(const void* data, std::uint64_t size_bytes) {
  if (size_bytes == 0) return {};
  const auto& sections = plan_.sections();
  if (section_ >= sections.size() || size_bytes > sections[section_].size_bytes - section_done_bytes_) {
    return Status::error(CAIRN_STATUS_INTERNAL, "container writer: %llu bytes more than section '%s' takes",
                         static_cast<unsigned long long>(size_bytes),
                         section_ < sections.size() ? sections[section_].name.c_str() : "(none)");
  }
  const auto* bytes = static_cast<const std::byte*>(data);
  while (size_bytes > 0) {
    const std::uint64_t room = kChecksumBlockBytes - section_done_bytes_ % kChecksumBlockBytes;
    const std::uint64_t piece = std::min(room, size_bytes);
    block_.update(bytes, piece);
    CAIRN_TRY(emit(bytes, piece));
    section_done_bytes_ += piece;
    if (section_done_bytes_ % kChecksumBlockBytes == 0) {
      checksums_.push_back(block_.value());
      block_.reset();
    }
    CAIRN_TRY(tell_progress());
    bytes += piece;
    size_bytes -= piece;
  }
  return close_empty_sections();
}

Status ContainerWriter::finish() {
  if (section_ != plan_.sections().size() || checksums_.size() != plan_.block_count()) {
    return Status::error(CAIRN_STATUS_INTERNAL, "container writer: finished in section %zu of %zu", section_,
                         plan_.sections().size());
  }
  CAIRN_TRY(pad_to_alignment());
  const std::uint64_t table_offset = written_bytes_;
  std::vector<std::uint8_t> table(checksums_.size() * 8);
  for (std::size_t i = 0; i < checksums_.size(); ++i) store(table.data(), i * 8, checksums_[i]);
  digest_.update(table.data(), table.size());
  CAIRN_TRY(emit(table.data(), table.size()));
  CAIRN_TRY(pad_to_alignment());
  const Digest digest = digest_.finish();
  std::uint8_t trailer[kTrailerBytes] = {};
  std::memcpy(trailer, digest.data(), digest.size());
  store(trailer, 32, plan_.block_count());
  store(trailer, 40, table_offset);
  store(trailer, 48, std::uint64_t{0});
  std::memcpy(trailer + 56, kContainerEndMagic.data(), kContainerEndMagic.size());
  CAIRN_TRY(emit(trailer, sizeof trailer));
  if (written_bytes_ != total_bytes_) {
    return Status::error(CAIRN_STATUS_INTERNAL, "container writer: %llu bytes written, %llu planned",
                         static_cast<unsigned long long>(written_bytes_),
                         static_cast<unsigned long long>(total_bytes_));
  }
  return tell_progress();
}

Status ContainerWriter::tell_progress() const {
  if (!progress_ || progress_(written_bytes_, total_bytes_)) return {};
  return Status::error(CAIRN_STATUS_CANCELLED, "writing a %s was cancelled", container_kind_name(plan_.kind()));
}

}  // namespace cairn
