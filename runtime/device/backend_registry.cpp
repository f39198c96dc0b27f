#include "runtime/device/backend_registry.h"

#include <algorithm>
#include <cstring>

#include "runtime/device/host_thread.h"
#include "runtime/support/log.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxNameBytes = 31;

bool is_backend_name(const std::string& name) {
  const auto is_allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), is_allowed);
}

}  // namespace

BackendRegistry::BackendRegistry() {
  for (const char* name : {"cuda", "rocm", "cpu", "reference"}) {
    records_.push_back(std::make_unique<Record>());
    records_.back()->name = name;
    records_.back()->plugin = std::strcmp(name, "reference") == 0 ? "cpu" : name;
  }
}

BackendRegistry& BackendRegistry::instance() {
  static BackendRegistry& registry = *new BackendRegistry;  // plug-ins are never unloaded either
  return registry;
}

std::int32_t BackendRegistry::count() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int32_t>(records_.size());
}

void BackendRegistry::load(Record& record) {
  if (record.is_loaded) return;
  LoadedPlugin plugin = load_plugin(record.plugin);
  record.path = plugin.path;
  record.reason = plugin.reason;
  for (std::int32_t i = 0; plugin.backends && i < plugin.backends->count; ++i) {
    if (record.name == plugin.backends->backends[i]->name) record.backend = plugin.backends->backends[i];
  }
  if (plugin.backends && !record.backend) record.reason = record.path + ": it has no backend '" + record.name + "'";
  // A plug-in that was not found is looked for again: the host may set CAIRN_BACKEND_PATH later.
  if (!record.backend) return;
  remember_backend(*record.backend);
  record.is_loaded = true;
  log_message(CAIRN_LOG_INFO, "device", "backend '%s' from %s", record.name.c_str(), record.path.c_str());
}

const Backend* BackendRegistry::available(Record& record, BackendReport& report) {
  load(record);
  report = {record.name, record.path, record.reason, 0};
  if (!record.backend) return nullptr;
  BackendError error;
  const std::int32_t device_count = record.backend->device_count(&error);
  if (device_count < 0) report.reason = error.text;
  if (device_count == 0) report.reason = "it found no device";
  report.device_count = std::max(device_count, 0);
  return device_count > 0 ? record.backend : nullptr;
}

BackendReport BackendRegistry::report(std::int32_t index) {
  const std::lock_guard lock(mutex_);
  BackendReport result;
  available(*records_[static_cast<std::size_t>(index)], result);
  return result;
}

Result<const Backend*> BackendRegistry::find(const std::string& name) {
  if (!is_backend_name(name)) {
    return Status::error(CAIRN_STATUS_NOT_FOUND, "backend '%.64s': not a name of 1 to %zu of a-z, 0-9, _", name.c_str(), kMaxNameBytes);
  }
  const std::lock_guard lock(mutex_);
  auto found = std::find_if(records_.begin(), records_.end(), [&](const auto& record) { return record->name == name; });
  Record asked{name, name};
  Record& record = found != records_.end() ? **found : asked;
  load(record);
  if (!record.backend) {
    return Status::error(CAIRN_STATUS_NOT_FOUND, "backend '%s' is not available: %s", name.c_str(), record.reason.c_str());
  }
  const Backend* backend = record.backend;
  if (found == records_.end()) records_.push_back(std::make_unique<Record>(std::move(asked)));
  return backend;
}

Result<const Backend*> BackendRegistry::find_automatic() {
  const std::lock_guard lock(mutex_);
  std::string reasons;
  for (const auto& record : records_) {
    if (record->name == "reference") break;
    BackendReport report;
    if (const Backend* backend = available(*record, report)) return backend;
    reasons += (reasons.empty() ? "" : " | ") + report.name + ": " + report.reason;
  }
  return Status::error(CAIRN_STATUS_NOT_FOUND, "no backend is available: %s", reasons.c_str());
}

}  // namespace cairn
