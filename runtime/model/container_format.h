// The numbers of the container that models and snapshots share. The bytes are told in schema/FORMAT.md.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/interface/tensor_view.h"
#include "runtime/support/status.h"

namespace cairn {

enum class ContainerKind : std::uint32_t {
  kModel = 0x4c444f4d,    ///< "MODL"
  kSnapshot = 0x50414e53  ///< "SNAP"
};
const char* container_kind_name(ContainerKind kind);  ///< "model", "snapshot"

inline constexpr std::array<std::uint8_t, 8> kContainerMagic = {0x8f, 'C', 'A', 'I', 'R', 'N', '\r', '\n'};
inline constexpr std::array<std::uint8_t, 8> kContainerEndMagic = {'C', 'A', 'I', 'R', 'N', 'E', 'N', 'D'};
inline constexpr std::uint16_t kContainerMajor = 1;
inline constexpr std::uint16_t kContainerMinor = 0;
inline constexpr std::uint32_t kByteOrderMark = 0x01020304;
inline constexpr std::uint32_t kCriticalFlagsMask = 0xffff0000;  ///< a reader refuses those that it does not know
inline constexpr std::uint64_t kPreambleBytes = 64;
inline constexpr std::uint64_t kTrailerBytes = 64;
inline constexpr std::uint64_t kSectionAlignment = 64;
inline constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kMaxSections = 262144;  ///< 60 layers of 512 experts, quantised, are 184,000
inline constexpr std::uint64_t kMaxSectionBytes = std::uint64_t{1} << 44;
inline constexpr std::size_t kMaxSectionNameBytes = 256;
inline constexpr std::size_t kMaxSectionRank = 6;

/// done, total in bytes; false cancels.
using ByteProgress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

/// An array in the payload.
struct Section {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;
  std::uint64_t offset_bytes = 0;  ///< from the start of the file
  std::uint64_t size_bytes = 0;
};

/// product(shape) * bits / 8, rounded up; checks name, rank, dims and overflow. Dims of 0 only where allow_empty.
Result<std::uint64_t> section_size_bytes(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape,
                                         bool allow_empty);

/// LIMIT_EXCEEDED: longer than max_bytes; FORMAT: not UTF-8, or with a NUL.
Status check_text(std::string_view text, const char* field, std::size_t max_bytes);

/// "[3, 4]", for messages.
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace cairn
