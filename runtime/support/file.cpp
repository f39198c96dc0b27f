#include "runtime/support/file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/support/checked_math.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxPathBytes = 4096;
constexpr std::size_t kMaxReadBytes = std::size_t{1} << 30;  // of one call: Linux stops at 2 GiB

}  // namespace

Status check_path(const std::string& path) {
  if (path.empty()) return Status::invalid_argument("a path is empty");
  if (path.find('\0') != std::string::npos) return Status::invalid_argument("a path holds a NUL");
  if (path.size() >= kMaxPathBytes) {
    return Status::invalid_argument("a path has %zu bytes (limit %zu)", path.size(), kMaxPathBytes - 1);
  }
  return {};
}

Status with_path(std::string_view path, const Status& status) {
  if (status.ok()) return {};
  const std::string shown(path.substr(0, 300));
  return status.message().starts_with(shown) ? status : status.with_context(shown);
}

Result<File> File::open(const std::string& path) {
  CAIRN_TRY(check_path(path));
  File file;
  file.path_ = path;
  file.io_ = current_io();
  int error_number = 0;
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it changes nothing for a regular file.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  file.descriptor_ = retry_interrupted([&] { return file.io_.open(file.io_.user, path.c_str(), kFlags, 0, &error_number); },
                                       &error_number);
  if (file.descriptor_ < 0) return io_error(path, "cannot be opened", error_number);
  const std::int64_t size = file.io_.file_size(file.io_.user, file.descriptor_, &error_number);
  if (size < 0 && error_number == EINVAL) {
    return Status::error(CAIRN_STATUS_IO, "%.300s: not a regular file", path.c_str());
  }
  if (size < 0) return io_error(path, "its size cannot be read", error_number);
  file.size_bytes_ = static_cast<std::uint64_t>(size);
  return file;
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      io_(other.io_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(other.size_bytes_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(io_, other.io_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

File::~File() {
  int error_number = 0;
  if (descriptor_ >= 0) io_.close(io_.user, descriptor_, &error_number);
}

Status File::read(std::uint64_t offset_bytes, void* to, std::size_t size_bytes) const {
  if (!range_fits(offset_bytes, size_bytes, INT64_MAX)) {
    return Status::error(CAIRN_STATUS_IO, "%.300s: an offset is past 2^63", path_.c_str());
  }
  auto* bytes = static_cast<std::byte*>(to);
  std::size_t done = 0;
  while (done < size_bytes) {
    int error_number = 0;
    const std::int64_t got = retry_interrupted(
        [&] {
          return io_.pread(io_.user, descriptor_, bytes + done, std::min(size_bytes - done, kMaxReadBytes),
                           static_cast<std::int64_t>(offset_bytes + done), &error_number);
        },
        &error_number);
    if (got < 0) return io_error(path_, "cannot be read", error_number);
    if (got == 0 || static_cast<std::uint64_t>(got) > size_bytes - done) {
      return Status::error(CAIRN_STATUS_IO, "%.300s: the file ends at byte %llu; %llu were there when it was opened",
                           path_.c_str(), static_cast<unsigned long long>(offset_bytes + done),
                           static_cast<unsigned long long>(size_bytes_));
    }
    done += static_cast<std::size_t>(got);
  }
  return {};
}

Result<std::string> read_text_file(const std::string& path, std::uint64_t max_bytes) {
  CAIRN_TRY_ASSIGN(File file, File::open(path));
  if (file.size_bytes() > max_bytes) {
    return Status::limit_exceeded("%.300s: %llu bytes (limit %llu)", path.c_str(),
                                  static_cast<unsigned long long>(file.size_bytes()),
                                  static_cast<unsigned long long>(max_bytes));
  }
  std::string text(file.size_bytes(), '\0');
  CAIRN_TRY(file.read(0, text.data(), text.size()));
  return text;
}

Result<bool> file_exists(const std::string& path) {
  const Status status = File::open(path).status();
  if (status.ok() || status.code() == CAIRN_STATUS_NOT_FOUND) return status.ok();
  return status;
}

Status check_folder(const std::string& path) {
  CAIRN_TRY(check_path(path));
  const cairn_io io = current_io();
  int error_number = 0;
  const int descriptor = io.open(io.user, path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY, 0, &error_number);
  if (descriptor < 0) return io_error(path, "cannot be opened as a folder", error_number);
  io.close(io.user, descriptor, &error_number);
  return {};
}

}  // namespace cairn
