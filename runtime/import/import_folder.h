// A folder with config.json and safetensors becomes a ModelDescription.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/import/imported_tensors.h"
#include "runtime/model/container_format.h"
#include "runtime/model/model_limits.h"

namespace cairn {

struct ImportOptions {
  ModelLimits limits;
  bool no_mmap = false;
  bool check_finite = false;
  ByteProgress progress;          ///< bytes of weights read for the fingerprint
  bool wants_fingerprint = true;  ///< false: it stays zero, and no weight is read
};

/// Imports, validates, checks every tensor's shape, and computes the fingerprint.
Result<ModelDescription> import_folder(const std::string& folder, const ImportOptions& options = {});

/// What an importer works on. It fills `description` from `config` and moves tensors with `tensors`; import_folder()
/// then refuses tensors that were left, sorts, validates and checks.
struct ImportContext {
  const std::string& folder;
  const nlohmann::json& config;  ///< config.json
  const ModelLimits& limits;
  ImportedTensors& tensors;
  ModelDescription& description;
};
using Importer = Status (*)(ImportContext& context);

/// One line of the table in import_folder.cpp: config[field] == value selects the importer.
struct ImporterEntry {
  const char* field;  ///< "format" or "model_type"
  const char* value;
  Importer import;
};

}  // namespace cairn
