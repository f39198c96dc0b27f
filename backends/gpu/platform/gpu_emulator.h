// Blocks on the host: every thread of a block is a fibre that runs to its next barrier, shuffle or matrix product.
// For numerics and memory checks without a GPU, not for speed; it cannot show races. Warps may take different paths between
// barriers; threads that wait for each other at different barriers end the program. Warp size: CAIRN_EMULATED_WARP, 32 or 64.
// Two devices: 0 has the shared memory of a large chip, 1 that of a small one.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#if !defined(CAIRN_EMULATED_WARP)
#define CAIRN_EMULATED_WARP 32
#endif
#define CAIRN_GPU_FAMILY "emulator"

#define __global__ static
#define __device__
#define __host__
#define __shared__ static thread_local
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}  // NOLINT: as on the device
};

struct alignas(16) float4 {
  float x, y, z, w;
};

namespace cairn::gpu {

struct EmulatedThread {
  dim3 thread, block, block_size, grid_size;
};

/// The thread that is running.
EmulatedThread& emulated_thread();
/// Waits for every thread of the block, of the warp.
void emulated_barrier();
void emulated_warp_barrier();
/// Every thread of a warp gives 8 bytes and gets those of lane `lane` of its warp.
std::uint64_t emulated_exchange(std::uint64_t value, int lane);
/// What a lane brings to a matrix product: a, then b.
struct EmulatedOperands {
  std::uint32_t a[4], b[2];
};
/// Gives this lane's operands to its group of 32; returns those of the whole group, valid until the lane's next product.
const EmulatedOperands* emulated_operands(const EmulatedOperands& mine);
unsigned char* emulated_shared();
/// Runs body once for every thread of every block.
void emulate(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body);
int emulated_lane();

using Stream = void*;
using Error = int;
inline constexpr Error kSuccess = 0, kNoMemory = 2, kTooMuchShared = 3;

inline const char* error_text(Error error) {
  return error == kSuccess ? "no error" : error == kNoMemory ? "out of memory" : "too much shared memory";
}
inline Error last_error() { return kSuccess; }
inline Error count_devices(int* count) { return *count = 2, kSuccess; }
inline thread_local int emulated_device = 0;
inline Error select_device(int index) { return emulated_device = index, kSuccess; }
using Current = int;
inline Current find_current() { return emulated_device; }
inline void make_current(Current device) { emulated_device = device; }

struct DeviceProperties {
  char name[128];
  int major, minor, multiprocessors, shared_bytes_per_block;
  std::size_t memory_bytes;
};

constexpr int emulated_shared_bytes(int device) { return (device == 0 ? 227 : 64) * 1024; }
inline Error read_properties(int index, DeviceProperties* properties) {
  *properties = {"block emulator", 0, 0, 4, emulated_shared_bytes(index), std::size_t{1} << 32};
  return kSuccess;
}

inline Error free_memory(std::size_t* free_bytes, std::size_t* total_bytes) {
  *free_bytes = *total_bytes = std::size_t{1} << 32;
  return kSuccess;
}
inline Error allocate_device(void** memory, std::size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *memory ? kSuccess : kNoMemory;
}
inline Error release_device(void* memory) { return std::free(memory), kSuccess; }
inline Error allocate_pinned(void** memory, std::size_t bytes) { return allocate_device(memory, bytes); }
inline Error release_pinned(void* memory) { return release_device(memory); }
inline Error create_stream(Stream* stream) { return *stream = nullptr, kSuccess; }
inline Error destroy_stream(Stream) { return kSuccess; }
inline Error wait_for_stream(Stream) { return kSuccess; }
inline Error copy_async(void* to, const void* from, std::size_t bytes, Stream) {
  return std::memmove(to, from, bytes), kSuccess;
}
inline Error set_async(void* memory, int byte, std::size_t bytes, Stream) {
  return std::memset(memory, byte, bytes), kSuccess;
}
template <class Kernel>
Error allow_shared_memory(Kernel*, int) { return kSuccess; }

template <class Args>
Error launch(void (*kernel)(Args), dim3 grid, dim3 block, std::size_t shared_bytes, Stream, const Args& args) {
  if (shared_bytes > static_cast<std::size_t>(emulated_shared_bytes(emulated_device))) return kTooMuchShared;
  return emulate(grid, block, shared_bytes, [&] { kernel(args); }), kSuccess;
}

template <class Args>
Error launch_early(void (*kernel)(Args), dim3 grid, dim3 block, std::size_t shared_bytes, Stream stream,
                   const Args& args, unsigned /*cluster*/) {
  return launch(kernel, grid, block, shared_bytes, stream, args);
}
inline void let_next_kernel_start() {}
inline void wait_for_previous_kernel() {}

inline int warp_size() { return CAIRN_EMULATED_WARP; }
template <class T>
T shuffle(T value, int lane) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = emulated_exchange(bits, lane);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
T shuffle_xor(T value, int mask) { return shuffle(value, emulated_lane() ^ mask); }
inline void warp_barrier() { emulated_warp_barrier(); }
inline unsigned char* dynamic_shared() { return emulated_shared(); }
inline float bits_to_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline std::uint32_t float_to_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace cairn::gpu

#define threadIdx (cairn::gpu::emulated_thread().thread)
#define blockIdx (cairn::gpu::emulated_thread().block)
#define blockDim (cairn::gpu::emulated_thread().block_size)
#define gridDim (cairn::gpu::emulated_thread().grid_size)
#define __syncthreads() cairn::gpu::emulated_barrier()
inline std::int32_t atomicMin(std::int32_t* at, std::int32_t value) {  // blocks run one after the other
  const std::int32_t old = *at;
  if (value < old) *at = value;
  return old;
}
