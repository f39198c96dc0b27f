#include "runtime/model/container_stream.h"

#include <algorithm>
#include <cstring>

#include "runtime/model/container_format.h"
#include "runtime/support/allocator.h"
#include "runtime/support/checked_math.h"

namespace cairn {
namespace {

using ull = unsigned long long;

constexpr std::uint64_t kFirstRoomBytes = std::uint64_t{1} << 20;
constexpr std::size_t kTotalBytesAt = 48;  // in the preamble; little-endian, as every machine that this runs on

}  // namespace

struct ContainerStream::Store {
  ReadFunction function;
  HostBuffer buffer;
  std::uint64_t given_bytes = 0, total_bytes = kPreambleBytes;

  Status fill(std::uint64_t end_bytes);
  Status make_room();
};

/// Twice the room when it is full: memory follows what has come, not what was declared.
Status ContainerStream::Store::make_room() {
  if (given_bytes < buffer.size_bytes()) return {};
  const std::uint64_t room = std::min(std::max(kFirstRoomBytes, 2 * given_bytes), total_bytes);
  CAIRN_TRY_ASSIGN(HostBuffer larger,
                   HostBuffer::allocate(room, "snapshot from a callback", HostBuffer::OnRelease::kZero));
  if (given_bytes > 0) std::memcpy(larger.data(), buffer.data(), given_bytes);
  buffer = std::move(larger);
  return {};
}

Status ContainerStream::Store::fill(std::uint64_t end_bytes) {
  while (given_bytes < end_bytes) {
    CAIRN_TRY(make_room());
    const std::uint64_t wanted = std::min(end_bytes, std::uint64_t{buffer.size_bytes()}) - given_bytes;
    CAIRN_TRY_ASSIGN(const std::size_t count, function(buffer.data() + given_bytes, static_cast<std::size_t>(wanted)));
    if (count == 0)
      return Status::format_error("truncated: %llu bytes (its preamble says %llu)", ull{given_bytes}, ull{total_bytes});
    given_bytes += count;
  }
  return {};
}

ContainerStream::ContainerStream(std::unique_ptr<Store> store) : store_(std::move(store)) {}
ContainerStream::~ContainerStream() = default;

Result<std::shared_ptr<ContainerStream>> ContainerStream::open(ReadFunction function) {
  auto store = std::make_unique<Store>();
  store->function = std::move(function);
  const Status status = store->fill(kPreambleBytes);
  if (!status.ok() && status.code() != CAIRN_STATUS_FORMAT) return status;
  const std::byte* preamble = store->buffer.data();
  std::uint64_t declared = store->given_bytes;
  if (status.ok() && std::memcmp(preamble, kContainerMagic.data(), kContainerMagic.size()) == 0) {
    std::memcpy(&declared, preamble + kTotalBytesAt, sizeof declared);
  }
  store->total_bytes = std::max(declared, store->given_bytes);
  return std::shared_ptr<ContainerStream>(new ContainerStream(std::move(store)));
}

std::uint64_t ContainerStream::size_bytes() const { return store_->total_bytes; }

Status ContainerStream::read(std::uint64_t offset_bytes, void* to, std::size_t size_bytes) const {
  if (!range_fits(offset_bytes, size_bytes, store_->total_bytes)) {
    return Status::error(CAIRN_STATUS_IO, "bytes [%llu, +%zu) are past the end at %llu", ull{offset_bytes}, size_bytes,
                         ull{store_->total_bytes});
  }
  CAIRN_TRY(store_->fill(offset_bytes + size_bytes));
  if (size_bytes) std::memcpy(to, store_->buffer.data() + offset_bytes, size_bytes);
  return {};
}

const std::byte* ContainerStream::memory() const {
  return store_->given_bytes == store_->total_bytes ? store_->buffer.data() : nullptr;
}

Status ContainerStream::finish() const {
  CAIRN_TRY(store_->fill(store_->total_bytes));
  std::byte more{};
  CAIRN_TRY_ASSIGN(const std::size_t count, store_->function(&more, 1));
  if (count == 0) return {};
  return Status::format_error("it goes on after the %llu bytes that its preamble says", ull{store_->total_bytes});
}

}  // namespace cairn
