#include "runtime/model/container_format.h"

#include "runtime/support/checked_math.h"

namespace cairn {
namespace {

bool is_name_character(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.'; }

Status check_section_name(const std::string& name) {
  if (name.empty() || name.size() > kMaxSectionNameBytes) {
    return Status::format_error("a section name has %zu bytes (1 to %zu)", name.size(), kMaxSectionNameBytes);
  }
  for (char c : name) {
    if (!is_name_character(c)) {
      return Status::format_error("section name '%.*s' holds byte 0x%02x (allowed: a-z 0-9 _ .)",
                                  static_cast<int>(name.size()), name.c_str(), static_cast<unsigned char>(c));
    }
  }
  return {};
}

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

const char* container_kind_name(ContainerKind kind) { return kind == ContainerKind::kModel ? "model" : "snapshot"; }

Status check_text(std::string_view text, const char* field, std::size_t max_bytes) {
  if (text.size() > max_bytes) {
    return Status::limit_exceeded("%s has %zu bytes (limit %zu)", field, text.size(), max_bytes);
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = bytes[i] == 0 ? 0 : character_bytes(bytes + i, text.size() - i);
    if (length == 0) return Status::format_error("%s: byte %zu (0x%02x) is not UTF-8 text", field, i, bytes[i]);
    i += length;
  }
  return {};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Result<std::uint64_t> section_size_bytes(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape,
                                         bool allow_empty) {
  CAIRN_TRY(check_section_name(name));
  if (shape.empty() || shape.size() > kMaxSectionRank) {
    return Status::format_error("section '%s': rank %zu (1 to %zu)", name.c_str(), shape.size(), kMaxSectionRank);
  }
  const int bits = dtype_bits(dtype);
  if (bits == 0)
    return Status::format_error("section '%s': unknown element type %d", name.c_str(), static_cast<int>(dtype));
  std::uint64_t elements = 1;
  for (std::int64_t dim : shape) {
    if (dim < 0 || (dim == 0 && !allow_empty) || dim > INT32_MAX) {
      return Status::format_error("section '%s': dimension %lld (%d to 2147483647)", name.c_str(),
                                  static_cast<long long>(dim), allow_empty ? 0 : 1);
    }
    const auto product = checked_mul(elements, static_cast<std::uint64_t>(dim));
    if (!product)
      return Status::format_error("section '%s': shape %s overflows", name.c_str(), shape_text(shape).c_str());
    elements = *product;
  }
  const auto total_bits = checked_mul(elements, static_cast<std::uint64_t>(bits));
  const auto rounded = total_bits ? checked_add<std::uint64_t>(*total_bits, 7) : std::nullopt;
  if (!rounded)
    return Status::format_error("section '%s': shape %s overflows", name.c_str(), shape_text(shape).c_str());
  return *rounded / 8;
}

}  // namespace cairn
