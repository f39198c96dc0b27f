// Reads safetensors files, alone or sharded with an index. Strict as the format's own rules: no duplicate names, no
// holes, no overlap, the data is exactly as long as the header says.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/support/byte_source.h"
#include "runtime/support/status.h"

namespace cairn {

enum class SafetensorsType : std::uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool
};
const char* safetensors_type_name(SafetensorsType type);  ///< "F8_E4M3", ...
int safetensors_type_bytes(SafetensorsType type);

/// A tensor in a file. `data` may have any alignment.
struct SafetensorsEntry {
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  std::shared_ptr<const ByteSource> source;  ///< keeps data alive
};

inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100000000;

struct SafetensorsLimits {
  std::uint64_t max_tensors = 131072;
  std::uint64_t max_tensor_bytes = std::uint64_t{1} << 44;
};

using SafetensorsMap = std::map<std::string, SafetensorsEntry>;

/// The tensors of one file, from a source with memory(). `label` names the file in messages.
Result<SafetensorsMap> read_safetensors(std::shared_ptr<const ByteSource> source, const std::string& label,
                                        const SafetensorsLimits& limits = {});

/// The tensors of a folder: model.safetensors.index.json and its shards, or model.safetensors. Shards lie in the folder
/// itself: names with a path in them are refused.
Result<SafetensorsMap> read_safetensors_folder(const std::string& folder, FileAccess access,
                                               const SafetensorsLimits& limits = {});

}  // namespace cairn
