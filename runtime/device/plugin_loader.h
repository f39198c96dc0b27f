// Finds and loads backend plug-ins: libcairn_<name>.so beside this library, then in the folder CAIRN_BACKEND_PATH.
// Never in the working directory, never by the system's search path.
#pragma once

#include <string>

#include "backends/interface/backend.h"

namespace cairn {

struct LoadedPlugin {
  const BackendList* backends = nullptr;  ///< null: not loaded
  std::string path;                       ///< of the file that was loaded, "" when linked in
  std::string reason;                     ///< every path that was tried and the loader's words; "" when loaded
};

/// `name`: "cpu", "cuda", ... A plug-in stays loaded for the life of the process.
LoadedPlugin load_plugin(const std::string& name);

/// The folder that this library (or the program that it is linked into) was loaded from; "" when not known.
std::string library_folder();

/// What plug-ins get from the library: its allocator and its log.
const HostServices& host_services();

}  // namespace cairn
