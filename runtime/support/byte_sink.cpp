#include "runtime/support/byte_sink.h"

#include <cstring>

namespace cairn {

Status SpanSink::write(const void* data, std::size_t size_bytes) {
  if (size_bytes > room_bytes_ - size_bytes_) {
    return Status::limit_exceeded("a buffer of %zu bytes is too small", room_bytes_);
  }
  if (size_bytes) std::memcpy(data_ + size_bytes_, data, size_bytes);
  size_bytes_ += size_bytes;
  return {};
}

Status VectorSink::write(const void* data, std::size_t size_bytes) {
  const auto* bytes = static_cast<const std::byte*>(data);
  bytes_.insert(bytes_.end(), bytes, bytes + size_bytes);
  return {};
}

}  // namespace cairn
