// What the programs share that time one CUDA plug-in by graph replay: the plug-in's device and queue, device memory, bf16,
// gates as a model has them, medians. A failure ends the program.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "backends/interface/backend.h"

namespace cairn::bench {

inline const Backend* backend;
inline BackendDevice* device;
inline BackendQueue* queue;
inline cudaStream_t stream;

inline void require(bool good, const char* what, const char* detail = "") {
  if (good) return;
  std::printf("FAILED: %s %s\n", what, detail);
  std::exit(1);
}

inline int failed_checks = 0;
/// A check's last word; programs return 1 when one has failed.
inline const char* verdict(bool good, const char* yes = "ok", const char* no = "BAD") {
  failed_checks += good ? 0 : 1;
  return good ? yes : no;
}

/// Loads the plug-in and opens its first device, with a stream of this program's.
inline void open_plugin(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  require(library, "dlopen", library ? "" : dlerror());
  const auto entry = reinterpret_cast<BackendEntry>(dlsym(library, kBackendEntryName));
  require(entry, "dlsym", kBackendEntryName);
  backend = entry(nullptr)->backends[0];
  BackendError error;
  device = backend->open_device({}, &error);
  require(device, "open_device", error.text);
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
  queue = backend->create_queue(device, stream, &error);
  require(queue, "create_queue", error.text);
}

inline void finish() {
  BackendError error;
  require(backend->synchronize(queue, &error), "synchronize", error.text);
}

/// Whether an argument after the plug-in's is `what`.
inline bool is_named(int argc, char** argv, const char* what) {
  return std::any_of(argv + 2, argv + argc, [&](const char* argument) { return std::strcmp(argument, what) == 0; });
}

inline std::uint16_t bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline float value_of(std::uint16_t x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

/// Pieces of device memory, all ones before anything is written, released together.
class Memory {
 public:
  Memory() = default;
  ~Memory() {
    for (void* piece : pieces_) backend->release(device, piece, 0, MemoryKind::kDevice);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  template <class T>
  T* take(std::size_t count) {
    const std::size_t bytes = count * sizeof(T) + 256;
    BackendError error;
    void* piece = backend->allocate(device, bytes, MemoryKind::kDevice, &error);
    require(piece, "allocate", error.text);
    pieces_.push_back(piece);
    require(cudaMemset(piece, 0xFF, bytes) == cudaSuccess, "poison");
    // The queue does not wait for the default stream.
    require(cudaDeviceSynchronize() == cudaSuccess, "poison");
    return static_cast<T*>(piece);
  }
  /// The host's numbers, repeated up to `count`.
  template <class T>
  T* upload(const std::vector<T>& host, std::size_t count) {
    T* piece = take<T>(count);
    for (std::size_t at = 0; at < count; at += host.size()) {
      const std::size_t part = std::min(host.size(), count - at);
      const cudaError_t error = at == 0 ? cudaMemcpy(piece, host.data(), part * sizeof(T), cudaMemcpyHostToDevice)
                                        : cudaMemcpy(piece + at, piece, part * sizeof(T), cudaMemcpyDeviceToDevice);
      require(error == cudaSuccess, "upload", cudaGetErrorString(error));
    }
    require(cudaDeviceSynchronize() == cudaSuccess, "upload");
    return piece;
  }
  template <class T>
  T* upload(const std::vector<T>& host) {
    return upload(host, host.size());
  }

 private:
  std::vector<void*> pieces_;
};

template <class T>
std::vector<T> download(const T* memory, std::size_t count) {
  std::vector<T> host(count);
  require(cudaMemcpy(host.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess, "download");
  return host;
}

/// The gate parameters of a model's heads: g = -rate softplus(x + bias), rate in [0.1, 16], softplus(bias) in [1e-3, 0.1].
struct HeadGates {
  std::vector<float> rate, bias;

  HeadGates(int heads, std::mt19937& random) {
    std::uniform_real_distribution<float> uniform(0, 1);
    for (int h = 0; h < heads; ++h) {
      rate.push_back(0.1f + 15.9f * uniform(random));
      const float dt = std::exp(std::log(1e-3f) + uniform(random) * std::log(100.0f));
      bias.push_back(dt + std::log(-std::expm1(-dt)));
    }
  }
  /// A log-decay of head h.
  template <class Normal>
  float draw(int h, std::mt19937& random, Normal& normal) const {
    return -rate[h] * std::log1p(std::exp(0.5f * normal(random) + bias[h]));
  }
};
/// Log-decays that no model has: some 0, some -1e4.
template <class Normal>
float draw_harsh_gate(std::mt19937& random, Normal& normal) {
  return random() % 5 == 0 ? -1e4f : random() % 3 == 0 ? 0.0f : -std::exp(4 * normal(random));
}

/// Median microseconds of a call: run(0) once, then a graph of run(0) to run(calls - 1), replayed.
template <class Run>
double median_us(int calls, int replays, const Run& run) {
  run(0);
  finish();
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess, "capture");
  for (int i = 0; i < calls; ++i) run(i);
  require(cudaStreamEndCapture(stream, &graph) == cudaSuccess, "end capture", cudaGetErrorString(cudaGetLastError()));
  require(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "instantiate", cudaGetErrorString(cudaGetLastError()));
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  std::vector<double> times;
  for (int i = 0; i < replays + 2; ++i) {
    cudaEventRecord(begin, stream);
    cudaGraphLaunch(exec, stream);
    cudaEventRecord(end, stream);
    require(cudaEventSynchronize(end) == cudaSuccess, "replay", cudaGetErrorString(cudaGetLastError()));
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i >= 2) times.push_back(ms * 1e3 / calls);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
  cudaEventDestroy(begin), cudaEventDestroy(end);
  return times[times.size() / 2];
}

}  // namespace cairn::bench
