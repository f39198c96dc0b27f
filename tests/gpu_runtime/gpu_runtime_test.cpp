// What the backend cuda makes of its runtime's answers: failures, devices, contexts, limits of shared memory.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <string>

#include "backends/cuda/cuda_overrides.h"
#include "backends/gpu/gpu_device.h"
#include "cairn/status.h"

extern "C" const cairn::BackendList* cairn_backend_entry(const cairn::HostServices*);

namespace cairn::gpu {

#define CAIRN_GPU_OPERATORS(stem) \
  void add_##stem(OpTable&) {}
#include "backends/gpu/gpu_ops.inc"
#undef CAIRN_GPU_OPERATORS
void override_for_cuda(OpTable&) {}

namespace {

struct NoArgs {};
void kernel(NoArgs) {}
void other_kernel(NoArgs) {}

/// A fresh runtime, and the backend's device 0 with two queues on it.
struct Rig {
  const Backend& backend = *cairn_backend_entry(nullptr)->backends[0];
  BackendError error;
  BackendDevice* device;
  BackendQueue *queue, *other;

  Rig() {
    fake_runtime = {};
    device = backend.open_device({}, &error);
    REQUIRE_MESSAGE(device, error.text);
    queue = backend.create_queue(device, nullptr, &error);
    other = backend.create_queue(device, nullptr, &error);
  }
  ~Rig() {
    fake_runtime.failing.clear();
    backend.destroy_queue(queue);
    backend.destroy_queue(other);
    backend.close_device(device);
  }
  void launch(BackendQueue* on, std::size_t shared_bytes = 0) const {
    Launcher(on, "operator")(kernel, dim3(1), dim3(32), shared_bytes, NoArgs{});
  }
};

}  // namespace

TEST_CASE("a failure is its own call's: the next launch of the thread, on any queue, is none") {
  const char* const functions[] = {"cudaSetDevice",
                                   "cudaMemGetInfo",
                                   "cudaMalloc",
                                   "cudaFree",
                                   "cudaStreamCreateWithFlags",
                                   "cudaStreamDestroy",
                                   "cudaMemcpyAsync",
                                   "cudaMemsetAsync",
                                   "cudaGetDeviceCount",
                                   "cudaGetDeviceProperties",
                                   "cudaStreamBeginCapture",
                                   "cudaStreamEndCapture",
                                   "cudaGraphInstantiate",
                                   "cudaGraphLaunch",
                                   "cudaGraphExecDestroy",
                                   "cudaStreamSynchronize"};
  for (const char* function : functions) {
    CAPTURE(function);
    Rig rig;
    const Backend& backend = rig.backend;
    BackendError error;
    char from[8] = {}, to[8];
    void* memory = backend.allocate(rig.device, 8, MemoryKind::kDevice, &error);
    REQUIRE(backend.begin_recording(rig.queue, &error));
    BackendRecording* recording = backend.end_recording(rig.queue, &error);
    BackendQueue* third = backend.create_queue(rig.device, nullptr, &error);

    fake_runtime.failing = {function};
    DeviceDescription description;
    backend.describe_device(rig.device, &description, &error);
    if (BackendDevice* device = backend.open_device({}, &error)) backend.close_device(device);
    if (void* more = backend.allocate(rig.device, 8, MemoryKind::kDevice, &error)) {
      backend.release(rig.device, more, 8, MemoryKind::kDevice);
    }
    if (BackendQueue* queue = backend.create_queue(rig.device, nullptr, &error)) backend.destroy_queue(queue);
    backend.copy(rig.queue, to, from, 8, CopyKind::kHostToDevice, &error);
    backend.zero(rig.queue, to, 8, &error);
    Launcher(rig.queue, "operator").zero(to, 8);
    Launcher(rig.queue, "operator").copy(to, from, 8);
    if (backend.begin_recording(rig.queue, &error)) {
      if (BackendRecording* second = backend.end_recording(rig.queue, &error)) backend.release_recording(second);
    }
    backend.replay_recording(rig.queue, recording, &error);
    backend.release_recording(recording);
    backend.synchronize(rig.queue, &error);
    backend.destroy_queue(third);

    CHECK(fake_runtime.last_error == cudaSuccess);
    fake_runtime.failing.clear();
    backend.synchronize(rig.queue, &error);
    rig.launch(rig.other);
    CHECK(backend.synchronize(rig.other, &error));
    backend.release(rig.device, memory, 8, MemoryKind::kDevice);
  }
}

TEST_CASE("an error that the host left behind is not a launch's") {
  const Rig rig;
  BackendError error;

  fake_runtime.fail(cudaErrorUnknown);
  rig.launch(rig.queue);

  CHECK(rig.backend.synchronize(rig.queue, &error));
  CHECK(fake_runtime.launch_count == 1);
}

TEST_CASE("what was current on the host's thread is current again") {
  fake_runtime = {};
  fake_runtime.majors = {9, 9};
  const Backend& backend = *cairn_backend_entry(nullptr)->backends[0];
  BackendError error;
  BackendDevice* device = backend.open_device({.index = 1}, &error);
  REQUIRE(device);
  backend.restore_thread();
  const CUcontext of_host = fake_primary_context(5);
  for (const CUcontext context : {of_host, CUcontext{nullptr}}) {
    fake_runtime.current = context;

    BackendQueue* queue = backend.create_queue(device, nullptr, &error);
    CHECK(backend.synchronize(queue, &error));
    CHECK(fake_runtime.current == fake_primary_context(1));
    REQUIRE(backend.begin_recording(queue, &error));
    BackendRecording* recording = backend.end_recording(queue, &error);
    backend.restore_thread();
    CHECK(fake_runtime.current == context);
    backend.release_recording(recording);
    backend.destroy_queue(queue);
    backend.restore_thread();

    CHECK(fake_runtime.current == context);
    fake_runtime.current = fake_primary_context(3);
    backend.restore_thread();
    CHECK(fake_runtime.current == fake_primary_context(3));
  }
  backend.close_device(device);
}

TEST_CASE("a kernel's shared memory is allowed once, all that the device has, and never taken back") {
  const Rig rig;
  BackendError error;
  const auto* function = reinterpret_cast<const void*>(kernel);
  fake_runtime.static_bytes[function] = 640;

  for (const std::size_t bytes : {std::size_t{200} * 1024, std::size_t{60} * 1024, std::size_t{48} * 1024}) {
    CAPTURE(bytes);
    rig.launch(rig.queue, bytes);
    CHECK(fake_runtime.dynamic_limits[function] == FakeRuntime::kOptInBytes - 640);
  }
  Launcher(rig.queue, "operator").early(other_kernel, dim3(1), dim3(32), 48 * 1024, NoArgs{});

  CHECK(rig.backend.synchronize(rig.queue, &error));
  CHECK(fake_runtime.launch_count == 4);
  rig.launch(rig.queue, 227 * 1024);
  CHECK_FALSE(rig.backend.synchronize(rig.queue, &error));
}

TEST_CASE("a kernel's own shared memory counts: with it, less than 48 KB may be too much unasked") {
  const Rig rig;
  BackendError error;
  fake_runtime.static_bytes[reinterpret_cast<const void*>(kernel)] = 640;

  rig.launch(rig.queue, 48 * 1024 - 100);

  CHECK(rig.backend.synchronize(rig.queue, &error));
}

TEST_CASE("a recording that lacks an operator is given back") {
  const Rig rig;
  BackendError error;

  REQUIRE(rig.backend.begin_recording(rig.queue, &error));
  rig.launch(rig.queue, 1024 * 1024);
  CHECK(rig.backend.end_recording(rig.queue, &error) == nullptr);

  CHECK(fake_runtime.live_recordings == 0);
  CHECK(error.status == CAIRN_STATUS_DEVICE);
  rig.launch(rig.queue);
  CHECK(rig.backend.synchronize(rig.queue, &error));
}

TEST_CASE("a device that is too old is refused, and not counted when there is no other") {
  fake_runtime = {};
  const Backend& backend = *cairn_backend_entry(nullptr)->backends[0];
  BackendError error;

  fake_runtime.majors = {7};
  CHECK(backend.device_count(&error) == -1);
  CHECK(std::string(error.text).find("7.5") != std::string::npos);
  CHECK(backend.open_device({}, &error) == nullptr);
  CHECK(error.status == CAIRN_STATUS_UNSUPPORTED);

  fake_runtime.majors = {7, 8};
  CHECK(backend.device_count(&error) == 2);
  CHECK(backend.open_device({.index = 0}, &error) == nullptr);
  CHECK(error.status == CAIRN_STATUS_UNSUPPORTED);
  BackendDevice* device = backend.open_device({.index = 1}, &error);
  REQUIRE(device);
  backend.close_device(device);
  CHECK(backend.open_device({.index = 2}, &error) == nullptr);
  CHECK(error.status == CAIRN_STATUS_NOT_FOUND);

  fake_runtime.majors = {};
  CHECK(backend.device_count(&error) == 0);
}

TEST_CASE("a driver that is missing or too old is told in the vendor's words") {
  fake_runtime = {};
  fake_runtime.failing = {"cudaGetDeviceCount"};
  const Backend& backend = *cairn_backend_entry(nullptr)->backends[0];
  BackendError counting, opening;

  CHECK(backend.device_count(&counting) == -1);
  CHECK(backend.open_device({}, &opening) == nullptr);

  CHECK(std::string(counting.text) == "no device was found: a failure");
  CHECK(opening.status == CAIRN_STATUS_NOT_FOUND);
  CHECK(std::string(opening.text).find("device 0 does not exist: no device was found: a failure") != std::string::npos);
}

}  // namespace cairn::gpu
