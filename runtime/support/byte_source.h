// Where a reader's bytes come from: memory, a mapped file, or a file read by position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/support/status.h"

namespace cairn {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size_bytes() const = 0;
  /// Copies [offset, offset + size) to `to`; fails when the range is not there (a file may have shrunk).
  virtual Status read(std::uint64_t offset_bytes, void* to, std::size_t size_bytes) const = 0;
  /// The whole source as memory, at a multiple of 64; null: read() is the only way.
  virtual const std::byte* memory() const { return nullptr; }
};

/// Bytes that the caller keeps alive while the source is used. memory() is null when they are not 64-aligned.
std::shared_ptr<const ByteSource> memory_source(const void* data, std::uint64_t size_bytes);

/// A private, 64-aligned copy.
Result<std::shared_ptr<const ByteSource>> copied_source(const void* data, std::uint64_t size_bytes);

enum class FileAccess : std::uint8_t {
  kMap = 0,         ///< mapped; read into memory where mapping is not possible (a host's own I/O table)
  kReadAll = 1,     ///< read once into memory
  kPositional = 2   ///< read piece by piece: for files that are not trusted to keep still
};

/// A regular file. NOT_FOUND, IO; FIFOs, folders, devices and sockets are refused by name.
Result<std::shared_ptr<const ByteSource>> file_source(const std::string& path, FileAccess access);

}  // namespace cairn
