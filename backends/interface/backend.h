// What a backend is: a name, devices, memory, queues, and a table of operators. Plain structs and function pointers.
//
// A plug-in exports one symbol, cairn_backend_entry. It is locked to the exact build of the library that loads it.
#pragma once

#include <cstdarg>
#include <cstdio>

#include "backends/interface/op_args.h"

namespace cairn {

/// Where a failing backend function leaves its reason. `status` is a cairn_status value.
struct BackendError {
  std::int32_t status = 0;
  char text[384] = {0};
};

struct DeviceOptions {
  std::int32_t index = 0;
  std::int32_t thread_count = 0;  ///< 0: the cores this process may use
  bool bf16_products = false;     ///< cpu: matrix products may round activations to bf16
};

struct DeviceDescription {
  char name[128] = {0};
  char features[256] = {0};
  std::int32_t thread_count = 0;
  std::uint64_t memory_total_bytes = 0, memory_free_bytes = 0;
};

struct BackendDevice;  ///< each backend defines its own
struct BackendQueue;
struct BackendRecording;  ///< queued work kept for replay: a CUDA or HIP graph

enum class MemoryKind : std::uint8_t { kDevice = 0, kPinnedHost = 1 };
enum class CopyKind : std::uint8_t { kHostToDevice = 0, kDeviceToHost = 1, kDeviceToDevice = 2 };

/// One operator. All three are thread-safe; `run` only queues.
template <class Args>
struct Op {
  /// Null when these arguments (their shapes and options, not their pointers) can be run; else why not, with the value
  /// and the supported ones: static or thread-local text. Called at model load.
  const char* (*unsupported_reason)(const Args&) = nullptr;
  /// Bytes of scratch that `run` needs with these arguments; monotonic in the token and sequence counts. 256-aligned.
  std::size_t (*scratch_bytes)(const Args&) = nullptr;
  /// Queues the work; device errors are kept by the queue until synchronize reports them. In the decode phase what is
  /// queued depends on shapes, pointers and the largest of starts_host rounded up to a power of two only: it is recorded
  /// and replayed for other positions below that.
  void (*run)(BackendQueue*, const Args&, void* scratch) = nullptr;
};

/// A fused operator where a backend has no form for it, or not for these arguments: its parts are run instead.
inline constexpr const char* kNoFusedForm = "no fused form: the parts are run one by one";
template <class Args>
constexpr Op<Args> no_fused_form() {
  return {[](const Args&) -> const char* { return kNoFusedForm; }, [](const Args&) -> std::size_t { return 0; },
          [](BackendQueue*, const Args&, void*) {}};
}

struct OpTable {
#define CAIRN_OP(field, Args, what) Op<Args> field;
#include "backends/interface/ops.inc"
#undef CAIRN_OP
};

/// Services of the loader to the plug-in. Host memory of a backend comes from here.
struct HostServices {
  void* (*allocate)(std::size_t size_bytes, std::size_t alignment);  ///< NULL: no memory
  void (*release)(void* memory, std::size_t size_bytes);
  void (*log)(std::int32_t level, const char* component, const char* message);
};

/// Functions return false (or null) on failure and fill in *error. Thread-safe unless they take a queue.
struct Backend {
  const char* name;
  bool host_memory;           ///< device memory is ordinary host memory: weights are used where they lie
  DType activation_dtype;     ///< what CAIRN_PRECISION_DEFAULT means
  std::int32_t (*device_count)(BackendError*);  ///< -1: failed
  BackendDevice* (*open_device)(const DeviceOptions&, BackendError*);
  void (*close_device)(BackendDevice*);
  bool (*describe_device)(BackendDevice*, DeviceDescription*, BackendError*);
  /// 256-aligned, contents undefined. status: OUT_OF_MEMORY or OUT_OF_DEVICE_MEMORY.
  void* (*allocate)(BackendDevice*, std::size_t size_bytes, MemoryKind, BackendError*);
  void (*release)(BackendDevice*, void* memory, std::size_t size_bytes, MemoryKind);
  BackendQueue* (*create_queue)(BackendDevice*, void* native_queue, BackendError*);
  void (*destroy_queue)(BackendQueue*);
  bool (*synchronize)(BackendQueue*, BackendError*);
  bool (*copy)(BackendQueue*, void* to, const void* from, std::size_t size_bytes, CopyKind, BackendError*);
  bool (*zero)(BackendQueue*, void* memory, std::size_t size_bytes, BackendError*);
  /// Makes weight->packed from weight->data (host pointer when host_memory, else device pointer).
  bool (*pack_linear)(BackendDevice*, LinearWeight*, BackendError*);
  void (*unpack_linear)(BackendDevice*, LinearWeight*);
  const OpTable* ops;
  /// Recording of decode steps, which are queued over and over with the same pointers. Null: not offered. Between begin
  /// and end nothing runs; end gives null on failure, and the queue works again either way.
  bool (*begin_recording)(BackendQueue*, BackendError*) = nullptr;
  BackendRecording* (*end_recording)(BackendQueue*, BackendError*) = nullptr;
  bool (*replay_recording)(BackendQueue*, BackendRecording*, BackendError*) = nullptr;
  void (*release_recording)(BackendRecording*) = nullptr;
  /// The calling thread has again the current device that it had before functions of this backend chose their own.
  /// Null: they choose none.
  void (*restore_thread)() = nullptr;
};

struct BackendList {
  const char* build_id;  ///< must equal kBuildId of the loader
  std::int32_t count;
  const Backend* const* backends;
};

#ifndef CAIRN_BUILD_ID
#define CAIRN_BUILD_ID "unset"
#endif
inline constexpr const char* kBuildId = CAIRN_BUILD_ID;
inline constexpr const char* kBackendEntryName = "cairn_backend_entry";
using BackendEntry = const BackendList* (*)(const HostServices*);

/// Fills in the reason and returns false: `return backend_failure(error, CAIRN_STATUS_DEVICE, "...", ...)`.
[[gnu::format(printf, 3, 4)]] inline bool backend_failure(BackendError* error, std::int32_t status, const char* format, ...) {
  error->status = status;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error->text, sizeof error->text, format, arguments);
  va_end(arguments);
  return false;
}

}  // namespace cairn
