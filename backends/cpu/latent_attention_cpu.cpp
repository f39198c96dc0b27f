// latent_attention: kv_b's key half is moved to the queries and its value half behind the sum, so that attention runs
// on the latents as they are cached: one key-value head of rank + shared columns for all query heads.
//   Three stages for each 64 tokens of the batch: absorb queries, attend, expand values.
#include <algorithm>
#include <cstring>

#include "backends/cpu/attention_tile.h"
#include "backends/cpu/cpu_device.h"
#include "backends/cpu/linear_kernels.h"
#include "backends/interface/scratch_layout.h"
#include "backends/reference/reference_backend.h"

namespace cairn::cpu {
namespace {

constexpr std::int32_t kStageTokens = 64;

struct LatentScratch {
  std::byte* thread;  ///< thread 0's block
  float* queries;     ///< [tokens, H, rank + shared_dim]
  float* latents;     ///< [tokens, H, rank]: weighted sums
};

LatentScratch carve(const LatentAttentionArgs& a, ScratchLayout& layout) {
  const auto rows =
      static_cast<std::size_t>(std::min(a.batch.token_count, kStageTokens)) * static_cast<std::size_t>(a.head_count);
  return {layout.take<std::byte>(kThreadScratchBytes),
          layout.take<float>(rows * static_cast<std::size_t>(a.rank + a.shared_dim)),
          layout.take<float>(rows * static_cast<std::size_t>(a.rank))};
}

/// Everything that one call's stages share.
struct LatentCall {
  const LatentAttentionArgs& a;
  Device& device;
  LatentScratch s;
  const AttentionKernels& attention;
  const LinearKernels& linear;

