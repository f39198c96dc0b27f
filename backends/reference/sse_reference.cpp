// sse: sparse state expansion, one token:   e = softmax(logits);  every chosen partition i, and the shared one with e =
// 1:
//   GLA     S <- diag(a) S;   S <- S + e k v^T;                       o += e S^T q
//   delta   S <- diag(a) S;   S <- S + beta e k (v - S^T k)^T;        o += e S^T q
//   GDN     S <- a S;         S <- S + beta (e k) (v - S^T e k)^T;    o += S^T (e q)
// Partitions that were not chosen are not touched: no decay, no read. The weights are not renormalised.
// Source: spec 4 and 8; D3 Eqs. 9-14. Numerics: double inside a token; the states are f32 between tokens.
#include <algorithm>
#include <cmath>

#include "backends/interface/scratch_layout.h"
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/scalar_functions.h"
#include "backends/reference/top_k.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {
namespace {

struct SseScratch {
  double* residual_V;
  double* out_V;
  std::int32_t* chosen_P;
};

SseScratch carve(const SseArgs& a, ScratchLayout& layout) {
  SseScratch s;
  s.residual_V = layout.take<double>(a.value_dim);
  s.out_V = layout.take<double>(a.value_dim);
  s.chosen_P = layout.take<std::int32_t>(a.partition_count);
  return s;
}

/// One token of one head in one partition.
struct SseToken {
  const float* q_K;
  const float* k_K;
  const float* v_V;
  const float* log_decay;  ///< [K]; GDN: one
  double beta;             ///< not GLA
  double write_weight, read_weight;
};

double decay_of(const SseArgs& a, const SseToken& t, std::int32_t k) {
  return std::exp(static_cast<double>(t.log_decay[a.transition == SseTransition::kGdn ? 0 : k]));
}

/// What the state is to learn: the value, or the value less the prediction of the decayed state.
void form_residual(const SseArgs& a, const SseToken& t, const float* state_KV, double* residual_V) {
  for (std::int32_t v = 0; v < a.value_dim; ++v) residual_V[v] = t.v_V[v];
  if (a.transition == SseTransition::kGla) return;
  const double weight = a.transition == SseTransition::kGdn ? t.write_weight : 1;
  for (std::int32_t k = 0; k < a.key_dim; ++k) {
    const double key = decay_of(a, t, k) * weight * t.k_K[k];
    for (std::int32_t v = 0; v < a.value_dim; ++v) residual_V[v] -= key * state_KV[k * a.value_dim + v];
  }
}

void sse_step(const SseArgs& a, const SseToken& t, float* state_KV, const SseScratch& s) {
  form_residual(a, t, state_KV, s.residual_V);
  const double beta = a.transition == SseTransition::kGla ? 1 : t.beta;
  for (std::int32_t k = 0; k < a.key_dim; ++k) {
    const double decay = decay_of(a, t, k), write = beta * t.write_weight * t.k_K[k], query = t.read_weight * t.q_K[k];
    for (std::int32_t v = 0; v < a.value_dim; ++v) {
      const double state = decay * state_KV[k * a.value_dim + v] + write * s.residual_V[v];
      s.out_V[v] += state * query;
      state_KV[k * a.value_dim + v] = static_cast<float>(state);
    }
  }
}

/// softmax(logits)[chosen]; exponents from the largest logit on, so that a logit of minus infinity has weight 0.
double route_weight(const float* logits_P, std::int32_t partitions, std::int32_t chosen, double largest) {
  double total = 0;
  for (std::int32_t p = 0; p < partitions; ++p) total += std::exp(logits_P[p] - largest);
  return std::exp(logits_P[chosen] - largest) / total;
}

void run_routed(const SseArgs& a, std::int32_t b, std::int64_t t, std::int32_t h, const SseScratch& s) {
  const std::int32_t decays = a.transition == SseTransition::kGdn ? 1 : a.key_dim;
  const float* logits_P = a.route_logits + t * a.partition_count;
  SseToken token = {row(a.q, t) + h * a.key_dim,
                    row(a.k, t) + h * a.key_dim,
                    row(a.v, t) + h * a.value_dim,
                    a.log_decay + (t * a.head_count + h) * decays,
                    a.beta ? a.beta[t * a.head_count + h] : 0,
                    1,
                    1};
  top_k(logits_P, a.partition_count, a.top_k, s.chosen_P);
  for (std::int32_t i = 0; i < a.top_k; ++i) {
    const double e = route_weight(logits_P, a.partition_count, s.chosen_P[i], logits_P[s.chosen_P[0]]);
    token.write_weight = a.gate_write ? e : 1;
    token.read_weight = a.gate_read ? e : 1;
    const std::int64_t head = static_cast<std::int64_t>(s.chosen_P[i]) * a.head_count + h;
    sse_step(a, token, a.states[b] + head * a.key_dim * a.value_dim, s);
  }
}

void run_shared(const SseArgs& a, std::int32_t b, std::int64_t t, std::int32_t h, const SseScratch& s) {
  const std::int32_t decays = a.transition == SseTransition::kGdn ? 1 : a.key_dim;
  const float* log_decay = a.shared_log_decay ? a.shared_log_decay : a.log_decay;
  const float* beta = a.shared_beta ? a.shared_beta : a.beta;
  const SseToken token = {row(a.shared_q, t) + h * a.key_dim,
                          row(a.shared_k, t) + h * a.key_dim,
                          row(a.v, t) + h * a.value_dim,
                          log_decay + (t * a.head_count + h) * decays,
                          beta ? beta[t * a.head_count + h] : 0,
                          1,
                          1};
  sse_step(a, token, a.shared_states[b] + static_cast<std::int64_t>(h) * a.key_dim * a.value_dim, s);
}

}  // namespace

const char* sse_unsupported_reason(const SseArgs& a) {
  if (a.top_k < 1 || a.top_k > a.partition_count) {
    return unsupported("sse: top %d of %d partitions is not supported (supported: 1 to all)", a.top_k,
                       a.partition_count);
  }
  return first_reason({require_f32("sse", a.dtype), require_sizes("sse", {a.head_count, a.key_dim, a.value_dim})});
}

std::size_t sse_scratch_bytes(const SseArgs& a) {
  ScratchLayout layout(nullptr);
  carve(a, layout);
  return layout.size_bytes();
}

void sse_run(BackendQueue*, const SseArgs& a, void* memory) {
  ScratchLayout layout(memory);
  const SseScratch s = carve(a, layout);
  for (std::int32_t b = 0; b < a.batch.sequence_count; ++b) {
    for (std::int32_t t = a.batch.offsets_host[b]; t < a.batch.offsets_host[b + 1]; ++t) {
      for (std::int32_t h = 0; h < a.head_count; ++h) {
        std::fill_n(s.out_V, a.value_dim, 0.0);
        run_routed(a, b, t, h, s);
        if (a.shared_q.data) run_shared(a, b, t, h, s);
        for (std::int32_t v = 0; v < a.value_dim; ++v)
          (row(a.out, t) + h * a.value_dim)[v] = static_cast<float>(s.out_V[v]);
      }
    }
  }
}

}  // namespace cairn::reference
