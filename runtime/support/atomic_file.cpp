#include "runtime/support/atomic_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "runtime/support/checksum.h"
#include "runtime/support/file.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxWriteBytes = std::size_t{8} << 20;
constexpr std::uint64_t kVerifyLimitBytes = std::uint64_t{64} << 20;
constexpr std::time_t kStaleSeconds = 3600;  // a temporary file that old belongs to a save that died
constexpr const char* kTemporaryMark = ".cairn-tmp-";
constexpr int kMaxLinks = 40;  // as Linux follows

/// 64 bits that nobody can guess; the clock where the system has no random bytes yet.
std::uint64_t random_bits() {
  std::uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, GRND_NONBLOCK) == sizeof bits) return bits;
  struct timespec now = {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_nsec) * 0x9e3779b97f4a7c15U ^ static_cast<std::uint64_t>(now.tv_sec);
}

bool is_all_zero(const std::byte* bytes, std::size_t size_bytes) {
  return size_bytes > 0 && bytes[0] == std::byte{0} && std::memcmp(bytes, bytes + 1, size_bytes - 1) == 0;
}

}  // namespace

struct AtomicFile::State {
  std::string path, name, temporary;
  cairn_io io{};
  int directory = -1, file = -1;
  bool temporary_exists = false;
  std::uint64_t size_bytes = 0, end_bytes = 0;  // end: what has really been written; behind it only zeros
  unsigned mode = 0600;
  bool has_mode = false;
  Xxh3Stream checksum;

  ~State() {
    int ignored = 0;
    if (file >= 0) io.close(io.user, file, &ignored);
    if (temporary_exists) io.unlinkat(io.user, directory, temporary.c_str(), &ignored);
    if (directory >= 0) io.close(io.user, directory, &ignored);
  }

  Status follow_links();
  Status open_directory();
  void sweep_stale() const;
  Status look_at_existing();
  Status create_temporary();
  Status write_at(std::uint64_t offset, const std::byte* bytes, std::size_t size);
  Status verify() const;
  Status rename_into_place();
};

/// `path` becomes that of the file itself, which need not be there yet. Links that the system would not follow (a loop, a
/// stranger's link in a sticky folder) are errors.
Status AtomicFile::State::follow_links() {
  if (!is_default_io(io)) return {};
  const std::string named = path;
  for (int links = 0; links < kMaxLinks; ++links) {
    struct stat status = {};
    if (::lstat(path.c_str(), &status) != 0 || !S_ISLNK(status.st_mode)) return {};
    if (::stat(path.c_str(), &status) != 0 && errno != ENOENT) return io_error(named, "its link cannot be followed", errno);
    char target[PATH_MAX];
    const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
    if (length < 0) return io_error(named, "its link cannot be read", errno);
    if (length == 0 || length == sizeof target) return io_error(named, "its link cannot be followed", ENAMETOOLONG);
    const std::size_t slash = path.rfind('/');
    const std::string folder = target[0] == '/' || slash == std::string::npos ? "" : path.substr(0, slash + 1);
    path = folder + std::string(target, static_cast<std::size_t>(length));
  }
  return io_error(named, "its link cannot be followed", ELOOP);
}

Status AtomicFile::State::open_directory() {
  CAIRN_TRY(check_path(path));
  CAIRN_TRY(follow_links());
  const std::size_t slash = path.rfind('/');
  name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (name.empty() || name == "." || name == "..") {
    return Status::invalid_argument("%.300s: not the path of a file", path.c_str());
  }
  if (name.size() > 200) return Status::invalid_argument("a file name has %zu bytes (limit 200)", name.size());
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  int error_number = 0;
  directory = retry_interrupted(
      [&] { return io.open(io.user, folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, &error_number); },
      &error_number);
  if (directory < 0) return io_error(path, "its folder cannot be opened", error_number);
  return {};
}

/// Removes temporaries of this path that are an hour old. Needs a real directory; failures do not matter.
void AtomicFile::State::sweep_stale() const {
  if (!is_default_io(io)) return;
  const int copy = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* entries = copy >= 0 ? ::fdopendir(copy) : nullptr;
  if (!entries) {
    if (copy >= 0) ::close(copy);
    return;
  }
  const std::string prefix = "." + name + kTemporaryMark;
  const std::time_t now = std::time(nullptr);
  while (const struct dirent* entry = ::readdir(entries)) {
    if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) != 0) continue;
    struct stat status = {};
    if (::fstatat(directory, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) continue;
    if (status.st_mtime < now - kStaleSeconds) {
      int ignored = 0;
      io.unlinkat(io.user, directory, entry->d_name, &ignored);
    }
  }
  ::closedir(entries);
}

