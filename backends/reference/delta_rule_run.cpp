#include "backends/reference/delta_rule_run.h"

#include <algorithm>

#include "backends/interface/scratch_layout.h"
#include "backends/reference/row_access.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {
namespace {

struct DeltaScratch {
  double* r_V;
  double* o_V;
};

DeltaScratch carve(const DeltaRuleArgs& a, ScratchLayout& layout) {
  return {layout.take<double>(a.value_dim), layout.take<double>(a.value_dim)};
}

DeltaToken token_of(const DeltaRuleArgs& a, std::int32_t decays_per_head, std::int32_t h, std::int64_t t) {
  const std::int32_t key_head = h / (a.value_heads / a.key_heads);
  const std::int64_t head_row = t * a.value_heads + h;
  DeltaToken token = {};
  token.q_K = row(a.q, t) + key_head * a.key_dim;
  token.k_K = row(a.k, t) + key_head * a.key_dim;
  token.v_V = row(a.v, t) + h * a.value_dim;
  if (decays_per_head) token.log_decay = a.log_decay + head_row * decays_per_head;
  if (a.beta) token.beta = a.beta[head_row];
  if (a.erase.data) token.erase_K = row(a.erase, t) + h * a.key_dim;
  if (a.write.data) token.write_V = row(a.write, t) + h * a.value_dim;
  return token;
}

/// After `done` tokens of sequence b: keeps the head's state when a checkpoint is due.
void keep_checkpoint(const DeltaRuleArgs& a, std::int32_t b, std::int32_t h, std::int32_t done, const float* state_KV) {
  const std::int64_t spacing = static_cast<std::int64_t>(a.checkpoint_chunks) * 64;
  if (spacing == 0 || done % spacing || done == a.batch.offsets_host[b + 1] - a.batch.offsets_host[b]) return;
  const std::int64_t head_size = static_cast<std::int64_t>(a.key_dim) * a.value_dim;
  std::copy_n(state_KV, head_size, a.checkpoints[b] + ((done / spacing - 1) * a.value_heads + h) * head_size);
}

}  // namespace

const char* delta_rule_unsupported_reason(const char* name, const DeltaRuleArgs& a) {
  return first_reason({require_f32(name, a.dtype), require_heads(name, a.key_heads, a.value_heads),
                       require_sizes(name, {a.key_dim, a.value_dim})});
}

std::size_t delta_rule_scratch_bytes(const DeltaRuleArgs& a) {
  ScratchLayout layout(nullptr);
  carve(a, layout);
  return layout.size_bytes();
}

void run_delta_rule(DeltaStep step, std::int32_t decays_per_head, const DeltaRuleArgs& a, void* memory) {
  ScratchLayout layout(memory);
  const DeltaScratch scratch = carve(a, layout);
  for (std::int32_t b = 0; b < a.batch.sequence_count; ++b) {
    const std::int32_t begin = a.batch.offsets_host[b], end = a.batch.offsets_host[b + 1];
    for (std::int32_t h = 0; h < a.value_heads; ++h) {
      float* state_KV = begin == end ? nullptr : a.states[b] + static_cast<std::int64_t>(h) * a.key_dim * a.value_dim;
      for (std::int32_t t = begin; t < end; ++t) {
        step(token_of(a, decays_per_head, h, t), {a.key_dim, a.value_dim}, state_KV, scratch.r_V, scratch.o_V);
        float* out = row(a.out, t) + h * a.value_dim;
        float* residual = a.residual.data ? row(a.residual, t) + h * a.value_dim : nullptr;
        for (std::int32_t v = 0; v < a.value_dim; ++v) {
          out[v] = static_cast<float>(a.scale * scratch.o_V[v]);
          if (residual) residual[v] = static_cast<float>(scratch.r_V[v]);
        }
        keep_checkpoint(a, b, h, t + 1 - begin, state_KV);
      }
    }
  }
}

}  // namespace cairn::reference
