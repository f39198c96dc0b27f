// moe: tokens are grouped by expert, so that an expert's weights are read once for all of its tokens.
//   Stages    route each token; gather rows by expert; gate, up and silu; down; weighted sum in the order of the choice
//   Numerics  a token's sum depends on its own row and choice alone (see linear_kernels.h)
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/attention_kernels.h"
#include "backends/cpu/linear_cpu.h"
#include "backends/cpu/row_kernels.h"
#include "backends/interface/scratch_layout.h"
#include "backends/reference/scalar_functions.h"
#include "backends/reference/top_k.h"

namespace cairn::cpu {
namespace {

constexpr std::int32_t kStageTokens = 512, kPieceOutputs = 64;

/// One stage's tokens t and their choices; "rows" are (token, choice) pairs sorted by expert.
struct MoeScratch {
  std::byte* thread;              ///< thread 0's block
  double *rank, *score;           ///< [T, E]: what experts are chosen by; softmax or sigmoid of the logits
  double* group_score;            ///< [T, G]
  std::int32_t *order, *groups;   ///< [T, E], [T, G]
  std::int32_t* chosen;           ///< [T, top_k]
  float* weight;                  ///< [T, top_k]
  std::int32_t* row_of;           ///< [T, top_k]: where the pair went
  std::int32_t* first_row;        ///< [E + 1]
  std::int32_t* active;           ///< experts that have rows
  float *in, *hidden, *up, *out;  ///< [rows, D], [rows, F], [rows, F], [rows, D]
};

MoeScratch carve(const MoeArgs& a, ScratchLayout& layout) {
  const auto tokens = static_cast<std::size_t>(std::min(a.token_count, kStageTokens));
  const auto experts = static_cast<std::size_t>(a.expert_count), groups = static_cast<std::size_t>(a.group_count);
  const std::size_t rows = tokens * static_cast<std::size_t>(a.top_k), dim = static_cast<std::size_t>(a.dim);
  const auto hidden = static_cast<std::size_t>(a.hidden_dim);
  MoeScratch s;
  s.thread = layout.take<std::byte>(kThreadScratchBytes);
  s.rank = layout.take<double>(tokens * experts);
  s.score = layout.take<double>(tokens * experts);
  s.group_score = layout.take<double>(tokens * groups);
  s.order = layout.take<std::int32_t>(tokens * experts);
  s.groups = layout.take<std::int32_t>(tokens * groups);
  s.chosen = layout.take<std::int32_t>(rows);
  s.weight = layout.take<float>(rows);
  s.row_of = layout.take<std::int32_t>(rows);
  s.first_row = layout.take<std::int32_t>(experts + 1);
  s.active = layout.take<std::int32_t>(experts);
  s.in = layout.take<float>(rows * dim);
  s.hidden = layout.take<float>(rows * hidden);
  s.up = layout.take<float>(rows * hidden);
  s.out = layout.take<float>(rows * dim);
  return s;
}

/// Experts outside the best groups leave the choice; a group's score is the sum of its two best experts.
void keep_best_groups(const MoeArgs& a, double* rank_E, double* score_G, std::int32_t* order, std::int32_t* groups) {
  const std::int32_t size = a.expert_count / a.group_count, best = std::min(size, 2);
  for (std::int32_t g = 0; g < a.group_count; ++g) {
    reference::top_k(rank_E + g * size, size, best, order);
    score_G[g] = 0;
    for (std::int32_t i = 0; i < best; ++i) score_G[g] += rank_E[g * size + order[i]];
  }
  reference::top_k(score_G, a.group_count, a.top_groups, groups);
  for (std::int32_t e = 0; e < a.expert_count; ++e) {
    if (std::find(groups, groups + a.top_groups, e / size) == groups + a.top_groups) rank_E[e] = -INFINITY;
  }
}

/// Chosen experts and weights of the stage's token t; logits of its batch row.
void route(const MoeArgs& a, const MoeScratch& s, std::int64_t t, const float* logits_E) {
  double *rank = s.rank + t * a.expert_count, *score = s.score + t * a.expert_count;
  std::int32_t* order = s.order + t * a.expert_count;
  const bool softmax = a.router == RouterKind::kSoftmax;
  const double largest = *std::max_element(logits_E, logits_E + a.expert_count);
  double total = 0;
  for (std::int32_t e = 0; e < a.expert_count; ++e) {
    score[e] = softmax ? std::exp(logits_E[e] - largest) : reference::sigmoid(logits_E[e]);
    rank[e] = softmax ? logits_E[e] : score[e] + (a.correction_bias ? a.correction_bias[e] : 0);
    total += score[e];
  }
  if (!softmax && a.group_count > 1) {
    keep_best_groups(a, rank, s.group_score + t * a.group_count, order, s.groups + t * a.group_count);
  }
  reference::top_k(rank, a.expert_count, a.top_k, order);
  double divisor = softmax ? total : 1;
  if (a.renormalize) {
    divisor = softmax ? 0 : 1e-20;
    for (std::int32_t i = 0; i < a.top_k; ++i) divisor += score[order[i]];
  }
  for (std::int32_t i = 0; i < a.top_k; ++i) {
    s.chosen[t * a.top_k + i] = order[i];
    s.weight[t * a.top_k + i] = static_cast<float>(score[order[i]] * a.routed_scale / divisor);
  }
}

/// Sorts the pairs by expert, tokens in order; returns the number of experts that have any.
std::int32_t group_by_expert(const MoeArgs& a, const MoeScratch& s, std::int64_t tokens) {
  std::fill_n(s.first_row, a.expert_count + 1, 0);
  for (std::int64_t i = 0; i < tokens * a.top_k; ++i) ++s.first_row[s.chosen[i] + 1];
  std::int32_t active = 0;
  for (std::int32_t e = 0; e < a.expert_count; ++e) {
    if (s.first_row[e + 1]) s.active[active++] = e;
    s.first_row[e + 1] += s.first_row[e];
    s.order[e] = s.first_row[e];  // the expert's next free row
  }
  for (std::int64_t i = 0; i < tokens * a.top_k; ++i) s.row_of[i] = s.order[s.chosen[i]]++;
  return active;
}

/// y = x W^T for the rows of one expert and the outputs [begin, end).
void expert_product(const LinearKernels& kernels, const LinearWeight& w, const float* x, float* y, std::int32_t rows,
                    std::int32_t begin, std::int32_t end, std::byte* scratch) {
  kernels.run({&w, x, w.in_dim, y, w.out_dim, false, 0, rows, begin, end, reinterpret_cast<float*>(scratch)});
}

/// hidden = silu(gate x) * up x, then out = down hidden.
void run_experts(const MoeArgs& a, const MoeScratch& s, Device& device, std::int32_t active) {
  const LinearKernels& linear = linear_kernels(device.isa);
  const RowKernels& rows = row_kernels(device.isa);
  const std::int32_t hidden_pieces = (a.hidden_dim + kPieceOutputs - 1) / kPieceOutputs;
  device.pool.parallel_for(static_cast<std::int64_t>(active) * hidden_pieces, [&](std::int64_t item, int thread) {
    const std::int32_t e = s.active[item / hidden_pieces], first = s.first_row[e], count = s.first_row[e + 1] - first;
    const auto begin = static_cast<std::int32_t>(item % hidden_pieces) * kPieceOutputs;
    const std::int32_t end = std::min(begin + kPieceOutputs, a.hidden_dim);
    const float* x = s.in + static_cast<std::int64_t>(first) * a.dim;
    float *hidden = s.hidden + static_cast<std::int64_t>(first) * a.hidden_dim,
          *up = s.up + static_cast<std::int64_t>(first) * a.hidden_dim;
    std::byte* scratch = thread_scratch(device, thread, s.thread);
    expert_product(linear, a.gate[e], x, hidden, count, begin, end, scratch);
    expert_product(linear, a.up[e], x, up, count, begin, end, scratch);
    const SwigluArgs join = {DType::kF32,
                             count,
                             end - begin,
                             {hidden + begin, a.hidden_dim},
                             {up + begin, a.hidden_dim},
                             {hidden + begin, a.hidden_dim}};
    rows.swiglu(join, 0, count);
  });
  const std::int32_t out_pieces = (a.dim + kPieceOutputs - 1) / kPieceOutputs;
  device.pool.parallel_for(static_cast<std::int64_t>(active) * out_pieces, [&](std::int64_t item, int thread) {
    const std::int32_t e = s.active[item / out_pieces], first = s.first_row[e], count = s.first_row[e + 1] - first;
    const auto begin = static_cast<std::int32_t>(item % out_pieces) * kPieceOutputs;
    expert_product(linear, a.down[e], s.hidden + static_cast<std::int64_t>(first) * a.hidden_dim,
                   s.out + static_cast<std::int64_t>(first) * a.dim, count, begin,
                   std::min(begin + kPieceOutputs, a.dim), thread_scratch(device, thread, s.thread));
  });
}

void combine(const MoeArgs& a, const MoeScratch& s, const AttentionKernels& kernels, std::int64_t t, float* out_D) {
  std::fill_n(out_D, a.dim, 0.0f);
  for (std::int32_t i = 0; i < a.top_k; ++i) {
    const float* row = s.out + static_cast<std::int64_t>(s.row_of[t * a.top_k + i]) * a.dim;
    kernels.weigh(1, s.weight + t * a.top_k + i, 0, &row, 1, out_D, 0, a.dim);
  }
}

void run_stage(const MoeArgs& a, const MoeScratch& s, Device& device, std::int64_t first, std::int64_t tokens) {
  device.pool.parallel_ranges(tokens, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) route(a, s, t, a.router_logits + (first + t) * a.expert_count);
  });
  const std::int32_t active = group_by_expert(a, s, tokens);
  device.pool.parallel_ranges(tokens, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * a.top_k; i < end * a.top_k; ++i) {
      std::memcpy(s.in + static_cast<std::int64_t>(s.row_of[i]) * a.dim, row(a.in, first + i / a.top_k),
                  static_cast<std::size_t>(a.dim) * sizeof(float));
    }
  });
  run_experts(a, s, device, active);
  const AttentionKernels& kernels = attention_kernels(device.isa);
  device.pool.parallel_ranges(tokens, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) combine(a, s, kernels, t, row(a.out, first + t));
  });
}

std::size_t moe_scratch_bytes(const MoeArgs& a) {
  ScratchLayout layout(nullptr);
  carve(a, layout);
  return layout.size_bytes();
}

void moe_run(BackendQueue* queue, const MoeArgs& a, void* memory) {
  ScratchLayout layout(memory);
  const MoeScratch s = carve(a, layout);
  for (std::int64_t first = 0; first < a.token_count; first += kStageTokens) {
    run_stage(a, s, device_of(queue), first, std::min<std::int64_t>(kStageTokens, a.token_count - first));
  }
}

}  // namespace

void override_moe(OpTable& ops) {
  ops.moe.scratch_bytes = moe_scratch_bytes;
  ops.moe.run = moe_run;
}

}  // namespace cairn::cpu
