// latent_attention: attention whose keys and values are read from one latent vector per token (Kimi Linear's MLA, no
// rotation).
//   score = scale (q_nope . (B_k latent) + q_shared . shared_key);   o = B_v sum_p softmax_p(score) latent_p,   B =
//   kv_b.
// Source: public-models.md 2.5. B_k is moved to the query and B_v behind the sum, which changes nothing but the cost.
#include <cmath>

#include "backends/interface/scratch_layout.h"
#include "backends/reference/linear_weight_reference.h"
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {
namespace {

struct LatentScratch {
  double* query_R;   ///< B_k^T q_nope
  double* latent_R;  ///< sum of weighted latents
};

LatentScratch carve(const LatentAttentionArgs& a, ScratchLayout& layout) {
  return {layout.take<double>(a.rank), layout.take<double>(a.rank)};
}

struct LatentMemory {
  const LatentAttentionArgs& a;
  const KvCache& cache;
  std::int64_t start;
  std::int32_t first_row;

  const float* cached(std::int64_t p) const { return cache.keys + p % cache.capacity * (a.rank + a.shared_dim); }
  const float* latent(std::int64_t p) const { return p >= start ? row(a.latent, first_row + (p - start)) : cached(p); }
  const float* shared(std::int64_t p) const {
    return p >= start ? row(a.shared_key, first_row + (p - start)) : cached(p) + a.rank;
  }
};

double score(const LatentMemory& m, const double* query_R, const float* q_shared, std::int64_t p) {
  double sum = 0;
  for (std::int32_t i = 0; i < m.a.rank; ++i) sum += query_R[i] * m.latent(p)[i];
  for (std::int32_t i = 0; i < m.a.shared_dim; ++i) sum += static_cast<double>(q_shared[i]) * m.shared(p)[i];
  return m.a.scale * sum;
}

void attend(const LatentMemory& m, std::int32_t head, std::int64_t position, const float* q, const LatentScratch& s,
            float* out_V) {
  const LatentAttentionArgs& a = m.a;
  const std::int32_t first_weight = head * (a.nope_dim + a.value_dim);
  for (std::int32_t i = 0; i < a.rank; ++i) {
    s.query_R[i] = s.latent_R[i] = 0;
    for (std::int32_t j = 0; j < a.nope_dim; ++j) s.query_R[i] += weight_at(*a.kv_b, first_weight + j, i) * q[j];
  }
  double largest = -INFINITY, total = 0;
  for (std::int64_t p = 0; p <= position; ++p) largest = std::fmax(largest, score(m, s.query_R, q + a.nope_dim, p));
  for (std::int64_t p = 0; p <= position; ++p) {
    const double weight = std::exp(score(m, s.query_R, q + a.nope_dim, p) - largest);
    total += weight;
    for (std::int32_t i = 0; i < a.rank; ++i) s.latent_R[i] += weight * m.latent(p)[i];
  }
  for (std::int32_t v = 0; v < a.value_dim; ++v) {
    out_V[v] = static_cast<float>(weight_row_dot(*a.kv_b, first_weight + a.nope_dim + v, s.latent_R) / total);
  }
}

void store(const LatentAttentionArgs& a, const KvCache& cache, std::int64_t start, std::int32_t begin,
           std::int32_t end) {
  for (std::int32_t t = end - begin > cache.capacity ? end - cache.capacity : begin; t < end; ++t) {
    float* at = cache.keys + (start + (t - begin)) % cache.capacity * (a.rank + a.shared_dim);
    for (std::int32_t i = 0; i < a.rank; ++i) at[i] = row(a.latent, t)[i];
    for (std::int32_t i = 0; i < a.shared_dim; ++i) at[a.rank + i] = row(a.shared_key, t)[i];
  }
}

}  // namespace

const char* latent_attention_unsupported_reason(const LatentAttentionArgs& a) {
  if (const char* reason = first_reason(
          {require_f32("latent_attention", a.dtype), weight_unsupported_reason("latent_attention", *a.kv_b),
           require_sizes("latent_attention", {a.head_count, a.nope_dim, a.value_dim, a.rank})})) {
    return reason;
  }
  if (a.shared_dim < 0)
    return unsupported("latent_attention: shared key of %d is not supported (supported: >= 0)", a.shared_dim);
  if (a.kv_b->in_dim == a.rank && a.kv_b->out_dim == a.head_count * (a.nope_dim + a.value_dim)) return nullptr;
  return unsupported("latent_attention: kv_b is [%d, %d], expected [%d, %d]", a.kv_b->out_dim, a.kv_b->in_dim,
                     a.head_count * (a.nope_dim + a.value_dim), a.rank);
}

std::size_t latent_attention_scratch_bytes(const LatentAttentionArgs& a) {
  ScratchLayout layout(nullptr);
  carve(a, layout);
  return layout.size_bytes();
}

void latent_attention_run(BackendQueue*, const LatentAttentionArgs& a, void* memory) {
  ScratchLayout layout(memory);
  const LatentScratch scratch = carve(a, layout);
  for (std::int32_t b = 0; b < a.batch.sequence_count; ++b) {
    const std::int32_t begin = a.batch.offsets_host[b], end = a.batch.offsets_host[b + 1];
    if (begin == end) continue;
    const LatentMemory latents = {a, a.caches[b], a.starts[b], begin};
    for (std::int32_t t = begin; t < end; ++t) {
      for (std::int32_t h = 0; h < a.head_count; ++h) {
        attend(latents, h, a.starts[b] + (t - begin), row(a.q, t) + h * (a.nope_dim + a.shared_dim), scratch,
               row(a.out, t) + h * a.value_dim);
      }
    }
    store(a, a.caches[b], a.starts[b], begin, end);
  }
}

}  // namespace cairn::reference
