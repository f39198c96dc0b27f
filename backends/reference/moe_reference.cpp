// moe: out = sum over the chosen experts e of  w_e down_e(silu(gate_e x) * up_e x).
// Source: public-models.md 2.1, 2.3 (softmax router), 2.5 (sigmoid router with correction and groups).
#include <algorithm>
#include <cmath>

#include "backends/interface/scratch_layout.h"
#include "backends/reference/linear_weight_reference.h"
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/scalar_functions.h"
#include "backends/reference/top_k.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {
namespace {

struct MoeScratch {
  double* rank_E;  ///< what the experts are chosen by
  double* group_score_G;
  double* weight_E;  ///< softmax, or sigmoid, of the logits
  double* hidden_F;
  double* out_D;
  std::int32_t* chosen_E;
  std::int32_t* groups_G;
};

MoeScratch carve(const MoeArgs& a, ScratchLayout& layout) {
  MoeScratch s;
  s.rank_E = layout.take<double>(a.expert_count);
  s.group_score_G = layout.take<double>(a.group_count);
  s.weight_E = layout.take<double>(a.expert_count);
  s.hidden_F = layout.take<double>(a.hidden_dim);
  s.out_D = layout.take<double>(a.dim);
  s.chosen_E = layout.take<std::int32_t>(a.expert_count);
  s.groups_G = layout.take<std::int32_t>(a.group_count);
  return s;
}

/// Experts outside the best groups are out of the choice; a group's score is the sum of its two best experts.
void keep_best_groups(const MoeArgs& a, const MoeScratch& s) {
  const std::int32_t size = a.expert_count / a.group_count;
  for (std::int32_t g = 0; g < a.group_count; ++g) {
    const std::int32_t best = std::min(size, 2);
    top_k(s.rank_E + g * size, size, best, s.chosen_E);
    s.group_score_G[g] = 0;
    for (std::int32_t i = 0; i < best; ++i) s.group_score_G[g] += s.rank_E[g * size + s.chosen_E[i]];
  }
  top_k(s.group_score_G, a.group_count, a.top_groups, s.groups_G);
  for (std::int32_t e = 0; e < a.expert_count; ++e) {
    const bool kept = std::find(s.groups_G, s.groups_G + a.top_groups, e / size) != s.groups_G + a.top_groups;
    if (!kept) s.rank_E[e] = -INFINITY;
  }
}

/// Leaves the chosen experts and, at their places in weight_E, the weights of their outputs.
void route(const MoeArgs& a, const float* logits_E, const MoeScratch& s) {
  const bool softmax = a.router == RouterKind::kSoftmax;
  const double largest = *std::max_element(logits_E, logits_E + a.expert_count);
  double total = 0;
  for (std::int32_t e = 0; e < a.expert_count; ++e) {
    s.weight_E[e] = softmax ? std::exp(logits_E[e] - largest) : sigmoid(logits_E[e]);
    s.rank_E[e] = softmax ? logits_E[e] : s.weight_E[e] + (a.correction_bias ? a.correction_bias[e] : 0);
    total += s.weight_E[e];
  }
  if (!softmax && a.group_count > 1) keep_best_groups(a, s);
  top_k(s.rank_E, a.expert_count, a.top_k, s.chosen_E);
  double divisor = softmax ? total : 1;
  if (a.renormalize) {
    divisor = softmax ? 0 : 1e-20;
    for (std::int32_t i = 0; i < a.top_k; ++i) divisor += s.weight_E[s.chosen_E[i]];
  }
  for (std::int32_t i = 0; i < a.top_k; ++i) s.weight_E[s.chosen_E[i]] *= a.routed_scale / divisor;
}

}  // namespace

const char* moe_unsupported_reason(const MoeArgs& a) {
  if (const char* reason =
          first_reason({require_f32("moe", a.dtype), require_sizes("moe", {a.dim, a.hidden_dim, a.expert_count})})) {
    return reason;
  }
  if (a.top_k < 1 || a.top_k > a.expert_count) {
    return unsupported("moe: top %d of %d experts is not supported (supported: 1 to all)", a.top_k, a.expert_count);
  }
  if (a.group_count < 1 || a.expert_count % a.group_count || a.top_groups < 1 || a.top_groups > a.group_count ||
      a.top_k > a.expert_count / a.group_count * a.top_groups) {
    return unsupported(
        "moe: top %d of %d groups of %d experts is not supported (supported: groups that divide and hold the choice)",
        a.top_groups, a.group_count, a.expert_count);
  }
  return first_reason({weight_unsupported_reason("moe", a.gate[0]), weight_unsupported_reason("moe", a.up[0]),
                       weight_unsupported_reason("moe", a.down[0])});
}

std::size_t moe_scratch_bytes(const MoeArgs& a) {
  ScratchLayout layout(nullptr);
  carve(a, layout);
  return layout.size_bytes();
}

void moe_run(BackendQueue*, const MoeArgs& a, void* memory) {
  ScratchLayout layout(memory);
  const MoeScratch s = carve(a, layout);
  for (std::int32_t t = 0; t < a.token_count; ++t) {
    route(a, a.router_logits + static_cast<std::int64_t>(t) * a.expert_count, s);
    std::fill_n(s.out_D, a.dim, 0.0);
    for (std::int32_t i = 0; i < a.top_k; ++i) {
      const std::int32_t e = s.chosen_E[i];
      for (std::int32_t f = 0; f < a.hidden_dim; ++f) {
        s.hidden_F[f] = silu(weight_row_dot(a.gate[e], f, row(a.in, t))) * weight_row_dot(a.up[e], f, row(a.in, t));
      }
      for (std::int32_t d = 0; d < a.dim; ++d) s.out_D[d] += s.weight_E[e] * weight_row_dot(a.down[e], d, s.hidden_F);
    }
    for (std::int32_t d = 0; d < a.dim; ++d) row(a.out, t)[d] = static_cast<float>(s.out_D[d]);
  }
}

}  // namespace cairn::reference
