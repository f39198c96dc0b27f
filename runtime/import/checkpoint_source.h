// What the importers of public architectures share: tensors under a checkpoint's own names, and the fields that every
// Hugging Face config has.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/import/import_folder.h"
#include "runtime/import/json_reader.h"

namespace cairn {

using Names = std::vector<std::string>;

/// Where one of Cairn's tensors comes from: `part` of layer `layer`, or of the model when layer is -1.
struct WantedTensor {
  const TensorSpec& spec;
  int layer = -1;
  std::string part;    ///< spec.name without "layers.I."
  std::string prefix;  ///< "<root>layers.I." or "<root>" in the checkpoint
};

class CheckpointSource {
 public:
  /// `root`: what stands before "layers." in the checkpoint's names, for example "model.".
  CheckpointSource(ImportContext& context, std::string root) : context_(context), root_(std::move(root)) {}

  /// Calls `take` for every tensor that the description needs.
  Status take_all(const std::function<Status(const WantedTensor&)>& take);

  /// The first of these names (without prefix) that the checkpoint has; the first when it has none.
  std::string choose(const WantedTensor& wanted, const Names& names) const;
  bool has(const std::string& name) const { return context_.tensors.has(name); }

  Status take(const WantedTensor& wanted, const Names& names);
  /// A vector that some checkpoints store as a matrix [heads, n].
  Status take_flat(const WantedTensor& wanted, const Names& names, std::int64_t heads);
  /// Rows [first, first + shape[0]) of a tensor with source_rows rows.
  Status take_rows(const WantedTensor& wanted, const Names& names, std::int64_t source_rows, std::int64_t first);
  /// All elements of a tensor of another shape.
  Status take_part(const WantedTensor& wanted, const std::string& name, const std::vector<std::int64_t>& source_shape);
  /// Each element times 0.5, which is exact: f32.
  Status take_halved(const WantedTensor& wanted, const std::string& name);
  /// Row i of the result is row `row(i)` of the source: a copy.
  Status gather_rows(const WantedTensor& wanted, const std::string& name, std::int64_t source_rows,
                     const std::function<std::int64_t(std::int64_t)>& row);
  /// A short convolution [channels, 1, n]; part of a fused one (q, k, v in this order) when the checkpoint has that, or
  /// when there are no names of its own. The layout of MLX, [channels, n, 1], holds the same elements.
  Status take_convolution(const WantedTensor& wanted, const Names& own_names, const std::string& fused_name,
                          const DeltaRuleConfig& config);
  /// Rows of one expert in a fused tensor [experts, rows, columns].
  Status take_expert_rows(const WantedTensor& wanted, const std::string& name,
                          const std::vector<std::int64_t>& source_shape, std::int64_t expert, std::int64_t first_row);

 private:
  Result<bool> take_thirds(const WantedTensor& wanted, const std::string& own, std::int64_t first, std::int64_t total);
  ImportContext& context_;
  std::string root_;
};

/// "experts.12.gate.weight" -> 12, "gate.weight".
struct ExpertPart {
  std::int64_t expert = -1;  ///< -1: not of an expert
  std::string part;
};
ExpertPart split_expert(const std::string& mlp_part);

/// SwiGLU and mixtures of experts under `stem` ("mlp."): gate_proj, up_proj, down_proj; experts apart or fused
/// (gate_up_proj [E, 2 F, D], down_proj [E, D, F]).
Status take_mlp(CheckpointSource& source, const WantedTensor& wanted, const std::string& stem, const MlpConfig& mlp);

/// A shared expert of width 0 is saved as empty tensors and a gate, which have no part in the arithmetic.
void ignore_empty_shared_experts(ImportContext& context);

/// The head is the embedding: a field says so, or there is no head (public-models.md 7, trap 6). Leaves out the head of
/// a tied model.
bool is_head_tied(ImportContext& context, bool says_tied, const std::string& head = "lm_head.weight");

/// UNSUPPORTED: quantised re-exports, told by config fields and tensor names.
Status refuse_reexports(const ImportContext& context);

/// Fields that say nothing about the arithmetic; refuses those that would (rope scaling, sliding windows, dropout is
/// ignored).
void read_generic_fields(ConfigReader& reader);

/// Rotation as `rope_parameters`, or as older configs say it. theta <= 0: no rotation.
struct RopeFields {
  float theta = 0;
  float partial_factor = 1;
};
RopeFields read_rope(ConfigReader& reader, float default_theta, float default_partial);

/// True for each layer of full attention: `layer_types`, or every `interval`-th.
std::vector<bool> read_layer_types(ConfigReader& reader, std::int32_t layer_count, std::int32_t interval,
                                   const ModelLimits& limits);

/// Sets kind, data, chat template, bos, eos and stop tokens from the folder's tokenizer files, generation_config.json
/// and the two ids of `reader`.
Status read_tokenizer_files(ImportContext& context, ConfigReader& reader);

}  // namespace cairn
