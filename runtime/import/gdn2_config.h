// Gated DeltaNet-2 under the names of lit_gpt. Such checkpoints have no Hugging Face config: `config.json` says
// "model_type": "gdn2" and the fields that import_gdn2 reads.
#pragma once

#include "runtime/import/checkpoint_source.h"

namespace cairn {

/// Fields: hidden_size, num_hidden_layers, vocab_size, intermediate_size, num_heads, head_dim; optional num_v_heads,
/// expand_v, conv_size, allow_neg_eigval, output_gate ("silu", "sigmoid"), norm_eps, tie_word_embeddings, and for
/// hybrids attn_every (2: every second layer attends), num_attention_heads, window_size, rope_theta.
Status import_gdn2(ImportContext& context);

}  // namespace cairn
