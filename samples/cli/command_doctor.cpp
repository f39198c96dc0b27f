#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "commands.h"
#include "progress_bar.h"

namespace cairn_cli {

static void print_library() {
  Dl_info where = {};
  dladdr(reinterpret_cast<const void*>(&cairn_version_string), &where);
  std::printf("library    cairn %s, ABI %u, %s\n", cairn_version_string(), cairn_abi_version(),
              where.dli_fname != nullptr ? where.dli_fname : "?");
  const char* path = std::getenv("CAIRN_BACKEND_PATH");
  std::printf("plug-ins   beside the library%s%s\n", path != nullptr ? ", then CAIRN_BACKEND_PATH " : "",
              path != nullptr ? path : " (CAIRN_BACKEND_PATH is not set)");
  if (cairn_abi_version() != CAIRN_ABI_VERSION) {
    std::printf("           this program was built for ABI %d: install matching versions\n", CAIRN_ABI_VERSION);
  }
}

static void print_device(const char* backend, int index) {
  cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
  options.backend = backend;
  options.index = index;
  cairn_device* opened = nullptr;
  if (cairn_device_open(&options, &opened) != CAIRN_STATUS_OK) {
    std::printf("             device %d: %s\n", index, cairn_last_error_message());
    return;
  }
  const Device device(opened);
  cairn_device_info info = CAIRN_DEVICE_INFO_INIT;
  check(cairn_device_get_info(opened, &info), "device");
  std::printf("             device %d: %s", index, info.name);
  if (info.thread_count > 0) std::printf(", %d threads", info.thread_count);
  if (info.memory_total_bytes > 0) {
    std::printf(", %s free of %s", human_bytes(info.memory_free_bytes).c_str(),
                human_bytes(info.memory_total_bytes).c_str());
  }
  std::printf("\n             features: %s\n", info.features);
}

static bool print_backends() {
  bool any = false;
  int32_t count = 0;
  check(cairn_backend_count(&count), "backends");
  std::printf("backends\n");
  for (int32_t i = 0; i < count; ++i) {
    cairn_backend_info info = CAIRN_BACKEND_INFO_INIT;
    check(cairn_backend_get_info(i, &info), "backend");
    if (info.is_available == 0) {
      std::printf("  - %-9s not available: %s\n", info.name, info.reason);
      continue;
    }
    any = true;
    std::printf("  + %-9s %s\n", info.name, info.path[0] != '\0' ? info.path : "linked in");
    for (int32_t device = 0; device < info.device_count; ++device) print_device(info.name, device);
  }
  return any;
}

static bool print_model(const DoctorArguments& arguments) {
  try {
    const Session session(arguments.model);
    const State state = session.new_state();
    const Stream stream = session.new_stream();
    read_tokens(stream.get(), state.get(), session.tokenize_for(state.get(), "Hello."));
    std::printf("model      %s (%s): loads and reads on %s\n", session.model_path().c_str(), session.info().name,
                session.device_info().backend);
    return true;
  } catch (const Failure& failure) {
    if (interrupted()) throw;
    std::printf("model      %s\n", failure.what());
    return false;
  }
}

bool run_doctor(const DoctorArguments& arguments) {
  print_library();
  const bool any_backend = print_backends();
  return print_model(arguments) && any_backend;
}

}  // namespace cairn_cli
