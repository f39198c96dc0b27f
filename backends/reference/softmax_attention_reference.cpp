// softmax_attention: o = sum_p softmax_p(scale q . k_p) v_p over the positions that a token sees; then the new keys and
// values are stored.  Source: spec 7. A token at p sees [max(0, p - window + 1), p]; row p % capacity holds position p.
#include <cmath>

#include "backends/interface/scratch_layout.h"
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {
namespace {

double* carve(const SoftmaxAttentionArgs& a, ScratchLayout& layout) { return layout.take<double>(a.value_dim); }

/// Where one sequence's keys and values lie: positions before `start` in the cache, the rest in the batch.
struct Memory {
  const SoftmaxAttentionArgs& a;
  const KvCache& cache;
  std::int64_t start;
  std::int32_t first_row, head;

  const float* key(std::int64_t p) const {
    if (p >= start) return row(a.k, first_row + (p - start)) + head * a.key_dim;
    return cache.keys + (p % cache.capacity * a.kv_heads + head) * a.key_dim;
  }
  const float* value(std::int64_t p) const {
    if (p >= start) return row(a.v, first_row + (p - start)) + head * a.value_dim;
    return cache.values + (p % cache.capacity * a.kv_heads + head) * a.value_dim;
  }
};

double score(const SoftmaxAttentionArgs& a, const float* q_K, const float* k_K) {
  double sum = 0;
  for (std::int32_t i = 0; i < a.key_dim; ++i) sum += static_cast<double>(q_K[i]) * k_K[i];
  return a.scale * sum;
}

void attend(const Memory& memory, const float* q_K, std::int64_t position, float* out_V, double* sum_V) {
  const SoftmaxAttentionArgs& a = memory.a;
  const std::int64_t first = a.window && position >= a.window ? position - a.window + 1 : 0;
  double largest = -INFINITY, total = 0;
  for (std::int64_t p = first; p <= position; ++p) largest = std::fmax(largest, score(a, q_K, memory.key(p)));
  for (std::int32_t v = 0; v < a.value_dim; ++v) sum_V[v] = 0;
  for (std::int64_t p = first; p <= position; ++p) {
    const double weight = std::exp(score(a, q_K, memory.key(p)) - largest);
    const float* value = memory.value(p);
    total += weight;
    for (std::int32_t v = 0; v < a.value_dim; ++v) sum_V[v] += weight * value[v];
  }
  for (std::int32_t v = 0; v < a.value_dim; ++v) out_V[v] = static_cast<float>(sum_V[v] / total);
}

void store(const SoftmaxAttentionArgs& a, const KvCache& cache, std::int64_t start, std::int32_t begin,
           std::int32_t end) {
  for (std::int32_t t = end - begin > cache.capacity ? end - cache.capacity : begin; t < end; ++t) {
    const std::int64_t at = (start + (t - begin)) % cache.capacity * a.kv_heads;
    for (std::int32_t i = 0; i < a.kv_heads * a.key_dim; ++i) cache.keys[at * a.key_dim + i] = row(a.k, t)[i];
    for (std::int32_t i = 0; i < a.kv_heads * a.value_dim; ++i) cache.values[at * a.value_dim + i] = row(a.v, t)[i];
  }
}

}  // namespace

const char* softmax_attention_unsupported_reason(const SoftmaxAttentionArgs& a) {
  if (a.window < 0) return unsupported("softmax_attention: window %d is not supported (supported: >= 0)", a.window);
  return first_reason({require_f32("softmax_attention", a.dtype),
                       require_heads("softmax_attention", a.kv_heads, a.query_heads),
                       require_sizes("softmax_attention", {a.key_dim, a.value_dim})});
}

std::size_t softmax_attention_scratch_bytes(const SoftmaxAttentionArgs& a) {
  ScratchLayout layout(nullptr);
  carve(a, layout);
  return layout.size_bytes();
}

void softmax_attention_run(BackendQueue*, const SoftmaxAttentionArgs& a, void* scratch) {
  ScratchLayout layout(scratch);
  double* sum_V = carve(a, layout);
  for (std::int32_t b = 0; b < a.batch.sequence_count; ++b) {
    const std::int32_t begin = a.batch.offsets_host[b], end = a.batch.offsets_host[b + 1];
    if (begin == end) continue;
    for (std::int32_t t = begin; t < end; ++t) {
      for (std::int32_t h = 0; h < a.query_heads; ++h) {
        const Memory memory = {a, a.caches[b], a.starts[b], begin, h / (a.query_heads / a.kv_heads)};
        attend(memory, row(a.q, t) + h * a.key_dim, a.starts[b] + (t - begin), row(a.out, t) + h * a.value_dim, sum_V);
      }
    }
    store(a, a.caches[b], a.starts[b], begin, end);
  }
}

}  // namespace cairn::reference
