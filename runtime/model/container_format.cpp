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

}  // namespace

const char* container_kind_name(ContainerKind kind) { return kind == ContainerKind::kModel ? "model" : "snapshot"; }

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
