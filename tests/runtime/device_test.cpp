// Finding backends: by name, never another one, with every path that was tried; and memory that is cleared.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "runtime/api/guard.h"
#include "runtime/device/backend_registry.h"
#include "runtime/device/device.h"

namespace cairn {
namespace {

/// CAIRN_BACKEND_PATH for the length of a test.
class BackendPath {
 public:
  explicit BackendPath(const char* path) { path ? setenv("CAIRN_BACKEND_PATH", path, 1) : unsetenv("CAIRN_BACKEND_PATH"); }
  ~BackendPath() { setenv("CAIRN_BACKEND_PATH", CAIRN_PLUGIN_DIR, 1); }
};

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a backend asked for by name is that one or an error that tells where was looked") {
  const auto cpu = Device::open("cpu", {});
  REQUIRE_MESSAGE(cpu.ok(), cpu.status().message());
  CHECK(std::string(cpu.value()->backend().name) == "cpu");
  CHECK(std::string(Device::open("reference", {}).value()->backend().name) == "reference");

  const Status missing = Device::open("abacus", {}).status();
  CHECK(missing.code() == CAIRN_STATUS_NOT_FOUND);
  CHECK(contains(missing.message(), "abacus"));
  CHECK(contains(missing.message(), CAIRN_PLUGIN_DIR));
  for (const char* name : {"../cpu", "CPU", "a/b", "cpu.so", "name_of_more_than_thirty_one_characters"}) {
    CHECK(Device::open(name, {}).status().code() == CAIRN_STATUS_NOT_FOUND);
  }
  CHECK(Device::open("cpu", {.index = 1}).status().code() == CAIRN_STATUS_NOT_FOUND);
  CHECK(Device::open("cpu", {.index = -1}).status().code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(Device::open("cpu", {.thread_count = -1}).status().code() == CAIRN_STATUS_INVALID_ARGUMENT);
}

TEST_CASE("the working directory and relative paths are never searched") {
  for (const char* path : {".", "lib", ""}) {
    const BackendPath scope(path);
    const Status status = Device::open("absent", {}).status();
    CHECK(status.code() == CAIRN_STATUS_NOT_FOUND);
    CHECK_FALSE(contains(status.message(), "./libcairn"));
    CHECK_FALSE(contains(status.message(), " lib/libcairn"));
  }
  const BackendPath unset(nullptr);
  CHECK(contains(Device::open("absent", {}).status().message(), "CAIRN_BACKEND_PATH is not set"));
}

TEST_CASE("a file that is no plug-in is refused with the loader's words") {
  const std::string folder = std::string(std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp") + "/cairn-plugin-test";
  REQUIRE(std::system(("mkdir -p " + folder + " && echo text > " + folder + "/libcairn_text.so").c_str()) == 0);
  const BackendPath scope(folder.c_str());

  const Status status = Device::open("text", {}).status();

  CHECK(status.code() == CAIRN_STATUS_NOT_FOUND);
  CHECK(contains(status.message(), "libcairn_text.so"));
  CHECK(contains(status.message(), (folder + "/libcairn_text.so: ").c_str()));
  CHECK_FALSE(contains(status.message(), (folder + "/libcairn_text.so: no such file").c_str()));
}

TEST_CASE("every known backend is reported, with a path or a reason") {
  BackendRegistry& registry = BackendRegistry::instance();
  REQUIRE(registry.count() >= 4);
  for (std::int32_t i = 0; i < registry.count(); ++i) {
    const BackendReport report = registry.report(i);
    CAPTURE(report.name);
    CHECK((report.device_count > 0 || !report.reason.empty()));
    if (report.name == "cpu" || report.name == "reference") CHECK(report.device_count == 1);
  }
}

int restored_count = 0;

TEST_CASE("a thread has the host's own device again after every call, and while it is told of progress") {
  static const Backend choosing = [] {
    Backend backend{};
    backend.restore_thread = [] { ++restored_count; };
    return backend;
  }();
  remember_backend(choosing);
  const auto restored_by = [](auto&& call) {
    const int before = restored_count;
    call();
    return restored_count - before;
  };

  CHECK(restored_by([] { (void)api::guarded([] { return Status(); }); }) == 1);
  CHECK(restored_by([] { (void)api::guarded([] { return Status::invalid_argument("no"); }); }) == 1);
  CHECK(restored_by([] { api::guarded_release([] {}); }) == 1);
  const auto release_in_callback = [] {
    const api::HostCallbackScope callback;
    api::guarded_release([] {});
  };
  CHECK(restored_by(release_in_callback) == 0);
  const cairn_progress_fn see_count = [](void* seen, std::uint64_t, std::uint64_t) {
    *static_cast<int*>(seen) = restored_count;
    return 0;
  };
  const int before = restored_count;
  int seen = before;
  CHECK(api::progress_of(see_count, &seen)(1, 2));
  CHECK(seen == before + 1);
}

TEST_CASE("copies and zeroing reach memory of every kind") {
  for (const char* backend : {"cpu", "delayed"}) {
    CAPTURE(backend);
    const std::shared_ptr<Device> device = Device::open(backend, {}).value();
    const std::unique_ptr<Queue> queue = std::move(Queue::create(device)).value();
    const DeviceBuffer buffer = std::move(device->allocate(1000)).value();
    std::vector<unsigned char> in(1000, 7), out(1000, 1);

    REQUIRE(queue->copy(buffer.data(), in.data(), 1000, CopyKind::kHostToDevice).ok());
    REQUIRE(queue->zero(buffer.as<std::byte>() + 10, 5).ok());
    REQUIRE(queue->copy(out.data(), buffer.data(), 1000, CopyKind::kDeviceToHost).ok());
    REQUIRE(queue->synchronize().ok());

    std::fill(in.begin() + 10, in.begin() + 15, 0);
    CHECK(in == out);
    CHECK_FALSE(static_cast<bool>(device->allocate(0).value()));
    CHECK(device->describe().ok());
  }
}

}  // namespace cairn
