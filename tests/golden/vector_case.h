// One case of a folder of test vectors: its entry of index.json and its tensors.
#pragma once

#include <nlohmann/json.hpp>

#include "tests/support/safetensors_file.h"

namespace cairn::test {

class VectorCase {
 public:
  /// `entry`: one of index.json's cases. False: *reason says why.
  bool load(const std::string& folder, const nlohmann::json& entry, std::string* reason);

  const std::string& name() const { return name_; }
  const std::string& kind() const { return kind_; }
  const nlohmann::json& params() const { return params_; }
  /// An integer parameter; `fallback` where it is absent.
  std::int32_t param(const char* key, std::int32_t fallback = 0) const;
  bool flag(const char* key) const { return params_.contains(key) && params_[key].get<bool>(); }

  bool has(const std::string& tensor) const { return tensors_.count(tensor) != 0; }
  const FileTensor& tensor(const std::string& name) const { return tensors_.at(name); }
  std::vector<float> floats(const std::string& name) const { return tensors_.at(name).floats(); }
  std::vector<std::int64_t> integers(const std::string& name) const { return tensors_.at(name).integers(); }
  std::int32_t dim(const std::string& name, std::size_t axis) const {
    return static_cast<std::int32_t>(tensors_.at(name).shape.at(axis));
  }
  const FileTensors& tensors() const { return tensors_; }

  bool is_input(const std::string& tensor) const { return entries_.at(tensor)["role"] == "input"; }
  /// The file's advice for a tensor: the first of these labels that it has; 0: none.
  double tolerance(const std::string& tensor, std::initializer_list<const char*> labels) const;

 private:
  std::string name_, kind_;
  nlohmann::json params_, entries_;
  FileTensors tensors_;
};

/// The first key of `object` that is none of `words`, which blanks separate; empty: there is none.
std::string unknown_key(const nlohmann::json& object, const std::string& words);

}  // namespace cairn::test
