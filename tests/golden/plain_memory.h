// Plain forward passes (plain_forward.h) of the mixers with many slots or partitions.
#pragma once

#include "tests/golden/plain_forward.h"

namespace cairn::test {

/// Sparse delta memory in lingua's layout.
struct PlainSdm {
  std::string prefix;  ///< "layers.0.attention."
  int heads, side, value_dim, write_count, read_count;
  bool has_gate, is_learned, decays_by_key = false, has_score_norms = false;
};
std::unique_ptr<PlainMixer> plain_sdm(const PlainSdm& config);

/// SpikingBrain 2's SSE on GDN transitions, averaged with attention behind a norm each.
struct PlainSse {
  std::string prefix;  ///< "model.layers.0.attn."
  int heads, head_dim, partitions, top_k;
  double eps;
  PlainAttention attention;
};
std::unique_ptr<PlainMixer> plain_sse_with_attention(const PlainSse& config);

}  // namespace cairn::test
