// A CUDA runtime that runs nothing, for tests of what backends/gpu makes of its answers: memory is the host's, kernels
// are counted. As CUDA's own it keeps the last error of a thread until it is asked for, a current context for each
// thread, and one limit of dynamic shared memory for each kernel of the process.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

using cudaError_t = int;
using cudaStream_t = struct FakeStream*;
using cudaGraph_t = struct FakeGraph*;
using cudaGraphExec_t = struct FakeGraphExec*;

enum : cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorUnknown = 999
};
enum {
  cudaStreamNonBlocking,
  cudaStreamCaptureModeThreadLocal,
  cudaMemcpyDefault,
  cudaHostAllocDefault,
  cudaEnableDefault
};
enum { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum {
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributePreferredSharedMemoryCarveout,
  cudaLaunchAttributeClusterDimension
};
enum { cudaSharedmemCarveoutMaxShared = 100 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}  // NOLINT: as CUDA's
};

struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
  std::size_t sharedMemPerBlock, sharedMemPerBlockOptin, totalGlobalMem;
};

struct cudaFuncAttributes {
  std::size_t sharedSizeBytes;
  int maxDynamicSharedSizeBytes;
};

struct cudaLaunchAttribute {
  int id;
  struct {
    int programmaticStreamSerializationAllowed, sharedMemCarveout;
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

/// What a test sets and looks at.
struct FakeRuntime {
  static constexpr int kSharedBytes = 48 * 1024, kOptInBytes = 227 * 1024;

  std::vector<int> majors = {9};                            ///< of each device's compute capability
  std::set<std::string> failing;                            ///< functions that fail, by their names
  std::map<const void*, int> static_bytes, dynamic_limits;  ///< by kernel; limits that were set
  int launch_count = 0, live_recordings = 0;
  cudaError_t last_error = cudaSuccess;
  CUcontext current = nullptr;

  int dynamic_limit(const void* kernel) {
    const auto set = dynamic_limits.find(kernel);
    return set != dynamic_limits.end() ? set->second : kSharedBytes - static_bytes[kernel];
  }
  cudaError_t result(const char* function) { return failing.count(function) ? fail(cudaErrorUnknown) : cudaSuccess; }
  cudaError_t fail(cudaError_t error) { return last_error = error; }
};
inline FakeRuntime fake_runtime;

inline CUcontext fake_primary_context(int device) {
  return reinterpret_cast<CUcontext>(std::size_t{16} * (device + 1));
}

inline const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "a failure"; }
inline cudaError_t cudaGetLastError() { return std::exchange(fake_runtime.last_error, cudaSuccess); }
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(fake_runtime.majors.size());
  return fake_runtime.result("cudaGetDeviceCount");
}
inline cudaError_t cudaSetDevice(int device) {
  fake_runtime.current = fake_primary_context(device);
  return fake_runtime.result("cudaSetDevice");
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {"fake",
                 fake_runtime.majors[static_cast<std::size_t>(device)],
                 5,
                 132,
                 FakeRuntime::kSharedBytes,
                 FakeRuntime::kOptInBytes,
                 std::size_t{1} << 30};
  return fake_runtime.result("cudaGetDeviceProperties");
}
inline cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  *free_bytes = *total_bytes = std::size_t{1} << 30;
  return fake_runtime.result("cudaMemGetInfo");
}
inline cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (fake_runtime.failing.count("cudaMalloc")) return fake_runtime.fail(cudaErrorMemoryAllocation);
  *memory = std::malloc(bytes);
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return fake_runtime.result("cudaFree");
}
inline cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, int) { return cudaMalloc(memory, bytes); }
inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, int) {
  *stream = nullptr;
  return fake_runtime.result("cudaStreamCreateWithFlags");
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return fake_runtime.result("cudaStreamDestroy"); }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return fake_runtime.result("cudaStreamSynchronize"); }
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int, cudaStream_t) {
  std::memmove(to, from, bytes);
  return fake_runtime.result("cudaMemcpyAsync");
}
inline cudaError_t cudaMemsetAsync(void* memory, int byte, std::size_t bytes, cudaStream_t) {
  std::memset(memory, byte, bytes);
  return fake_runtime.result("cudaMemsetAsync");
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, int) { return fake_runtime.result("cudaStreamBeginCapture"); }
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) {
  return fake_runtime.result("cudaStreamEndCapture");
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* recording, cudaGraph_t, int) {
  if (fake_runtime.failing.count("cudaGraphInstantiate")) return fake_runtime.fail(cudaErrorUnknown);
  ++fake_runtime.live_recordings;
  *recording = reinterpret_cast<cudaGraphExec_t>(&fake_runtime);
  return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return fake_runtime.result("cudaGraphLaunch"); }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) {
  --fake_runtime.live_recordings;
  if (!fake_runtime.current) fake_runtime.current = fake_primary_context(0);  // as whatever needs a context
  return fake_runtime.result("cudaGraphExecDestroy");
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  *attributes = {static_cast<std::size_t>(fake_runtime.static_bytes[kernel]), fake_runtime.dynamic_limit(kernel)};
  return cudaSuccess;
}
inline cudaError_t cudaFuncSetAttribute(const void* kernel, int, int bytes) {
  if (bytes + fake_runtime.static_bytes[kernel] > FakeRuntime::kOptInBytes)
    return fake_runtime.fail(cudaErrorInvalidValue);
  fake_runtime.dynamic_limits[kernel] = bytes;
  return cudaSuccess;
}
inline cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, std::size_t shared_bytes, cudaStream_t) {
  if (static_cast<int>(shared_bytes) > fake_runtime.dynamic_limit(kernel))
    return fake_runtime.fail(cudaErrorInvalidValue);
  ++fake_runtime.launch_count;
  return cudaSuccess;
}
inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** args) {
  return cudaLaunchKernel(kernel, config->gridDim, config->blockDim, args, config->dynamicSmemBytes, config->stream);
}

inline CUresult fake_get_current(CUcontext* context) { return *context = fake_runtime.current, CUDA_SUCCESS; }
inline CUresult fake_set_current(CUcontext context) { return fake_runtime.current = context, CUDA_SUCCESS; }
inline cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, int,
                                                    cudaDriverEntryPointQueryResult* found) {
  const bool gets = std::strcmp(name, "cuCtxGetCurrent") == 0;
  *function = gets ? reinterpret_cast<void*>(fake_get_current) : reinterpret_cast<void*>(fake_set_current);
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
