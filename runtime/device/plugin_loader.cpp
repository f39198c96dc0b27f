#include "runtime/device/plugin_loader.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/support/allocator.h"
#include "runtime/support/log.h"

#if defined(CAIRN_STATIC_BACKEND_CPU)
extern "C" const cairn::BackendList* cairn_backend_entry(const cairn::HostServices*);
#endif

namespace cairn {
namespace {

void forward_log(std::int32_t level, const char* component, const char* message) {
  log_message(level, component, "%s", message);
}

/// The file that holds an address of this process, as the kernel tells it: absolute, whatever the program was called as.
std::string mapped_file_of(const void* address) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"), std::fclose);
  char line[4352];
  while (maps && std::fgets(line, sizeof line, maps.get())) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line, "%lx-%lx", &begin, &end) != 2) continue;
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    const char* path = std::strchr(line, '/');
    if (value < begin || value >= end || !path) continue;
    return std::string(path, std::strcspn(path, "\n"));
  }
  return "";
}

/// Takes the plug-in's list when it was built for exactly this library.
const BackendList* accept(BackendEntry entry, std::string& reason) {
  const BackendList* list = entry(&host_services());
  if (!list || !list->build_id) {
    reason = "its entry gave no list of backends";
    return nullptr;
  }
  if (std::strcmp(list->build_id, kBuildId) == 0) return list;
  reason = std::string("it was built for cairn ") + list->build_id + ", this is cairn " + kBuildId;
  return nullptr;
}

const BackendList* load_file(const std::string& path, std::string& reason) {
  struct stat file {};
  if (stat(path.c_str(), &file) != 0) {
    reason = "no such file";
    return nullptr;
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* text = dlerror();
    reason = text ? text : "the loader gave no reason";
    return nullptr;
  }
  const auto entry = reinterpret_cast<BackendEntry>(dlsym(library, kBackendEntryName));
  const BackendList* list = nullptr;
  if (entry) {
    list = accept(entry, reason);
  } else {
    reason = std::string("it has no symbol ") + kBackendEntryName;
  }
  if (!list) dlclose(library);
  return list;
}

BackendEntry static_entry(const std::string& name) {
#if defined(CAIRN_STATIC_BACKEND_CPU)
  if (name == "cpu") return cairn_backend_entry;
#endif
  (void)name;
  return nullptr;
}

}  // namespace

const HostServices& host_services() {
  static constexpr HostServices services = {host_allocate, host_release, forward_log};
  return services;
}

std::string library_folder() {
  const void* here = reinterpret_cast<const void*>(&library_folder);
  Dl_info info{};
  std::string file = dladdr(here, &info) != 0 && info.dli_fname ? info.dli_fname : "";
  if (file.empty() || file[0] != '/') file = mapped_file_of(here);
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash);
}

LoadedPlugin load_plugin(const std::string& name) {
  LoadedPlugin plugin;
  if (const BackendEntry entry = static_entry(name)) {
    plugin.backends = accept(entry, plugin.reason);
    return plugin;
  }
  std::vector<std::string> folders;
  if (const std::string beside = library_folder(); !beside.empty()) folders.push_back(beside);
  const char* path_variable = std::getenv("CAIRN_BACKEND_PATH");
  std::string trouble;
  if (!path_variable || !*path_variable) {
    trouble = "CAIRN_BACKEND_PATH is not set";
  } else if (path_variable[0] != '/') {
    trouble = std::string("CAIRN_BACKEND_PATH '") + path_variable + "' is not an absolute path";
  } else {
    folders.emplace_back(path_variable);
  }
  for (const std::string& folder : folders) {
    const std::string path = folder + "/libcairn_" + name + ".so";
    std::string reason;
    plugin.backends = load_file(path, reason);
    if (plugin.backends) {
      plugin.path = path;
      plugin.reason.clear();
      return plugin;
    }
    plugin.reason += (plugin.reason.empty() ? "" : "; ") + path + ": " + reason;
  }
  if (!trouble.empty()) plugin.reason += (plugin.reason.empty() ? "" : "; ") + trouble;
  return plugin;
}

}  // namespace cairn
