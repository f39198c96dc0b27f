// The CUDA and HIP runtimes under one set of names. The only file of the shared source with their words.
#pragma once

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP__)
#include <hip/hip_runtime.h>
#define CAIRN_RUNTIME(name) hip##name
#define CAIRN_GPU_FAMILY "rocm"
#else
#include <cuda.h>
#include <cuda_runtime.h>
#define CAIRN_RUNTIME(name) cuda##name
#define CAIRN_GPU_FAMILY "cuda"
#endif

#include <cstddef>
#include <cstdint>

namespace cairn::gpu {

using Stream = CAIRN_RUNTIME(Stream_t);
using Error = CAIRN_RUNTIME(Error_t);

inline constexpr Error kSuccess = CAIRN_RUNTIME(Success);
inline constexpr Error kNoMemory = CAIRN_RUNTIME(ErrorMemoryAllocation);

inline const char* error_text(Error error) { return CAIRN_RUNTIME(GetErrorString)(error); }
/// The error of the last call that failed on this thread, once. The runtime keeps it beside what the call returned.
inline Error last_error() { return CAIRN_RUNTIME(GetLastError)(); }

inline Error count_devices(int* count) { return CAIRN_RUNTIME(GetDeviceCount)(count); }
inline Error select_device(int index) { return CAIRN_RUNTIME(SetDevice)(index); }

/// What work of the calling thread goes to: a device, or CUDA's context, which may be one that the host made, or none.
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP__)
using Current = int;
inline Current find_current() {
  int device = 0;
  return hipGetDevice(&device) == hipSuccess ? device : 0;
}
inline void make_current(Current device) { (void)hipSetDevice(device); }
#else
using Current = CUcontext;
template <class Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const Error error = cudaGetDriverEntryPointByVersion(name, &function, 4000, cudaEnableDefault, &found);
  return error == kSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(function) : nullptr;
}
inline Current find_current() {
  static const auto get = driver_function<CUresult (*)(CUcontext*)>("cuCtxGetCurrent");
  CUcontext context = nullptr;
  return get && get(&context) == CUDA_SUCCESS ? context : nullptr;
}
inline void make_current(Current context) {
  static const auto set = driver_function<CUresult (*)(CUcontext)>("cuCtxSetCurrent");
  if (set) (void)set(context);
}
#endif

struct DeviceProperties {
  char name[128];
  int major, minor, multiprocessors, shared_bytes_per_block;
  std::size_t memory_bytes;
};

inline Error read_properties(int index, DeviceProperties* properties) {
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP__)
  hipDeviceProp_t p;
  const Error error = hipGetDeviceProperties(&p, index);
  const int shared_bytes = static_cast<int>(p.sharedMemPerBlock);
#else
  cudaDeviceProp p;
  const Error error = cudaGetDeviceProperties(&p, index);
  const int shared_bytes = static_cast<int>(p.sharedMemPerBlockOptin);
#endif
  if (error != kSuccess) return error;
  std::size_t i = 0;
  for (; i + 1 < sizeof properties->name && p.name[i]; ++i) properties->name[i] = p.name[i];
  properties->name[i] = 0;
  properties->major = p.major;
  properties->minor = p.minor;
  properties->multiprocessors = p.multiProcessorCount;
  properties->shared_bytes_per_block = shared_bytes;
  properties->memory_bytes = p.totalGlobalMem;
  return kSuccess;
}

inline Error free_memory(std::size_t* free_bytes, std::size_t* total_bytes) {
  return CAIRN_RUNTIME(MemGetInfo)(free_bytes, total_bytes);
}
inline Error allocate_device(void** memory, std::size_t bytes) { return CAIRN_RUNTIME(Malloc)(memory, bytes); }
inline Error release_device(void* memory) { return CAIRN_RUNTIME(Free)(memory); }
inline Error allocate_pinned(void** memory, std::size_t bytes) {
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP__)
  return hipHostMalloc(memory, bytes, 0);
#else
  return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
#endif
}
inline Error release_pinned(void* memory) {
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP__)
  return hipHostFree(memory);
#else
  return cudaFreeHost(memory);
#endif
}

inline Error create_stream(Stream* stream) {
  return CAIRN_RUNTIME(StreamCreateWithFlags)(stream, CAIRN_RUNTIME(StreamNonBlocking));
}
inline Error destroy_stream(Stream stream) { return CAIRN_RUNTIME(StreamDestroy)(stream); }
inline Error wait_for_stream(Stream stream) { return CAIRN_RUNTIME(StreamSynchronize)(stream); }
inline Error copy_async(void* to, const void* from, std::size_t bytes, Stream stream) {
  return CAIRN_RUNTIME(MemcpyAsync)(to, from, bytes, CAIRN_RUNTIME(MemcpyDefault), stream);
}
inline Error set_async(void* memory, int byte, std::size_t bytes, Stream stream) {
  return CAIRN_RUNTIME(MemsetAsync)(memory, byte, bytes, stream);
}

