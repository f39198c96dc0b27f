// Qwen3.5 (text, and the text part of vision-language checkpoints), its mixtures of experts, and Qwen3-Next.
#pragma once

#include "runtime/import/checkpoint_source.h"

namespace cairn {

Status import_qwen3_5(ImportContext& context);      ///< qwen3_5, qwen3_5_text
Status import_qwen3_5_moe(ImportContext& context);  ///< qwen3_5_moe, qwen3_5_moe_text
Status import_qwen3_next(ImportContext& context);   ///< qwen3_next (qwen3_next_config.cpp)

/// What the three have in common: the numbers of the model and of its layers, without the MLPs.
/// kv_heads: what the class has when the config names none.
void read_qwen_hybrid(ImportContext& context, ConfigReader& reader, std::int32_t kv_heads);

/// Attention with its query and gate rows interleaved per head, norms, MLP, embedding and head.
Status take_qwen_shared(CheckpointSource& source, const WantedTensor& wanted, const ModelDescription& description,
                        const std::string& head_name);

}  // namespace cairn
