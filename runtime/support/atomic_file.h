// A file that is replaced as a whole or not at all, also after a crash or a power loss (POSIX).
//
//   CAIRN_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path));
//   CAIRN_TRY(file.write(data, size));                        // any number of times
//   CAIRN_TRY(file.commit({.verify = AtomicFile::Verify::kUpTo64MiB}));
//
// Steps: temporary file in the same directory (exclusive, no symlink, mode 0600, unpredictable name) -> write -> fsync ->
// read back and compare, when asked -> close -> check, when asked -> rename -> fsync of the directory. Until commit() the old file is untouched;
// a file that is not committed is removed on destruction. A symbolic link at `path` is followed and stays: the file that it
// names is replaced, in that file's directory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/support/status.h"

namespace cairn {

class AtomicFile {
 public:
  enum class Verify : std::uint8_t { kUpTo64MiB = 0, kAlways = 1, kNever = 2 };
  struct CommitOptions {
    Verify verify = Verify::kUpTo64MiB;
    /// Has the last word on the finished temporary file, at this path, before it takes the old one's place; null: none.
    std::function<Status(const std::string& path)> check = nullptr;
  };

  /// Opens the directory and makes the temporary file; removes stale temporaries of earlier saves to the same path.
  /// IO: a device, FIFO, socket or folder is there.
  static Result<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) noexcept;
  ~AtomicFile();  ///< removes the temporary file unless it was committed

  /// Appends. All-zero blocks become holes. NO_SPACE, IO.
  Status write(const void* data, std::size_t size_bytes);
  std::uint64_t size_bytes() const;

  /// Makes the new file the file at `path`. On failure the old one is still there and the temporary one is gone;
  /// DURABILITY: the new one is in place, but syncing the directory failed. Call once.
  Status commit(const CommitOptions& options);

 private:
  struct State;
  explicit AtomicFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cairn
