#include "runtime/support/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>

namespace cairn {

Result<std::shared_ptr<const MappedFile>> MappedFile::map(const File& file) {
  if (!is_default_io(file.io())) return Status::unsupported("%.300s: cannot be mapped", file.path().c_str());
  // The size is asked again: what is mapped must be there now.
  int error_number = 0;
  const std::int64_t size = file.io().file_size(file.io().user, file.descriptor(), &error_number);
  if (size < 0) return io_error(file.path(), "its size cannot be read", error_number);
  if (static_cast<std::uint64_t>(size) != file.size_bytes()) {
    return Status::error(CAIRN_STATUS_IO, "%.300s: its size changes while it is read", file.path().c_str());
  }
  if (size == 0) return std::shared_ptr<const MappedFile>(new MappedFile(nullptr, 0));
  void* memory = ::mmap(nullptr, file.size_bytes(), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (memory == MAP_FAILED) return io_error(file.path(), "cannot be mapped", errno);
  return std::shared_ptr<const MappedFile>(new MappedFile(static_cast<const std::byte*>(memory), file.size_bytes()));
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_bytes_);
}

}  // namespace cairn