  std::int32_t key_dim() const { return a.rank + a.shared_dim; }
  float* query(std::int64_t stage_token, std::int32_t head) const {
    return s.queries + (stage_token * a.head_count + head) * key_dim();
  }
  float* latent(std::int64_t stage_token, std::int32_t head) const {
    return s.latents + (stage_token * a.head_count + head) * a.rank;
  }
  std::int32_t weight_row(std::int32_t head) const { return head * (a.nope_dim + a.value_dim); }
};

/// query[t, h] = [q_nope B_k | q_shared] for the tokens [begin, end) of one head.
void absorb_head(const LatentCall& c, std::int32_t head, std::int32_t begin, std::int32_t end, float* widened) {
  const LatentAttentionArgs& a = c.a;
  const std::int64_t sum_stride = static_cast<std::int64_t>(a.head_count) * c.key_dim();
  for (std::int32_t t = begin; t < end; ++t) {
    std::fill_n(c.query(t - begin, head), a.rank, 0.0f);
    std::memcpy(c.query(t - begin, head) + a.rank, row(a.q, t) + head * (a.nope_dim + a.shared_dim) + a.nope_dim,
                static_cast<std::size_t>(a.shared_dim) * sizeof(float));
  }
  const std::int32_t at_once = std::min<std::int32_t>(64, kThreadScratchBytes / sizeof(float) / a.rank);
  const float* rows[64];
  for (std::int32_t j = 0; j < a.nope_dim; j += at_once) {
    const std::int32_t count = std::min(at_once, a.nope_dim - j);
    for (std::int32_t i = 0; i < count; ++i) {
      c.linear.widen_row(*a.kv_b, c.weight_row(head) + j + i, widened + static_cast<std::int64_t>(i) * a.rank);
      rows[i] = widened + static_cast<std::int64_t>(i) * a.rank;
    }
    c.attention.weigh(end - begin, row(a.q, begin) + head * (a.nope_dim + a.shared_dim) + j, a.q.stride, rows, count,
                      c.query(0, head), sum_stride, a.rank);
  }
}

/// Up to kAttentionRows heads of one token.
void attend_heads(const LatentCall& c, std::int32_t b, std::int32_t begin, std::int32_t token,
                  std::int32_t first_head) {
  const LatentAttentionArgs& a = c.a;
  const std::int64_t position = a.starts[b] + (token - a.batch.offsets_host[b]);
  AttentionTile tile;
  tile.row_count = std::min(kAttentionRows, a.head_count - first_head);
  tile.key_dim = c.key_dim();
  tile.value_dim = a.rank;
  tile.scale = a.scale;
  tile.sums = c.latent(token - begin, first_head);
  for (std::int32_t r = 0; r < tile.row_count; ++r) {
    tile.queries[r] = c.query(token - begin, first_head + r);
    tile.first_seen[r] = 0;
    tile.end_seen[r] = position + 1;
  }
  const KvCache& cache = a.caches[b];
  run_tile(c.attention, tile, [&](std::int64_t p, const float** key, const float** value) {
    *key = *value = cache.keys + p % cache.capacity * c.key_dim();
  });
  for (std::int32_t r = 0; r < tile.row_count; ++r)
    c.attention.finish(tile, r, tile.sums + static_cast<std::int64_t>(r) * a.rank);
}

/// out[t, h] = B_v latent[t, h] for the tokens [begin, end) of one head.
void expand_head(const LatentCall& c, std::int32_t head, std::int32_t begin, std::int32_t end, float* packed) {
  const LatentAttentionArgs& a = c.a;
  const std::int32_t first = c.weight_row(head) + a.nope_dim;
  LinearWeight weight = *a.kv_b;
  weight.bias = nullptr;
  for (std::int32_t v = 0; v < a.value_dim; v += kLinearBlockOutputs) {
    const std::int32_t count = std::min(kLinearBlockOutputs, a.value_dim - v);
    float* y = row(a.out, begin) + head * a.value_dim - first;
    c.linear.run({&weight, c.latent(0, head), static_cast<std::int64_t>(a.head_count) * a.rank, y, a.out.stride, false,
                  0, end - begin, first + v, first + v + count, packed});
  }
}

void store_new(const LatentAttentionArgs& a, std::int32_t b) {
  const std::int32_t begin = a.batch.offsets_host[b], end = a.batch.offsets_host[b + 1];
  const KvCache& cache = a.caches[b];
  for (std::int32_t t = begin; t < end; ++t) {
    float* at = cache.keys + (a.starts[b] + (t - begin)) % cache.capacity * (a.rank + a.shared_dim);
    std::memcpy(at, row(a.latent, t), static_cast<std::size_t>(a.rank) * sizeof(float));
    if (a.shared_dim)
      std::memcpy(at + a.rank, row(a.shared_key, t), static_cast<std::size_t>(a.shared_dim) * sizeof(float));
  }
}

/// The cache holds every position of every sequence; else the latents of the batch would overwrite ones still to be
/// read.
bool all_fit(const LatentAttentionArgs& a) {
  for (std::int32_t b = 0; b < a.batch.sequence_count; ++b) {
    const std::int64_t tokens = a.batch.offsets_host[b + 1] - a.batch.offsets_host[b];
    if (tokens && a.starts[b] + tokens > a.caches[b].capacity) return false;
  }
  return true;
}

const char* latent_attention_unsupported_reason(const LatentAttentionArgs& a) {
  if (a.rank > static_cast<std::int32_t>(kThreadScratchBytes / sizeof(float))) {
    return "latent_attention: ranks above 131072 are not supported";
  }
  return reference::reference_backend()->ops->latent_attention.unsupported_reason(a);
}

std::size_t latent_attention_scratch_bytes(const LatentAttentionArgs& a) {
  ScratchLayout layout(nullptr);
  carve(a, layout);
  return layout.size_bytes() + reference::reference_backend()->ops->latent_attention.scratch_bytes(a);
}

void latent_attention_run(BackendQueue* queue, const LatentAttentionArgs& a, void* memory) {
  if (!all_fit(a)) return reference::reference_backend()->ops->latent_attention.run(queue, a, memory);
  ScratchLayout layout(memory);
  Device& device = device_of(queue);
  const LatentCall c = {a, device, carve(a, layout), attention_kernels(device.isa), linear_kernels(device.isa)};
  for (std::int32_t b = 0; b < a.batch.sequence_count; ++b) store_new(a, b);
  const std::int32_t head_tiles = (a.head_count + kAttentionRows - 1) / kAttentionRows;
  for (std::int32_t begin = 0; begin < a.batch.token_count; begin += kStageTokens) {
    const std::int32_t end = std::min(begin + kStageTokens, a.batch.token_count);
    device.pool.parallel_for(a.head_count, [&](std::int64_t head, int thread) {
      absorb_head(c, static_cast<std::int32_t>(head), begin, end,
                  reinterpret_cast<float*>(thread_scratch(device, thread, c.s.thread)));
    });
    device.pool.parallel_for((end - begin) * head_tiles, [&](std::int64_t item) {
      const auto token = static_cast<std::int32_t>(begin + item / head_tiles);
      std::int32_t b = 0;
      while (token >= a.batch.offsets_host[b + 1]) ++b;
      attend_heads(c, b, begin, token, static_cast<std::int32_t>(item % head_tiles) * kAttentionRows);
    });
    device.pool.parallel_for(a.head_count, [&](std::int64_t head, int thread) {
      expand_head(c, static_cast<std::int32_t>(head), begin, end,
                  reinterpret_cast<float*>(thread_scratch(device, thread, c.s.thread)));
    });
  }
}

}  // namespace

void override_latent_attention(OpTable& ops) {
  ops.latent_attention = {latent_attention_unsupported_reason, latent_attention_scratch_bytes, latent_attention_run};
}

}  // namespace cairn::cpu
