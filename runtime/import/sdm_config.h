// Sparse delta memory in the parameter layout of lingua. Such checkpoints have no Hugging Face config: `config.json`
// says "model_type": "sparse_delta_memory" and holds the fields of the training configuration's `model` section.
#pragma once

#include "runtime/import/checkpoint_source.h"

namespace cairn {

/// Layers of sdm_at, swa_at and attn_at; rotation of neighbouring columns becomes rotation of halves.
Status import_sdm(ImportContext& context);

}  // namespace cairn
