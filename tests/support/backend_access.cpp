#include "tests/support/backend_access.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <sstream>

#ifdef CAIRN_HAS_REFERENCE
#include "backends/reference/reference_backend.h"
#endif

#ifdef CAIRN_HAS_CPU
namespace cairn::cpu {
const Backend* cpu_backend();
}
#endif

namespace cairn::test {
namespace {

void* allocate(std::size_t size_bytes, std::size_t alignment) {
  return std::aligned_alloc(alignment, (size_bytes + alignment - 1) / alignment * alignment);
}
void release(void* memory, std::size_t) { std::free(memory); }
void log(std::int32_t, const char*, const char*) {}
constexpr HostServices kServices = {allocate, release, log};

const Backend* load_plugin(const std::string& name, std::string* reason) {
  const char* folder = std::getenv("CAIRN_BACKEND_PATH");
  const std::string path = std::string(folder ? folder : CAIRN_PLUGIN_DIR) + "/libcairn_" + name + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    *reason = dlerror();
    return nullptr;
  }
  const auto entry = reinterpret_cast<BackendEntry>(dlsym(library, kBackendEntryName));
  const BackendList* list = entry ? entry(&kServices) : nullptr;
  if (!list || std::strcmp(list->build_id, kBuildId) != 0) {
    *reason = path + " is not a backend of this build";
    return nullptr;
  }
  for (std::int32_t i = 0; i < list->count; ++i) {
    if (name == list->backends[i]->name) return list->backends[i];
  }
  *reason = path + " holds no backend '" + name + "'";
  return nullptr;
}

}  // namespace

const Backend* find_backend(const std::string& name, std::string* reason) {
#ifdef CAIRN_HAS_REFERENCE
  if (name == "reference") return reference::reference_backend();
#endif
#ifdef CAIRN_HAS_CPU
  if (name == "cpu") return cpu::cpu_backend();
#endif
  return load_plugin(name, reason);
}

std::vector<std::string> tested_backends() {
  std::vector<std::string> names;
  if (const char* wanted = std::getenv("CAIRN_TEST_BACKENDS")) {
    std::istringstream list(wanted);
    for (std::string name; std::getline(list, name, ',');) names.push_back(name);
    return names;
  }
#ifdef CAIRN_HAS_CPU
  names.push_back("cpu");
#endif
  return names;
}

}  // namespace cairn::test
