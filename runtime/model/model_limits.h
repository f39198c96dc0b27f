// What a reader refuses before it allocates: cairn_limits with its defaults filled in.
#pragma once

#include <cstdint>

#include "cairn/model.h"
#include "runtime/model/model_description.h"

namespace cairn {

struct ModelLimits {
  std::uint32_t max_layers = 4096;
  std::uint32_t max_tensors = 131072;
  std::uint32_t max_vocab = 4194304;
  std::uint64_t max_tensor_bytes = std::uint64_t{1} << 44;
  std::uint64_t max_metadata_bytes = std::uint64_t{1} << 20;  ///< names, chat template, tokenizer_config.json
  std::uint64_t max_snapshot_bytes = ~std::uint64_t{0};

  /// null: all defaults.
  static ModelLimits from(const cairn_limits* limits);
};

/// Tokens that end a reply.
inline constexpr std::size_t kMaxStopTokens = 1024;

/// Bytes of a tokenizer's own file (tokenizer.json, ranks).
inline constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{32} << 20;

/// Bytes of an architecture and of a model's name: files and snapshots carry them.
inline constexpr std::size_t kMaxNameBytes = 256;

/// As validate(description), with limits of the caller's.
Status validate(const ModelDescription& description, const ModelLimits& limits);

/// NUMERIC: the first NaN or infinity in the tensors and their scales, and an a_log whose exp() is infinite.
Status check_finite(const ModelDescription& description);

}  // namespace cairn
