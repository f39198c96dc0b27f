#include "tests/support/op_rig.h"

#include <bit>
#include <cstdio>
#include <cstdlib>

namespace cairn::test {
namespace {

constexpr std::size_t kGuardBytes = 512;
constexpr std::uint8_t kGuard = 0xA5;

/// A rig that cannot have its device or its memory leaves no test to run.
void require(bool done, const BackendError& error) {
  if (done) return;
  std::fprintf(stderr, "op rig: %s\n", error.text);
  std::abort();
}

/// To nearest, ties to even; every NaN becomes all ones.
std::uint16_t bf16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::isnan(value) ? 0xFFFF : static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace

OpRig::OpRig(const Backend& backend, std::int32_t thread_count, DType dtype, bool rounds_inputs)
    : backend_(backend), dtype_(dtype), rounds_inputs_(rounds_inputs) {
  BackendError error;
  DeviceOptions options;
  options.thread_count = thread_count;
  const char* index = std::getenv("CAIRN_TEST_DEVICE");
  if (index && std::atoi(index) < backend.device_count(&error)) options.index = std::atoi(index);
  device_ = backend.open_device(options, &error);
  require(device_ != nullptr, error);
  queue_ = backend.create_queue(device_, nullptr, &error);
  require(queue_ != nullptr, error);
}

OpRig::~OpRig() {
  clear();
  backend_.destroy_queue(queue_);
  backend_.close_device(device_);
}

void* OpRig::upload_activations(std::vector<float> host) {
  if (dtype_ == DType::kBF16) {
    std::vector<std::uint16_t> narrow;
    for (const float value : host) narrow.push_back(bf16_bits(value));
    return upload(narrow);
  }
  for (float& value : host) {
    if (rounds_inputs_ && !std::isnan(value))
      value = std::bit_cast<float>(static_cast<std::uint32_t>(bf16_bits(value)) << 16);
  }
  return upload(host);
}

std::vector<float> OpRig::download_activations(const void* memory, std::size_t count) {
  if (dtype_ != DType::kBF16) return download(static_cast<const float*>(memory), count);
  std::vector<float> wide;
  for (const std::uint16_t bits : download(static_cast<const std::uint16_t*>(memory), count)) {
    wide.push_back(std::bit_cast<float>(bits == 0xFFFF ? 0xFFFFFFFFU : static_cast<std::uint32_t>(bits) << 16));
  }
  return wide;
}

void* OpRig::poisoned_activations(std::size_t count) { return poisoned<std::uint8_t>(count * dtype_bits(dtype_) / 8); }

void* OpRig::take(std::size_t size_bytes) {
  BackendError error;
  void* memory = backend_.allocate(device_, size_bytes + kGuardBytes, MemoryKind::kDevice, &error);
  require(memory != nullptr, error);
  const std::vector<std::uint8_t> guard(kGuardBytes, kGuard);
  copy(static_cast<std::byte*>(memory) + size_bytes, guard.data(), kGuardBytes, CopyKind::kHostToDevice);
  pieces_.push_back({memory, size_bytes});
  return memory;
}

void OpRig::copy(void* to, const void* from, std::size_t size_bytes, CopyKind kind) {
  BackendError error;
  require(backend_.copy(queue_, to, from, size_bytes, kind, &error) && backend_.synchronize(queue_, &error), error);
}

Batch OpRig::batch(const std::vector<std::int32_t>& lengths) {
  auto offsets = std::make_unique<std::vector<std::int32_t>>(1, 0);
  for (const std::int32_t length : lengths) offsets->push_back(offsets->back() + length);
  Batch batch;
  batch.sequence_count = static_cast<std::int32_t>(lengths.size());
  batch.token_count = offsets->back();
  batch.offsets = upload(*offsets);
  batch.offsets_host = offsets->data();
  host_offsets_.push_back(std::move(offsets));
  return batch;
}

void OpRig::pack(LinearWeight* weight) {
  BackendError error;
  require(backend_.pack_linear(device_, weight, &error), error);
  packed_.push_back(weight);
}

std::string OpRig::finish() {
  BackendError error;
  if (!backend_.synchronize(queue_, &error)) return error.text;
  std::vector<std::uint8_t> guard(kGuardBytes);
  for (const Piece& piece : pieces_) {
    copy(guard.data(), static_cast<std::byte*>(piece.memory) + piece.size_bytes, kGuardBytes, CopyKind::kDeviceToHost);
    for (const std::uint8_t byte : guard) {
      if (byte != kGuard) return "memory behind a buffer of " + std::to_string(piece.size_bytes) + " bytes was written";
    }
  }
  return "";
}

void OpRig::release_to(std::size_t mark) {
  for (; pieces_.size() > mark; pieces_.pop_back()) {
    backend_.release(device_, pieces_.back().memory, pieces_.back().size_bytes + kGuardBytes, MemoryKind::kDevice);
  }
}

void OpRig::clear() {
  for (LinearWeight* weight : packed_) backend_.unpack_linear(device_, weight);
  packed_.clear();
  release_to(0);
  host_offsets_.clear();
}

}  // namespace cairn::test
