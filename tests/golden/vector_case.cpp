#include "tests/golden/vector_case.h"

namespace cairn::test {

bool VectorCase::load(const std::string& folder, const nlohmann::json& entry, std::string* reason) {
  name_ = entry.at("name").get<std::string>();
  kind_ = entry.at("kind").get<std::string>();
  params_ = entry.at("params");
  entries_ = entry.at("tensors");
  if (!read_safetensors(folder + "/" + entry.at("file").get<std::string>(), &tensors_, reason)) return false;
  for (const auto& [name, info] : entries_.items()) {
    if (!has(name)) return *reason = "tensor '" + name + "' of the index is not in the file", false;
    if (tensor(name).shape != info.at("shape").get<std::vector<std::int64_t>>())
      return *reason = "tensor '" + name + "': shapes differ", false;
  }
  for (const auto& [name, unused] : tensors_) {
    if (!entries_.contains(name)) return *reason = "tensor '" + name + "' of the file is not in the index", false;
  }
  return true;
}

std::int32_t VectorCase::param(const char* key, std::int32_t fallback) const {
  return params_.contains(key) ? params_[key].get<std::int32_t>() : fallback;
}

double VectorCase::tolerance(const std::string& tensor, std::initializer_list<const char*> labels) const {
  const nlohmann::json& entry = entries_.at(tensor);
  if (!entry.contains("tol")) return 0;
  for (const char* label : labels) {
    if (entry["tol"].contains(label)) return entry["tol"][label].get<double>();
  }
  return 0;
}

std::string unknown_key(const nlohmann::json& object, const std::string& words) {
  for (const auto& [key, unused] : object.items()) {
    if ((" " + words + " ").find(" " + key + " ") == std::string::npos) return key;
  }
  return {};
}

}  // namespace cairn::test
