// Checksums and digests: XXH3-64 finds damage in 1 MiB blocks, BLAKE2b-256 names contents. Neither detects forgery.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cairn {

/// Bytes that one block checksum covers.
inline constexpr std::size_t kChecksumBlockBytes = std::size_t{1} << 20;

using Digest = std::array<std::uint8_t, 32>;

std::uint64_t xxh3_64(const void* data, std::size_t size_bytes);

/// XXH3-64 of bytes that come in pieces.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;

  void reset();
  void update(const void* data, std::size_t size_bytes);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// BLAKE2b-256, unkeyed.
class Blake2bStream {
 public:
  Blake2bStream();
  ~Blake2bStream();
  Blake2bStream(Blake2bStream&&) noexcept;
  Blake2bStream& operator=(Blake2bStream&&) noexcept;

  void update(const void* data, std::size_t size_bytes);
  void update_u32(std::uint32_t value);  ///< little-endian
  void update_u64(std::uint64_t value);  ///< little-endian
  /// The length as u32, then the bytes.
  void update_string(const std::string& text);
  Digest finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Digest blake2b_256(const void* data, std::size_t size_bytes);

/// XXH3-64 of every 1 MiB block of `data`; the last block may be short. No blocks for no bytes.
std::vector<std::uint64_t> block_checksums(const void* data, std::uint64_t size_bytes);

constexpr std::uint64_t checksum_block_count(std::uint64_t size_bytes) {
  return size_bytes / kChecksumBlockBytes + (size_bytes % kChecksumBlockBytes != 0);
}

}  // namespace cairn
