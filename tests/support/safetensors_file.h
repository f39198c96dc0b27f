// Reads and writes whole safetensors files: u64 header length, JSON header, row-major little-endian data.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "backends/interface/tensor_view.h"

namespace cairn::test {

struct FileTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;

  std::int64_t count() const;
  /// Any element type, widened; f32 from f32, bf16, f16 and f64.
  std::vector<float> floats() const;
  std::vector<std::int64_t> integers() const;
};

using FileTensors = std::map<std::string, FileTensor>;

/// False: *reason says why.
bool read_safetensors(const std::string& path, FileTensors* tensors, std::string* reason);
/// False: it could not be written.
bool write_safetensors(const std::string& path, const FileTensors& tensors);

}  // namespace cairn::test
