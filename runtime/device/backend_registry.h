// The backends of this process: which are known, where they came from, and why one is missing. Plug-ins are loaded when
// somebody asks for them, and never before.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/device/plugin_loader.h"
#include "runtime/support/status.h"

namespace cairn {

struct BackendReport {
  std::string name, path, reason;
  std::int32_t device_count = 0;
};

class BackendRegistry {
 public:
  static BackendRegistry& instance();

  /// cuda, rocm, cpu, reference, then others that were asked for by name.
  std::int32_t count();
  /// Loads the plug-in and counts its devices; opens none. `index` is inside [0, count()).
  BackendReport report(std::int32_t index);
  /// NOT_FOUND: the message tells every path that was tried. Does not ask for devices.
  Result<const Backend*> find(const std::string& name);
  /// The first of cuda, rocm, cpu that has a device.
  Result<const Backend*> find_automatic();

 private:
  struct Record {
    std::string name;    ///< of the backend
    std::string plugin;  ///< that brings it: "cpu" brings "reference" too
    bool is_loaded = false;
    const Backend* backend = nullptr;
    std::string path, reason;
  };
  BackendRegistry();
  void load(Record& record);
  /// The record's backend with at least one device; else null, and the reason.
  const Backend* available(Record& record, BackendReport& report);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Record>> records_;
};

}  // namespace cairn
