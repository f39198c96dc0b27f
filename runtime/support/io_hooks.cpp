#include "runtime/support/io_hooks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <mutex>
#include <system_error>

namespace cairn {
namespace {

template <class T>
T reported(T result, int* error_number) {
  if (result < 0) *error_number = errno;
  return result;
}

int posix_open(void*, const char* path, int flags, unsigned mode, int* error_number) {
  return reported(::open(path, flags, mode), error_number);
}

int posix_openat(void*, int directory, const char* name, int flags, unsigned mode, int* error_number) {
  return reported(::openat(directory, name, flags, mode), error_number);
}

std::int64_t posix_pread(void*, int file, void* data, std::size_t size_bytes, std::int64_t offset, int* error_number) {
  return reported<std::int64_t>(::pread(file, data, size_bytes, offset), error_number);
}

std::int64_t posix_pwrite(void*, int file, const void* data, std::size_t size_bytes, std::int64_t offset,
                          int* error_number) {
  return reported<std::int64_t>(::pwrite(file, data, size_bytes, offset), error_number);
}

int posix_fsync(void*, int file, int* error_number) { return reported(::fsync(file), error_number); }

int posix_close(void*, int file, int* error_number) { return reported(::close(file), error_number); }

int posix_renameat(void*, int directory, const char* from, const char* to, int* error_number) {
  return reported(::renameat(directory, from, directory, to), error_number);
}

int posix_unlinkat(void*, int directory, const char* name, int* error_number) {
  return reported(::unlinkat(directory, name, 0), error_number);
}

std::int64_t posix_file_size(void*, int file, int* error_number) {
  struct stat status = {};
  if (::fstat(file, &status) != 0) return reported<std::int64_t>(-1, error_number);
  if (!S_ISREG(status.st_mode)) {
    *error_number = EINVAL;
    return -1;
  }
  return status.st_size;
}

constexpr cairn_io kDefault = {sizeof(cairn_io), nullptr,     posix_open,     posix_openat,   posix_pread,    posix_pwrite,
                               posix_fsync,      posix_close, posix_renameat, posix_unlinkat, posix_file_size};

struct Hooks {
  std::mutex mutex;
  cairn_io table = kDefault;
};

Hooks& hooks() {
  static Hooks& instance = *new Hooks;
  return instance;
}

}  // namespace

Status check_io(const cairn_io& io) {
  if (io.open && io.openat && io.pread && io.pwrite && io.fsync && io.close && io.renameat && io.unlinkat && io.file_size) return {};
  return Status::invalid_argument("io table: every function must be set");
}

Status set_io(const cairn_io* io) {
  if (io) CAIRN_TRY(check_io(*io));
  const std::lock_guard lock(hooks().mutex);
  hooks().table = io ? *io : kDefault;
  return {};
}

cairn_io current_io() {
  const std::lock_guard lock(hooks().mutex);
  return hooks().table;
}

bool is_default_io(const cairn_io& io) { return io.openat == posix_openat && io.pread == posix_pread; }

Status io_error(const std::string& path, const char* what, int error_number) {
  cairn_status code = CAIRN_STATUS_IO;
  switch (error_number) {
    case ENOENT: case ENOTDIR: code = CAIRN_STATUS_NOT_FOUND; break;
    case ENOSPC: case EDQUOT: code = CAIRN_STATUS_NO_SPACE; break;
    case ENOMEM: code = CAIRN_STATUS_OUT_OF_MEMORY; break;
    default: break;
  }
  return Status::error(code, "%.300s: %s: %s", path.c_str(), what,
                       std::generic_category().message(error_number).c_str());
}

}  // namespace cairn