/// A file that is replaced keeps its permissions. What is no file is not replaced: /dev/null would be gone.
Status AtomicFile::State::look_at_existing() {
  struct stat status = {};
  if (!is_default_io(io) || ::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return {};
  if (!S_ISREG(status.st_mode)) return Status::error(CAIRN_STATUS_IO, "%.300s: not a regular file", path.c_str());
  mode = status.st_mode & 0777;
  has_mode = true;
  return {};
}

Status AtomicFile::State::create_temporary() {
  int error_number = 0;
  for (int attempt = 0; attempt < 16; ++attempt) {
    char suffix[64];
    std::snprintf(suffix, sizeof suffix, "%s%ld-%016" PRIx64, kTemporaryMark, static_cast<long>(::getpid()),
                  random_bits());
    temporary = "." + name + suffix;
    file = retry_interrupted(
        [&] {
          return io.openat(io.user, directory, temporary.c_str(),
                           O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600, &error_number);
        },
        &error_number);
    if (file >= 0) {
      temporary_exists = true;
      return {};
    }
    if (error_number != EEXIST) break;
  }
  return io_error(path, "a temporary file beside it cannot be made", error_number);
}

Status AtomicFile::State::write_at(std::uint64_t offset, const std::byte* bytes, std::size_t size) {
  std::size_t done = 0;
  while (done < size) {
    int error_number = 0;
    const std::int64_t put = retry_interrupted(
        [&] {
          return io.pwrite(io.user, file, bytes + done, size - done, static_cast<std::int64_t>(offset + done), &error_number);
        },
        &error_number);
    if (put < 0) return io_error(path, "cannot be written", error_number);
    if (put == 0 || static_cast<std::uint64_t>(put) > size - done) {
      return Status::error(CAIRN_STATUS_IO, "%.300s: cannot be written: %lld of %zu bytes taken", path.c_str(),
                           static_cast<long long>(put), size - done);
    }
    done += static_cast<std::size_t>(put);
  }
  return {};
}

/// Reads the file back and compares it with what was written.
Status AtomicFile::State::verify() const {
  std::vector<std::byte> block(std::min<std::uint64_t>(size_bytes, kChecksumBlockBytes));
  Xxh3Stream found;
  for (std::uint64_t done = 0; done < size_bytes;) {
    int error_number = 0;
    const std::size_t wanted = std::min<std::uint64_t>(block.size(), size_bytes - done);
    const std::int64_t got = retry_interrupted(
        [&] { return io.pread(io.user, file, block.data(), wanted, static_cast<std::int64_t>(done), &error_number); },
        &error_number);
    if (got < 0) return io_error(path, "cannot be read back", error_number);
    if (got == 0 || static_cast<std::uint64_t>(got) > wanted) break;
    found.update(block.data(), static_cast<std::size_t>(got));
    done += static_cast<std::uint64_t>(got);
  }
  if (found.value() != checksum.value()) {
    return Status::error(CAIRN_STATUS_IO, "%.300s: reads back other bytes than were written", path.c_str());
  }
  return {};
}

Status AtomicFile::State::rename_into_place() {
  int error_number = 0;
  const int renamed = retry_interrupted(
      [&] { return io.renameat(io.user, directory, temporary.c_str(), name.c_str(), &error_number); }, &error_number);
  if (renamed < 0) return io_error(path, "the new file cannot be renamed into place", error_number);
  temporary_exists = false;
  const int synced = retry_interrupted([&] { return io.fsync(io.user, directory, &error_number); }, &error_number);
  if (synced < 0) {
    return Status::error(CAIRN_STATUS_DURABILITY,
                         "%.300s: the new file is in place, but its folder cannot be synced (error %d): it may not survive "
                         "a power loss",
                         path.c_str(), error_number);
  }
  return {};
}

AtomicFile::AtomicFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
AtomicFile::AtomicFile(AtomicFile&&) noexcept = default;
AtomicFile& AtomicFile::operator=(AtomicFile&&) noexcept = default;
AtomicFile::~AtomicFile() = default;

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->io = current_io();
  CAIRN_TRY(state->open_directory());
  state->sweep_stale();
  CAIRN_TRY(state->look_at_existing());
  CAIRN_TRY(state->create_temporary());
  return AtomicFile(std::move(state));
}

std::uint64_t AtomicFile::size_bytes() const { return state_->size_bytes; }

Status AtomicFile::write(const void* data, std::size_t size_bytes) {
  State& s = *state_;
  const auto* bytes = static_cast<const std::byte*>(data);
  for (std::size_t done = 0; done < size_bytes;) {
    const std::size_t piece = std::min(size_bytes - done, kMaxWriteBytes);
    // A hole reads as zeros. Small zero runs are written: they are cheaper than holes.
    const bool is_hole = piece >= kChecksumBlockBytes && is_all_zero(bytes + done, piece);
    if (!is_hole) {
      CAIRN_TRY(s.write_at(s.size_bytes, bytes + done, piece));
      s.end_bytes = s.size_bytes + piece;
    }
    s.checksum.update(bytes + done, piece);
    s.size_bytes += piece;
    done += piece;
  }
  return {};
}

Status AtomicFile::commit(const CommitOptions& options) {
  State& s = *state_;
  if (s.end_bytes < s.size_bytes) {  // the file must reach its size, also when it ends in a hole
    const std::byte zero{0};
    CAIRN_TRY(s.write_at(s.size_bytes - 1, &zero, 1));
  }
  if (s.has_mode && ::fchmod(s.file, s.mode) != 0) return io_error(s.path, "its mode cannot be kept", errno);
  int error_number = 0;
  const int synced = retry_interrupted([&] { return s.io.fsync(s.io.user, s.file, &error_number); }, &error_number);
  if (synced < 0) return io_error(s.path, "cannot be synced", error_number);  // never tried again: the pages may be lost
  const bool verifies = options.verify == Verify::kAlways ||
                        (options.verify == Verify::kUpTo64MiB && s.size_bytes <= kVerifyLimitBytes);
  if (verifies) CAIRN_TRY(s.verify());
  const int descriptor = std::exchange(s.file, -1);
  if (s.io.close(s.io.user, descriptor, &error_number) < 0 && error_number != EINTR) {
    return io_error(s.path, "cannot be closed", error_number);
  }
  if (options.check) CAIRN_TRY(options.check(s.path.substr(0, s.path.size() - s.name.size()) + s.temporary));
  return s.rename_into_place();
}

}  // namespace cairn
