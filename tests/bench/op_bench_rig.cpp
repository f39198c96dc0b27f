#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/bench/op_bench.h"

namespace cairn::bench {
namespace {

[[noreturn]] void stop(const char* what, const BackendError& error) {
  std::fprintf(stderr, "op_bench: %s: %s\n", what, error.text);
  std::exit(1);
}

/// A plain generator: the numbers only have to be ordinary.
float next_number(std::uint32_t* state, float low, float high) {
  *state = *state * 1664525u + 1013904223u;
  return low + (high - low) * static_cast<float>(*state >> 8) * 0x1p-24f;
}

std::uint16_t to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

}  // namespace

std::int32_t Shape::get(const std::string& name, std::int64_t normal) {
  const auto found = overrides_.find(name);
  const std::int64_t value = found == overrides_.end() ? normal : found->second;
  used_[name] = value;
  return static_cast<std::int32_t>(value);
}

Rig::Rig(const Backend& backend, std::int32_t threads) : backend_(backend), dtype_(backend.activation_dtype) {
  BackendError error;
  DeviceOptions options;
  options.thread_count = threads;
  device_ = backend.open_device(options, &error);
  if (!device_) stop("no device", error);
  queue_ = backend.create_queue(device_, nullptr, &error);
  if (!queue_) stop("no queue", error);
}

Rig::~Rig() {
  for (LinearWeight& weight : packed_) backend_.unpack_linear(device_, &weight);
  pieces_.push_back(scratch_);
  for (const Piece& piece : pieces_) backend_.release(device_, piece.memory, piece.size_bytes, MemoryKind::kDevice);
  backend_.destroy_queue(queue_);
  backend_.close_device(device_);
}

DeviceDescription Rig::description() const {
  DeviceDescription description;
  BackendError error;
  if (!backend_.describe_device(device_, &description, &error)) stop("no description", error);
  return description;
}

void* Rig::allocate(std::size_t size_bytes) {
  BackendError error;
  void* memory = backend_.allocate(device_, size_bytes, MemoryKind::kDevice, &error);
  if (!memory) stop("no memory", error);
  pieces_.push_back({memory, size_bytes});
  allocated_bytes_ += size_bytes;
  if (!backend_.zero(queue_, memory, size_bytes, &error)) stop("zero", error);
  return memory;
}

void* Rig::scratch(std::size_t size_bytes) {
  if (size_bytes > scratch_.size_bytes) {
    if (scratch_.memory) pieces_.push_back(scratch_);
    BackendError error;
    scratch_ = {backend_.allocate(device_, size_bytes, MemoryKind::kDevice, &error), size_bytes};
    if (!scratch_.memory) stop("no scratch", error);
  }
  return scratch_.memory;
}

void* Rig::shared(const std::string& name, const std::function<void*()>& make) {
  const auto found = shared_.find(name);
  return found != shared_.end() ? found->second : shared_[name] = make();
}

void Rig::copy(void* to, const void* from, std::size_t size_bytes, CopyKind kind) {
  BackendError error;
  if (!backend_.copy(queue_, to, from, size_bytes, kind, &error)) stop("copy", error);
}

void Rig::copy_in(void* to, const void* from, std::size_t size_bytes) {
  copy(to, from, size_bytes, CopyKind::kHostToDevice);
  synchronize();
}

void Rig::synchronize() {
  BackendError error;
  if (!backend_.synchronize(queue_, &error)) stop("synchronize", error);
}

/// The host makes at most kFreshCount elements, the device repeats them: tables of gigabytes take no time.
template <class T, class Make>
T* Rig::repeated(std::int64_t count, const Make& make) {
  constexpr std::int64_t kFreshCount = (1 << 20) - 3;
  std::vector<T> host(static_cast<std::size_t>(std::min(count, kFreshCount)));
  std::uint32_t state = next_seed();
  for (T& x : host) x = make(&state);
  T* memory = static_cast<T*>(allocate(static_cast<std::size_t>(count) * sizeof(T)));
  if (!host.empty()) copy_in(memory, host.data(), host.size() * sizeof(T));
  for (auto done = static_cast<std::int64_t>(host.size()); done < count;) {
    const std::int64_t more = std::min(done, count - done);
    copy(memory + done, memory, static_cast<std::size_t>(more) * sizeof(T), CopyKind::kDeviceToDevice);
    done += more;
  }
  return memory;
}

float* Rig::numbers(std::int64_t count, float low, float high) {
  return repeated<float>(count, [=](std::uint32_t* state) { return next_number(state, low, high); });
}

std::uint16_t* Rig::halves(std::int64_t count, float low, float high) {
  return repeated<std::uint16_t>(count, [=](std::uint32_t* state) { return to_bf16(next_number(state, low, high)); });
}

void* Rig::activations(std::int64_t count) {
  if (dtype_ == DType::kF32) return numbers(count, -1, 1);
  return halves(count, -1, 1);
}

LinearWeight Rig::weight(std::int32_t out_dim, std::int32_t in_dim, DType type) {
  LinearWeight w;
  w.dtype = type;
  w.out_dim = out_dim;
  w.in_dim = in_dim;
  const std::int64_t count = static_cast<std::int64_t>(out_dim) * in_dim;
  if (type == DType::kF32) {
    w.data = numbers(count, -0.1f, 0.1f);
  } else {
    w.data = halves(count * dtype_bits(type) / 16, -0.1f, 0.1f);  // also ordinary as f16 and as integers
  }
  if (type == DType::kI8) w.scales = numbers(out_dim, 0.001f, 0.01f);
  if (type == DType::kI4) {
    w.group_size = 32;
    w.scales = numbers(count / 32, 0.001f, 0.01f);
  }
  BackendError error;
  if (!backend_.pack_linear(device_, &w, &error)) stop("pack", error);
  packed_.push_back(w);
  return w;
}

Batch Rig::batch(std::int32_t sequences, std::int32_t tokens_each) {
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(sequences) + 1);
  for (std::int32_t b = 0; b <= sequences; ++b) offsets[static_cast<std::size_t>(b)] = b * tokens_each;
  Batch batch;
  batch.sequence_count = sequences;
  batch.token_count = sequences * tokens_each;
  batch.offsets = upload(offsets);
  batch.offsets_host = keep(std::move(offsets))->data();
  return batch;
}

}  // namespace cairn::bench
