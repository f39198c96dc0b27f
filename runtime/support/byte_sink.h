// Where a writer's bytes go, front to back: a file that replaces another one atomically, memory, or a caller's function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/support/atomic_file.h"
#include "runtime/support/status.h"

namespace cairn {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual Status write(const void* data, std::size_t size_bytes) = 0;
};

/// The bytes of an AtomicFile; the owner commits it afterwards.
class FileSink final : public ByteSink {
 public:
  explicit FileSink(AtomicFile& file) : file_(file) {}
  Status write(const void* data, std::size_t size_bytes) override { return file_.write(data, size_bytes); }

 private:
  AtomicFile& file_;
};

/// A caller's buffer of fixed size; LIMIT_EXCEEDED past its end.
class SpanSink final : public ByteSink {
 public:
  SpanSink(void* data, std::size_t room_bytes) : data_(static_cast<std::byte*>(data)), room_bytes_(room_bytes) {}
  Status write(const void* data, std::size_t size_bytes) override;
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* data_;
  std::size_t room_bytes_;
  std::size_t size_bytes_ = 0;
};

/// A growing vector, for tests and small things.
class VectorSink final : public ByteSink {
 public:
  Status write(const void* data, std::size_t size_bytes) override;
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// A function that takes the bytes; its error is passed on.
class FunctionSink final : public ByteSink {
 public:
  using Function = std::function<Status(const void*, std::size_t)>;
  explicit FunctionSink(Function function) : function_(std::move(function)) {}
  Status write(const void* data, std::size_t size_bytes) override { return function_(data, size_bytes); }

 private:
  Function function_;
};

}  // namespace cairn
