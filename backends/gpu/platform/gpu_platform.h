// The one door to the hardware: what kernels and launchers may use, the same for every way this source is built.
//   nvcc   -> gpu_vendor.h over the CUDA runtime
//   hipcc  -> gpu_vendor.h over the HIP runtime
//   g++    -> gpu_emulator.h: blocks run on the host, one fibre for each thread
//
// Device words: __global__, __device__, __shared__, threadIdx, blockIdx, blockDim, gridDim, __syncthreads, atomicMin, and from here
// warp_size(), shuffle_xor(), shuffle(), warp_barrier(), dynamic_shared(); matrix products and copies that run beside the
// arithmetic: gpu_matrix.h. The warp size is 32 or 64: never assume it.
// A kernel that is launched early (Launcher::early) may read weights, and then calls wait_for_previous_kernel() in every
// thread of every block: an early kernel without it breaks the order of all that follow. Most begin with
// let_next_kernel_start(); after one that does not, the next starts when it has ended.
// Barriers and shuffles are called by all threads of the block, or (shuffles) of the warp, that have not returned.
#pragma once

#if defined(CAIRN_GPU_EMULATOR)
#include "backends/gpu/platform/gpu_emulator.h"
#else
#include "backends/gpu/platform/gpu_vendor.h"
#endif

#if defined(__CUDACC__) || defined(__HIPCC__) || defined(CAIRN_GPU_EMULATOR)

namespace cairn::gpu {

/// Sum over the warp; every lane gets it, in the same order of additions.
__device__ inline float warp_sum(float value) {
  for (int distance = warp_size() / 2; distance > 0; distance /= 2) value += shuffle_xor(value, distance);
  return value;
}

__device__ inline float warp_max(float value) {
  for (int distance = warp_size() / 2; distance > 0; distance /= 2) value = fmaxf(value, shuffle_xor(value, distance));
  return value;
}

/// Sum over a one-dimensional block; every thread gets it. `partial`: shared memory of 32 floats.
__device__ inline float block_sum(float value, float* partial) {
  const int thread = static_cast<int>(threadIdx.x), warps = (static_cast<int>(blockDim.x) + warp_size() - 1) / warp_size();
  value = warp_sum(value);
  __syncthreads();
  if (thread % warp_size() == 0) partial[thread / warp_size()] = value;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < warps; ++w) total += partial[w];
  return total;
}

__device__ inline float block_max(float value, float* partial) {
  const int thread = static_cast<int>(threadIdx.x), warps = (static_cast<int>(blockDim.x) + warp_size() - 1) / warp_size();
  value = warp_max(value);
  __syncthreads();
  if (thread % warp_size() == 0) partial[thread / warp_size()] = value;
  __syncthreads();
  float largest = partial[0];
  for (int w = 1; w < warps; ++w) largest = fmaxf(largest, partial[w]);
  return largest;
}

}  // namespace cairn::gpu

#endif
