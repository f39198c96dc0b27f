#include "runtime/model/container_header.h"

namespace cairn {
namespace {

/// Length of the UTF-8 character at `bytes`, or 0: overlong forms, surrogates and values past U+10FFFF are not UTF-8.
std::size_t character_bytes(const unsigned char* bytes, std::size_t room) {
  const unsigned char first = bytes[0];
  const auto is_tail = [&](std::size_t i) { return i < room && (bytes[i] & 0xc0U) == 0x80U; };
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return is_tail(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    if (!is_tail(1) || !is_tail(2)) return 0;
    if ((first == 0xe0 && bytes[1] < 0xa0) || (first == 0xed && bytes[1] > 0x9f)) return 0;
    return 3;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    if (!is_tail(1) || !is_tail(2) || !is_tail(3)) return 0;
    if ((first == 0xf0 && bytes[1] < 0x90) || (first == 0xf4 && bytes[1] > 0x8f)) return 0;
    return 4;
  }
  return 0;
}

}  // namespace

flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<schema::Section>>> build_sections(
    flatbuffers::FlatBufferBuilder& builder, const ContainerPlan& plan) {
  std::vector<flatbuffers::Offset<schema::Section>> sections;
  sections.reserve(plan.sections().size());
  for (const Section& section : plan.sections()) {
    const auto name = builder.CreateString(section.name);
    const auto shape = builder.CreateVector(section.shape);
    sections.push_back(schema::CreateSection(builder, name, static_cast<schema::DType>(section.dtype), shape,
                                             section.offset_bytes, section.size_bytes));
  }
  return builder.CreateVector(sections);
}

const char* library_version() { return CAIRN_VERSION_STRING; }

Result<std::string> checked_text(const flatbuffers::String* text, const char* field, std::size_t max_bytes) {
  if (!text) return Status::format_error("%s is missing", field);
  if (text->size() > max_bytes) {
    return Status::limit_exceeded("%s has %u bytes (limit %zu)", field, text->size(), max_bytes);
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(text->c_str());
  for (std::size_t i = 0; i < text->size();) {
    const std::size_t length = bytes[i] == 0 ? 0 : character_bytes(bytes + i, text->size() - i);
    if (length == 0) {
      return Status::format_error("%s: byte %zu (0x%02x) is not UTF-8 text", field, i, bytes[i]);
    }
    i += length;
  }
  return text->str();
}

}  // namespace cairn
