// softmax_attention: which kernel takes a call, then the store of new keys and values.
//   decode, dims in fours            softmax_attention_decode.cuh: keys split over blocks, any activations
//   prefill, bf16, dims up to 256    softmax_attention_prefill.cuh: matrix products
//   the rest                         softmax_attention_general.cuh
#include <algorithm>
#include <bit>

#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/softmax_attention_general.cuh"
#include "backends/gpu/kernels/softmax_attention_prefill.cuh"
#include "backends/gpu/kernels/softmax_attention_store.cuh"
#include "backends/gpu/softmax_attention_split.h"
#include "backends/interface/scratch_layout.h"

namespace cairn::gpu {
namespace {

constexpr int kDecodeSequences = 64;     // of one launch: scratch does not grow beyond
constexpr int kChunkBytes = 256 * 1024;  // of a key head: what a block reads, where there is so much

const char* unsupported_reason(const SoftmaxAttentionArgs& args) {
  const char* name = "softmax_attention";
  return first_reason({require_activations(name, args.dtype), require_heads(name, args.kv_heads, args.query_heads),
                       require_range(name, "key_dim", args.key_dim, 1, 4096),
                       require_range(name, "value_dim", args.value_dim, 1, 4096),
                       require_range(name, "window", args.window, 0, 1 << 30),
                       require_range(name, "query_heads", args.query_heads, 1, 65535)});
}

bool decodes_in_slots(const SoftmaxAttentionArgs& args) {
  return args.phase == Phase::kDecode && args.key_dim % 4 == 0 && args.value_dim % 4 == 0 && args.key_dim <= 256 &&
         args.value_dim <= 256 && has_one_token_each(args.batch);
}

int bytes_per_key(const SoftmaxAttentionArgs& args) {
  return (args.key_dim + args.value_dim) * static_cast<int>(sizeof(float));
}

// Of the heads, the dims and the window alone: the same for every batch. The first is that of the longest chunks.
int chunk_keys(const SoftmaxAttentionArgs& args) { return bytes_per_key(args) > kChunkBytes / 256 ? 128 : 256; }
/// Few key heads need more chunks for as many blocks. Powers of two: a context is then never split into more chunks
/// than the power of two of keys above it, whose chunks the grid holds.
int short_chunks(const SoftmaxAttentionArgs& args) { return args.kv_heads <= 8 ? 8 : 4; }
int slot_count(const SoftmaxAttentionArgs& args) {
  const int chunks = std::max(args.window / chunk_keys(args), short_chunks(args)) + 2;
  return args.window > 0 && chunks < kMaxSlots ? chunks : kMaxSlots;
}
struct DecodeScratch {
  float *sums, *totals;
};

DecodeScratch carve(const SoftmaxAttentionArgs& args, ScratchLayout& layout) {
  if (!decodes_in_slots(args)) return {};
  const std::size_t rows =
      slot_rows(std::min(args.batch.sequence_count, kDecodeSequences), args.query_heads, slot_count(args));
  return {layout.take<float>(rows * args.value_dim), layout.take<float>(rows * 2)};
}

std::size_t scratch_bytes(const SoftmaxAttentionArgs& args) {
  ScratchLayout layout(nullptr);
  carve(args, layout);
  return layout.size_bytes();
}

void decode(const Launcher& launcher, const SoftmaxAttentionArgs& args, void* scratch) {
  ScratchLayout layout(scratch);
  const DecodeScratch memory = carve(args, layout);
  DecodeAttentionArgs split{};
  split.call = args;
  split.slot_count = slot_count(args);
  split.keys_at_once = keys_at_once(bytes_per_key(args), launcher.device());
  split.least_log2 = std::countr_zero(static_cast<unsigned>(split.keys_at_once * kDecodeGroups));
  split.most_log2 = std::countr_zero(static_cast<unsigned>(chunk_keys(args)));
  split.short_chunks = short_chunks(args);
  split.in_eights = args.key_dim % 8 == 0 && args.value_dim % 8 == 0 && is_in_eights(args.q) && is_in_eights(args.k) &&
                    is_in_eights(args.v);
  split.sums = memory.sums;
  split.totals = memory.totals;
  const int shared_heads = args.query_heads / args.kv_heads;
  if (shared_heads == 1) return decode_in_slots<1, 2>(launcher, split, kDecodeSequences);
  if (shared_heads <= 4) return decode_in_slots<4, 2>(launcher, split, kDecodeSequences);
  decode_in_slots<8, 2>(launcher, split, kDecodeSequences);
}

bool multiplies_matrices(const SoftmaxAttentionArgs& args) {
  return args.dtype == DType::kBF16 && args.key_dim % 8 == 0 && args.value_dim % 8 == 0 && args.key_dim <= 256 &&
         args.value_dim <= 256 && args.scale > 0 && is_in_eights(args.q) && is_in_eights(args.k) &&
         is_in_eights(args.v);
}

template <int kDim>
bool prefill(const Launcher& launcher, const SoftmaxAttentionArgs& args) {
  using Shape = PrefillShape<kDim>;
  if (static_cast<std::size_t>(launcher.device().properties.shared_bytes_per_block) < Shape::kSharedBytes) return false;
  const auto tiles = static_cast<unsigned>(first_query_tile(args.batch.token_count, args.batch.sequence_count));
  const std::int64_t* starts = args.starts_host;
  const bool has_cached =
      std::any_of(starts, starts + args.batch.sequence_count, [](std::int64_t start) { return start > 0; });
  launcher(has_cached ? softmax_attention_prefill_kernel<kDim, true> : softmax_attention_prefill_kernel<kDim, false>,
           dim3(tiles * static_cast<unsigned>(args.query_heads)), dim3(Shape::kThreads), Shape::kSharedBytes, args);
  return true;
}

/// False: this device or call needs the general kernel.
bool prefill_by_matrices(const Launcher& launcher, const SoftmaxAttentionArgs& args) {
  if (!multiplies_matrices(args)) return false;
  const int dim = std::max(args.key_dim, args.value_dim);
  return dim <= 64    ? prefill<64>(launcher, args)
         : dim <= 128 ? prefill<128>(launcher, args)
                      : prefill<256>(launcher, args);
}

void run(BackendQueue* queue, const SoftmaxAttentionArgs& args, void* scratch) {
  if (args.batch.token_count == 0) return;
  const Launcher launcher(queue, "softmax_attention");
  if (decodes_in_slots(args)) return decode(launcher, args, scratch);
  if (!prefill_by_matrices(launcher, args)) {
    const std::size_t shared_bytes = static_cast<std::size_t>(args.key_dim + args.value_dim) * sizeof(float);
    launcher(softmax_attention_general_kernel,
             dim3(static_cast<unsigned>(args.batch.token_count), static_cast<unsigned>(args.query_heads)),
             dim3(kKeysAtOnce), shared_bytes, args);
  }
  const int key_width = args.kv_heads * args.key_dim, value_width = args.kv_heads * args.value_dim;
  const bool in_eights = key_width % 8 == 0 && value_width % 8 == 0 && is_in_eights(args.k) && is_in_eights(args.v);
  launch_rows(launcher, store_keys_values_kernel, args.batch.token_count, in_eights ? key_width / 8 : key_width,
              StoreArgs{args, in_eights});
}

}  // namespace

void add_softmax_attention(OpTable& ops) { ops.softmax_attention = {unsupported_reason, scratch_bytes, run}; }

}  // namespace cairn::gpu
