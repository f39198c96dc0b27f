#include "runtime/import/import_folder.h"

#include "runtime/import/fla_config.h"
#include "runtime/import/gdn2_config.h"
#include "runtime/import/json_reader.h"
#include "runtime/import/kimi_linear_config.h"
#include "runtime/import/native_config.h"
#include "runtime/import/olmo_hybrid_config.h"
#include "runtime/import/qwen3_5_config.h"
#include "runtime/import/sdm_config.h"
#include "runtime/import/spiking_brain_config.h"
#include "runtime/model/model_fingerprint.h"
#include "runtime/support/file.h"

namespace cairn {
namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;

/// Every format and architecture. A new one: its file <stem>_config.{h,cpp}, and a line here.
constexpr ImporterEntry kImporters[] = {
    {"format", "cairn-native/1", import_native},
    {"model_type", "qwen3_5", import_qwen3_5},
    {"model_type", "qwen3_5_text", import_qwen3_5},
    {"model_type", "qwen3_5_moe", import_qwen3_5_moe},
    {"model_type", "qwen3_5_moe_text", import_qwen3_5_moe},
    {"model_type", "qwen3_next", import_qwen3_next},
    {"model_type", "olmo_hybrid", import_olmo_hybrid},
    {"model_type", "kimi_linear", import_kimi_linear},
    {"model_type", "gated_deltanet", import_fla_gated_deltanet},
    {"model_type", "delta_net", import_fla_delta_net},
    {"model_type", "kda", import_fla_kda},
    {"model_type", "gdn2", import_gdn2},
    {"model_type", "sse_swa_moba", import_spiking_brain},
    {"model_type", "sparse_delta_memory", import_sdm},
};

std::string known_values() {
  std::string text;
  for (const ImporterEntry& entry : kImporters) text += (text.empty() ? "" : ", ") + std::string(entry.value);
  return text;
}

Result<Importer> choose_importer(const nlohmann::json& config) {
  std::string found;
  for (const ImporterEntry& entry : kImporters) {
    const auto value = config.find(entry.field);
    if (value == config.end() || !value->is_string()) continue;
    found = value->get<std::string>();
    if (found == entry.value) return entry.import;
  }
  for (const char* field : {"format", "model_type"}) {
    const auto value = config.find(field);
    if (found.empty() && value != config.end() && value->is_string()) found = value->get<std::string>();
  }
  if (found.empty()) return Status::format_error("config.json: neither 'format' nor 'model_type' is a string");
  return Status::unsupported("config.json: architecture '%.60s' is not known (known: %s)", found.c_str(),
                             known_values().c_str());
}

Result<ModelDescription> import_checked(const std::string& folder, const ImportOptions& options) {
  CAIRN_TRY(check_folder(folder));
  CAIRN_TRY_ASSIGN(const std::string text, read_text_file(folder + "/config.json", kMaxConfigBytes));
  CAIRN_TRY_ASSIGN(const nlohmann::json config, parse_json(text, "config.json"));
  if (!config.is_object()) return Status::format_error("config.json: not a JSON object");
  CAIRN_TRY_ASSIGN(const Importer importer, choose_importer(config));
  const SafetensorsLimits limits{options.limits.max_tensors, options.limits.max_tensor_bytes};
  CAIRN_TRY_ASSIGN(SafetensorsMap sources,
                   read_safetensors_folder(folder, options.no_mmap ? FileAccess::kReadAll : FileAccess::kMap, limits));
  ModelDescription description;
  ImportedTensors tensors(std::move(sources), description);
  ImportContext context{folder, config, options.limits, tensors, description};
  CAIRN_TRY(importer(context));
  CAIRN_TRY(validate(description, options.limits));
  CAIRN_TRY(tensors.finish());
  CAIRN_TRY(check_tensors(description));
  if (options.check_finite) CAIRN_TRY(check_finite(description));
  if (options.wants_fingerprint) CAIRN_TRY(compute_fingerprint(description, options.progress));
  return description;
}

}  // namespace

Result<ModelDescription> import_folder(const std::string& folder, const ImportOptions& options) {
  CAIRN_TRY(check_path(folder));
  Result<ModelDescription> result = import_checked(folder, options);
  if (result.ok()) return result;
  return with_path(folder, result.status());
}

}  // namespace cairn