/// Recorded work.
using Recording = CAIRN_RUNTIME(GraphExec_t);
inline Error begin_capture(Stream stream) {
  return CAIRN_RUNTIME(StreamBeginCapture)(stream, CAIRN_RUNTIME(StreamCaptureModeThreadLocal));
}
/// *recording: null on failure.
inline Error end_capture(Stream stream, Recording* recording) {
  *recording = nullptr;
  CAIRN_RUNTIME(Graph_t) graph = nullptr;
  Error error = CAIRN_RUNTIME(StreamEndCapture)(stream, &graph);
  if (error != kSuccess) return error;
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP__)
  error = hipGraphInstantiate(recording, graph, nullptr, nullptr, 0);
#else
  error = cudaGraphInstantiate(recording, graph, 0);
#endif
  (void)CAIRN_RUNTIME(GraphDestroy)(graph);
  return error;
}
inline Error replay_capture(Recording recording, Stream stream) { return CAIRN_RUNTIME(GraphLaunch)(recording, stream); }
inline Error release_capture(Recording recording) { return CAIRN_RUNTIME(GraphExecDestroy)(recording); }

/// Lets a kernel use all the shared memory that a block has on the chosen device, less its static part. Always all: the
/// setting is the process's, and another thread may be about to launch.
template <class Kernel>
Error allow_shared_memory(Kernel* kernel, int device_bytes) {
  const void* function = reinterpret_cast<const void*>(kernel);
  CAIRN_RUNTIME(FuncAttributes) attributes;
  if (const Error error = CAIRN_RUNTIME(FuncGetAttributes)(&attributes, function); error != kSuccess) return error;
  const int all = device_bytes - static_cast<int>(attributes.sharedSizeBytes);
  if (attributes.maxDynamicSharedSizeBytes >= all) return kSuccess;
  return CAIRN_RUNTIME(FuncSetAttribute)(function, CAIRN_RUNTIME(FuncAttributeMaxDynamicSharedMemorySize), all);
}

/// Queues a kernel that takes one argument struct.
template <class Args>
Error launch(void (*kernel)(Args), dim3 grid, dim3 block, std::size_t shared_bytes, Stream stream, const Args& args) {
  void* pointers[] = {const_cast<Args*>(&args)};
  return CAIRN_RUNTIME(LaunchKernel)(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared_bytes, stream);
}

/// The same for a kernel that calls wait_for_previous_kernel(): it may start while the one before it still runs.
/// cluster: how many neighbouring blocks along x see each other's shared memory; more than 1 on CUDA's sm_90 and newer
/// alone.
template <class Args>
Error launch_early(void (*kernel)(Args), dim3 grid, dim3 block, std::size_t shared_bytes, Stream stream,
                   const Args& args, unsigned cluster = 1) {
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP__)
  (void)cluster;
  return launch(kernel, grid, block, shared_bytes, stream, args);
#else
  // A multiprocessor changes how its L1 is split only when it is empty, which would end the overlap: the same split for
  // kernels that stream through shared memory and for small ones between them. Those of many blocks live from their L1.
  const bool shares_split = shared_bytes > 48 * 1024 || grid.x * grid.y * grid.z <= 256;
  cudaLaunchAttribute attributes[3] = {};
  unsigned count = 1;
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  if (shares_split) {
    attributes[count].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attributes[count++].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  void* pointers[] = {const_cast<Args*>(&args)};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers);
#endif
}

#if defined(__CUDACC__) || defined(__HIPCC__)

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP__)
__device__ inline int warp_size() { return warpSize; }
template <class T>
__device__ T shuffle_xor(T value, int mask) { return __shfl_xor(value, mask); }
template <class T>
__device__ T shuffle(T value, int lane) { return __shfl(value, lane); }
__device__ inline void warp_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}
#else
__device__ inline int warp_size() { return 32; }
template <class T>
__device__ T shuffle_xor(T value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
template <class T>
__device__ T shuffle(T value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
__device__ inline void warp_barrier() { __syncwarp(); }
#endif

/// Lets the next kernel start early, if it was queued so. It sees nothing of this one before its own wait.
__device__ inline void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// All kernels queued before have ended and their writes are visible. Every thread calls it before it touches what they
/// wrote, or writes what they read.
__device__ inline void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The dynamic shared memory of the block, 128-aligned.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char cairn_dynamic_shared[];
  return cairn_dynamic_shared;
}

__device__ inline float bits_to_float(std::uint32_t bits) { return __uint_as_float(bits); }
__device__ inline std::uint32_t float_to_bits(float value) { return __float_as_uint(value); }

#endif

}  // namespace cairn::gpu
