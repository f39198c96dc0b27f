#include "runtime/support/byte_source.h"

#include <cstring>

#include "runtime/support/allocator.h"
#include "runtime/support/checked_math.h"
#include "runtime/support/mapped_file.h"

namespace cairn {
namespace {

Status past_end(std::uint64_t offset_bytes, std::uint64_t size_bytes, std::uint64_t total_bytes) {
  return Status::error(CAIRN_STATUS_IO, "bytes [%llu, +%llu) are past the end at %llu",
                       static_cast<unsigned long long>(offset_bytes), static_cast<unsigned long long>(size_bytes),
                       static_cast<unsigned long long>(total_bytes));
}

/// Memory kept alive by `owner`, or by the caller.
class MemorySource final : public ByteSource {
 public:
  MemorySource(const void* data, std::uint64_t size_bytes, std::shared_ptr<const void> owner)
      : data_(static_cast<const std::byte*>(data)), size_bytes_(size_bytes), owner_(std::move(owner)) {}

  std::uint64_t size_bytes() const override { return size_bytes_; }
  Status read(std::uint64_t offset_bytes, void* to, std::size_t size_bytes) const override {
    if (!range_fits(offset_bytes, size_bytes, size_bytes_)) return past_end(offset_bytes, size_bytes, size_bytes_);
    if (size_bytes) std::memcpy(to, data_ + offset_bytes, size_bytes);
    return {};
  }
  const std::byte* memory() const override {
    return reinterpret_cast<std::uintptr_t>(data_) % 64 == 0 ? data_ : nullptr;
  }

 private:
  const std::byte* data_;
  std::uint64_t size_bytes_;
  std::shared_ptr<const void> owner_;
};

class PositionalSource final : public ByteSource {
 public:
  explicit PositionalSource(File file) : file_(std::move(file)) {}
  std::uint64_t size_bytes() const override { return file_.size_bytes(); }
  Status read(std::uint64_t offset_bytes, void* to, std::size_t size_bytes) const override {
    if (!range_fits(offset_bytes, size_bytes, file_.size_bytes())) {
      return past_end(offset_bytes, size_bytes, file_.size_bytes());
    }
    return file_.read(offset_bytes, to, size_bytes);
  }

 private:
  File file_;
};

Result<std::shared_ptr<const ByteSource>> read_all(const File& file) {
  CAIRN_TRY_ASSIGN(HostBuffer memory, HostBuffer::allocate(file.size_bytes(), "reading a file"));
  CAIRN_TRY(file.read(0, memory.data(), memory.size_bytes()));
  auto owner = std::make_shared<const HostBuffer>(std::move(memory));
  const void* data = owner->data();
  return std::shared_ptr<const ByteSource>(
      std::make_shared<MemorySource>(data, file.size_bytes(), std::shared_ptr<const void>(owner)));
}

}  // namespace

std::shared_ptr<const ByteSource> memory_source(const void* data, std::uint64_t size_bytes) {
  return std::make_shared<MemorySource>(data, size_bytes, nullptr);
}

Result<std::shared_ptr<const ByteSource>> copied_source(const void* data, std::uint64_t size_bytes) {
  CAIRN_TRY_ASSIGN(HostBuffer memory, HostBuffer::allocate(size_bytes, "copying a model from memory"));
  if (size_bytes) std::memcpy(memory.data(), data, size_bytes);
  auto owner = std::make_shared<const HostBuffer>(std::move(memory));
  const void* copy = owner->data();
  return std::shared_ptr<const ByteSource>(
      std::make_shared<MemorySource>(copy, size_bytes, std::shared_ptr<const void>(owner)));
}

Result<std::shared_ptr<const ByteSource>> file_source(const std::string& path, FileAccess access) {
  CAIRN_TRY_ASSIGN(File file, File::open(path));
  if (access == FileAccess::kPositional) {
    return std::shared_ptr<const ByteSource>(std::make_shared<PositionalSource>(std::move(file)));
  }
  if (access == FileAccess::kReadAll || !is_default_io(file.io())) return read_all(file);
  CAIRN_TRY_ASSIGN(auto mapped, MappedFile::map(file));
  const void* data = mapped->data();
  const std::uint64_t size_bytes = mapped->size_bytes();
  return std::shared_ptr<const ByteSource>(
      std::make_shared<MemorySource>(data, size_bytes, std::shared_ptr<const void>(std::move(mapped))));
}

}  // namespace cairn
