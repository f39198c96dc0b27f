// A file mapped for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/support/file.h"

namespace cairn {

/// Read-only, private. The file must not be truncated while this lives: reading past its new end raises SIGBUS.
class MappedFile {
 public:
  /// UNSUPPORTED: the file's I/O table is the host's own. The descriptor is not needed afterwards.
  static Result<std::shared_ptr<const MappedFile>> map(const File& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  MappedFile(const std::byte* data, std::uint64_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  const std::byte* data_;
  std::uint64_t size_bytes_;
};

}  // namespace cairn
