// GPU plug-ins of this build, on machines with and without their GPU: they load, and they say what they found.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <sstream>
#include <string>

#include "cairn/cairn.h"

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

cairn_backend_info info_of(const std::string& backend) {
  int32_t count = 0;
  REQUIRE(cairn_backend_count(&count) == CAIRN_STATUS_OK);
  for (int32_t i = 0; i < count; ++i) {
    cairn_backend_info info = CAIRN_BACKEND_INFO_INIT;
    REQUIRE(cairn_backend_get_info(i, &info) == CAIRN_STATUS_OK);
    if (info.name == backend) return info;
  }
  FAIL("backend " << backend << " is not known to the library");
  return CAIRN_BACKEND_INFO_INIT;
}

cairn_status open(const char* backend, int32_t index, cairn_device** device) {
  cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
  options.backend = backend;
  options.index = index;
  return cairn_device_open(&options, device);
}

template <class Check>
void for_each_plugin(Check check) {
  std::istringstream names(CAIRN_GPU_PLUGINS);
  for (std::string name; std::getline(names, name, ',');) {
    CAPTURE(name);
    check(name);
  }
}

TEST_CASE("a plug-in of this build loads, with or without its GPU") {
  for_each_plugin([](const std::string& name) {
    const cairn_backend_info info = info_of(name);
    CAPTURE(std::string(info.reason));

    CHECK(contains(info.path, "/libcairn_" + name + ".so"));
    CHECK(info.device_count >= 0);
    CHECK(info.is_available == (info.device_count > 0 ? 1 : 0));
    CHECK(std::string(info.reason).empty() == (info.device_count > 0));
  });
}

TEST_CASE("a device that is not there is refused by the backend's name, its number and what there is") {
  for_each_plugin([](const std::string& name) {
    const int32_t count = info_of(name).device_count;
    cairn_device* device = nullptr;

    CHECK(open(name.c_str(), count, &device) == CAIRN_STATUS_NOT_FOUND);

    const std::string message = cairn_last_error_message();
    CAPTURE(message);
    CHECK(device == nullptr);
    CHECK(contains(message, name + ": device " + std::to_string(count) + " does not exist"));
    if (count == 0 && name == "rocm") CHECK(contains(message, "/dev/kfd"));
  });
}

TEST_CASE("auto passes over a plug-in that found no device") {
  std::string want = "cpu";
  for (const char* name : {"rocm", "cuda"}) {
    if (info_of(name).is_available) want = name;
  }
  cairn_device* device = nullptr;
  REQUIRE_MESSAGE(open("auto", 0, &device) == CAIRN_STATUS_OK, cairn_last_error_message());

  cairn_device_info info = CAIRN_DEVICE_INFO_INIT;
  CHECK(cairn_device_get_info(device, &info) == CAIRN_STATUS_OK);
  CHECK(info.backend == want);

  cairn_device_release(device);
}

}  // namespace
