// softmax_attention: tiles of 16 query rows (tokens times the query heads of one key head) over blocks of 64 positions;
// then the new keys and values are stored. No memory grows with the context.
#include <algorithm>
#include <cstring>

#include "backends/cpu/attention_tile.h"
#include "backends/cpu/cpu_device.h"
#include "backends/reference/reference_backend.h"

namespace cairn::cpu {

const AttentionKernels& attention_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512::kAttentionKernels;
  if (isa == Isa::kAvx2) return avx2::kAttentionKernels;
#endif
  (void)isa;
  return baseline::kAttentionKernels;
}

namespace {

constexpr std::int32_t kLargestValueDim = kThreadScratchBytes / sizeof(float) / kAttentionRows;

const char* softmax_attention_unsupported_reason(const SoftmaxAttentionArgs& a) {
  if (a.value_dim > kLargestValueDim) return "softmax_attention: value heads wider than 8192 are not supported";
  return reference::reference_backend()->ops->softmax_attention.unsupported_reason(a);
}

std::size_t softmax_attention_scratch_bytes(const SoftmaxAttentionArgs&) { return kThreadScratchBytes; }

/// Query rows of one sequence and key head, in tiles.
std::int64_t tiles_of(const SoftmaxAttentionArgs& a, std::int32_t sequence) {
  const std::int64_t tokens = a.batch.offsets_host[sequence + 1] - a.batch.offsets_host[sequence];
  return (tokens * (a.query_heads / a.kv_heads) + kAttentionRows - 1) / kAttentionRows;
}

void attend_tile(const SoftmaxAttentionArgs& a, const AttentionKernels& kernels, std::int32_t b, std::int32_t kv_head,
                 std::int64_t tile_index, float* sums) {
  const std::int32_t first_row = a.batch.offsets_host[b], group = a.query_heads / a.kv_heads;
  const std::int64_t tokens = a.batch.offsets_host[b + 1] - first_row, start = a.starts[b];
  const std::int64_t begin = tile_index * kAttentionRows, end = std::min(begin + kAttentionRows, tokens * group);
  AttentionTile tile;
  tile.row_count = static_cast<std::int32_t>(end - begin);
  tile.key_dim = a.key_dim;
  tile.value_dim = a.value_dim;
  tile.scale = a.scale;
  tile.sums = sums;
  const auto head_of = [&](std::int32_t r) { return kv_head * group + (begin + r) % group; };
  const auto token_of = [&](std::int32_t r) { return (begin + r) / group; };
  for (std::int32_t r = 0; r < tile.row_count; ++r) {
    const std::int64_t position = start + token_of(r);
    tile.queries[r] = row(a.q, first_row + token_of(r)) + head_of(r) * a.key_dim;
    tile.first_seen[r] = a.window && position >= a.window ? position - a.window + 1 : 0;
    tile.end_seen[r] = position + 1;
  }
  const KvCache& cache = a.caches[b];
  run_tile(kernels, tile, [&](std::int64_t position, const float** key, const float** value) {
    if (position >= start) {
      *key = row(a.k, first_row + (position - start)) + static_cast<std::int64_t>(kv_head) * a.key_dim;
      *value = row(a.v, first_row + (position - start)) + static_cast<std::int64_t>(kv_head) * a.value_dim;
    } else {
      const std::int64_t at = position % cache.capacity * a.kv_heads + kv_head;
      *key = cache.keys + at * a.key_dim;
      *value = cache.values + at * a.value_dim;
    }
  });
  for (std::int32_t r = 0; r < tile.row_count; ++r) {
    kernels.finish(tile, r, row(a.out, first_row + token_of(r)) + head_of(r) * a.value_dim);
  }
}

void store_new(const SoftmaxAttentionArgs& a, std::int32_t b) {
  const std::int32_t begin = a.batch.offsets_host[b], end = a.batch.offsets_host[b + 1];
  const KvCache& cache = a.caches[b];
  const std::size_t keys = static_cast<std::size_t>(a.kv_heads) * static_cast<std::size_t>(a.key_dim);
  const std::size_t values = static_cast<std::size_t>(a.kv_heads) * static_cast<std::size_t>(a.value_dim);
  for (std::int32_t t = std::max(begin, end - cache.capacity); t < end; ++t) {
    const auto at = static_cast<std::size_t>((a.starts[b] + (t - begin)) % cache.capacity);
    std::memcpy(cache.keys + at * keys, row(a.k, t), keys * sizeof(float));
    std::memcpy(cache.values + at * values, row(a.v, t), values * sizeof(float));
  }
}

void softmax_attention_run(BackendQueue* queue, const SoftmaxAttentionArgs& a, void* scratch) {
  Device& device = device_of(queue);
  const AttentionKernels& kernels = attention_kernels(device.isa);
  std::int64_t tiles = 0;
  for (std::int32_t b = 0; b < a.batch.sequence_count; ++b) tiles += tiles_of(a, b);
  device.pool.parallel_for(tiles * a.kv_heads, [&](std::int64_t item, int thread) {
    std::int64_t tile = tiles - 1 - item / a.kv_heads;  // the last tokens see most: first
    std::int32_t b = 0;
    for (; tile >= tiles_of(a, b); ++b) tile -= tiles_of(a, b);
    attend_tile(a, kernels, b, static_cast<std::int32_t>(item % a.kv_heads), tile,
                reinterpret_cast<float*>(thread_scratch(device, thread, scratch)));
  });
  device.pool.parallel_for(a.batch.sequence_count, [&](std::int64_t b) { store_new(a, static_cast<std::int32_t>(b)); });
}

}  // namespace

void override_softmax_attention(OpTable& ops) {
  ops.softmax_attention = {softmax_attention_unsupported_reason, softmax_attention_scratch_bytes,
                           softmax_attention_run};
}

}  // namespace cairn::cpu
