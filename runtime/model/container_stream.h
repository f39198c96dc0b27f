// A container that comes front to back from a function, such as a socket: kept as it comes, and never more of it than
// asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/support/byte_source.h"
#include "runtime/support/status.h"

namespace cairn {

/// Fills up to size_bytes and says how many; 0: the end.
using ReadFunction = std::function<Result<std::size_t>(void* to, std::size_t size_bytes)>;

class ContainerStream final : public ByteSource {
 public:
  /// Reads the preamble. The size of the source is what it declares; of something else, what was read of it.
  static Result<std::shared_ptr<ContainerStream>> open(ReadFunction function);
  ~ContainerStream() override;

  std::uint64_t size_bytes() const override;
  /// Takes from the function what is missing up to offset + size. FORMAT: it ended before that.
  Status read(std::uint64_t offset_bytes, void* to, std::size_t size_bytes) const override;
  /// Once everything was read.
  const std::byte* memory() const override;

  /// Reads the rest. FORMAT: the function gives more than was declared; it is asked for one byte more.
  Status finish() const;

 private:
  struct Store;
  explicit ContainerStream(std::unique_ptr<Store> store);
  std::unique_ptr<Store> store_;
};

}  // namespace cairn
