// Small checkpoint folders of random weights, under the names of their families.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/golden/plain_forward.h"
#include "tests/support/random_inputs.h"
#include "tests/support/safetensors_file.h"

namespace cairn::test {

class CheckpointBuilder {
 public:
  CheckpointBuilder(nlohmann::json config_json, std::uint64_t seed);
  ~CheckpointBuilder();
  CheckpointBuilder(const CheckpointBuilder&) = delete;
  CheckpointBuilder& operator=(const CheckpointBuilder&) = delete;

  /// name.weight [out, in], scaled for inputs of about 1.
  void matrix(const std::string& name, std::int64_t out, std::int64_t in, double scale = 1);
  void vector(const std::string& name, std::int64_t size, double mean, double spread);
  /// name.weight [channels, 1, taps]
  void convolution(const std::string& name, std::int64_t channels, std::int64_t taps);
  void tensor(const std::string& name, std::vector<std::int64_t> shape, double spread);
  /// Halves every tensor to bf16, as public checkpoints are stored.
  void round_to_bf16();

  /// Writes config.json and model.safetensors; the folder lives as long as the builder.
  const std::string& write() const;

  nlohmann::json config;
  FileTensors tensors;

 private:
  void put(const std::string& name, std::vector<std::int64_t> shape, const std::vector<float>& values);
  Random random_;
  std::string folder_;
};

/// As flash-linear-attention's classes and those built on them name what is no mixer.
inline const PlainNames kFlaNames = {"model.embeddings.weight", "model.norm.weight", "lm_head.weight",
                                     "model.layers.",           "attn_norm.weight",  "mlp_norm.weight",
                                     "mlp.gate_proj",           "mlp.up_proj",       "mlp.down_proj"};

struct PlainSizes {
  int layers, vocab, dim, hidden;
  bool is_tied = false;
};

/// Everything but the mixers: embedding, head, norms, MLPs.
void add_model(CheckpointBuilder& c, const PlainNames& names, const PlainSizes& sizes);

}  // namespace cairn::test
