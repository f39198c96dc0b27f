// Reading regular files through the I/O table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/support/io_hooks.h"
#include "runtime/support/status.h"

namespace cairn {

/// A regular file open for reading. Keeps the I/O table that it was opened with.
class File {
 public:
  /// NOT_FOUND, IO. Folders, FIFOs, devices and sockets are refused without waiting for them.
  static Result<File> open(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  std::uint64_t size_bytes() const { return size_bytes_; }  ///< when it was opened
  /// All of [offset, offset + size), or IO when the file ends before.
  Status read(std::uint64_t offset_bytes, void* to, std::size_t size_bytes) const;

  const std::string& path() const { return path_; }
  const cairn_io& io() const { return io_; }
  int descriptor() const { return descriptor_; }

 private:
  File() = default;
  std::string path_;
  cairn_io io_{};
  int descriptor_ = -1;
  std::uint64_t size_bytes_ = 0;
};

/// INVALID_ARGUMENT: empty, with a NUL, or of 4,096 bytes or more.
Status check_path(const std::string& path);

/// An error with the path in front, where its message does not begin with it already.
Status with_path(std::string_view path, const Status& status);

/// The whole file as text. LIMIT_EXCEEDED above max_bytes.
Result<std::string> read_text_file(const std::string& path, std::uint64_t max_bytes);

/// False: nothing is there. A file that is there and cannot be opened, or is no regular file, is an error.
Result<bool> file_exists(const std::string& path);

/// NOT_FOUND, IO: the path is no folder that can be opened.
Status check_folder(const std::string& path);

}  // namespace cairn
