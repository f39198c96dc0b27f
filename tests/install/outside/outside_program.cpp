// The headers in C++, the library found and loaded, its plug-ins found beside it: the cpu backend opens.
#include <cairn/cairn.h>

#include <cstdio>

int main() {
  cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
  options.backend = "cpu";
  cairn_device* device = nullptr;
  if (cairn_abi_version() != CAIRN_ABI_VERSION || cairn_device_open(&options, &device) != CAIRN_STATUS_OK) {
    std::fprintf(stderr, "%s\n", cairn_last_error_message());
    return 1;
  }
  cairn_device_release(device);
  std::printf("cairn %s\n", cairn_version_string());
  return 0;
}
