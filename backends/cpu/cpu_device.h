// The cpu backend's device and queue. An operator gets at its threads and features by its queue.
#pragma once

#include "backends/cpu/cpu_features.h"
#include "backends/cpu/thread_pool.h"
#include "backends/interface/backend.h"

namespace cairn::cpu {

struct Device {
  explicit Device(const DeviceOptions& options)
      : pool(options.thread_count),
        features(cpu_features()),
        isa(features.isa()),
        bf16_products(options.bf16_products) {}

  ThreadPool pool;
  const CpuFeatures features;
  const Isa isa;             ///< which kernels operators call
  const bool bf16_products;  ///< matrix products may round activations to bf16
  std::byte* worker_scratch =
      nullptr;  ///< kThreadScratchBytes for each thread of the pool but thread 0; set by open_device
};

/// A block of memory for each thread of a region. An operator that needs it has scratch_bytes() return
/// kThreadScratchBytes more, which serves as thread 0's: several callers may each be thread 0 at the same time, a
/// worker has one region.
constexpr std::size_t kThreadScratchBytes = 512 << 10;
inline std::byte* thread_scratch(const Device& device, int thread, void* own) {
  return thread == 0 ? static_cast<std::byte*>(own) : device.worker_scratch + (thread - 1) * kThreadScratchBytes;
}

/// Runs operators at once, on the calling thread and the device's workers; the first error is kept for synchronize.
struct Queue {
  Device* device = nullptr;
  BackendError error;
};

// The opaque types of the interface are these; the interface's names stay undefined so that backends can share a
// program.
inline Device& device_of(BackendDevice* device) { return *reinterpret_cast<Device*>(device); }
inline Queue& queue_of(BackendQueue* queue) { return *reinterpret_cast<Queue*>(queue); }
inline Device& device_of(BackendQueue* queue) { return *queue_of(queue).device; }

inline const float* row(const ConstRows& rows, std::int64_t token) {
  return static_cast<const float*>(rows.data) + token * rows.stride;
}
inline float* row(const Rows& rows, std::int64_t token) { return static_cast<float*>(rows.data) + token * rows.stride; }

}  // namespace cairn::cpu
