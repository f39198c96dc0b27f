#include "runtime/support/checksum.h"

#include <blake2.h>
#define XXH_STATIC_LINKING_ONLY  // for the state's size
#include <xxhash.h>

#include <algorithm>

namespace cairn {

std::uint64_t xxh3_64(const void* data, std::size_t size_bytes) {
  return XXH3_64bits(size_bytes ? data : "", size_bytes);
}

struct Xxh3Stream::State {
  XXH3_state_t state;
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->state);
  reset();
}
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

void Xxh3Stream::reset() { XXH3_64bits_reset(&state_->state); }
void Xxh3Stream::update(const void* data, std::size_t size_bytes) {
  if (size_bytes) XXH3_64bits_update(&state_->state, data, size_bytes);
}
std::uint64_t Xxh3Stream::value() const { return XXH3_64bits_digest(&state_->state); }

struct Blake2bStream::State {
  blake2b_state state;
};

Blake2bStream::Blake2bStream() : state_(std::make_unique<State>()) { blake2b_init(&state_->state, 32); }
Blake2bStream::~Blake2bStream() = default;
Blake2bStream::Blake2bStream(Blake2bStream&&) noexcept = default;
Blake2bStream& Blake2bStream::operator=(Blake2bStream&&) noexcept = default;

void Blake2bStream::update(const void* data, std::size_t size_bytes) {
  if (size_bytes) blake2b_update(&state_->state, static_cast<const std::uint8_t*>(data), size_bytes);
}

void Blake2bStream::update_u32(std::uint32_t value) {
  std::uint8_t bytes[4];
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<std::uint8_t>(value >> (8 * i));
  update(bytes, sizeof bytes);
}

void Blake2bStream::update_u64(std::uint64_t value) {
  std::uint8_t bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(value >> (8 * i));
  update(bytes, sizeof bytes);
}

void Blake2bStream::update_string(const std::string& text) {
  update_u32(static_cast<std::uint32_t>(text.size()));
  update(text.data(), text.size());
}

Digest Blake2bStream::finish() {
  Digest digest{};
  blake2b_final(&state_->state, digest.data(), digest.size());
  return digest;
}

Digest blake2b_256(const void* data, std::size_t size_bytes) {
  Blake2bStream stream;
  stream.update(data, size_bytes);
  return stream.finish();
}

std::vector<std::uint64_t> block_checksums(const void* data, std::uint64_t size_bytes) {
  std::vector<std::uint64_t> checksums;
  checksums.reserve(checksum_block_count(size_bytes));
  const auto* bytes = static_cast<const std::byte*>(data);
  for (std::uint64_t done = 0; done < size_bytes; done += kChecksumBlockBytes) {
    checksums.push_back(xxh3_64(bytes + done, std::min<std::uint64_t>(kChecksumBlockBytes, size_bytes - done)));
  }
  return checksums;
}

}  // namespace cairn
