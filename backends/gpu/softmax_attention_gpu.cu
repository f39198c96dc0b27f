// softmax_attention: which kernel takes a call, then the store of new keys and values.
//   decode, dims in fours            softmax_attention_decode.cuh: keys split over blocks, any activations
//   prefill, bf16, dims up to 256    softmax_attention_prefill.cuh: matrix products
//   the rest                         softmax_attention_general.cuh
#include <bit>

#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/softmax_attention_decode.cuh"
#include "backends/gpu/kernels/softmax_attention_general.cuh"
#include "backends/gpu/kernels/softmax_attention_prefill.cuh"
#include "backends/gpu/kernels/softmax_attention_store.cuh"
#include "backends/interface/scratch_layout.h"

namespace cairn::gpu {
namespace {

constexpr int kDecodeSequences = 64;           // of one launch: scratch does not grow beyond
constexpr int kRoomySharedBytes = 160 * 1024;  // above it two blocks of 96 KB fit

const char* unsupported_reason(const SoftmaxAttentionArgs& args) {
  const char* name = "softmax_attention";
  return first_reason({require_activations(name, args.dtype), require_heads(name, args.kv_heads, args.query_heads),
                       require_range(name, "key_dim", args.key_dim, 1, 4096),
                       require_range(name, "value_dim", args.value_dim, 1, 4096),
                       require_range(name, "window", args.window, 0, 1 << 30),
                       require_range(name, "query_heads", args.query_heads, 1, 65535)});
}

bool decodes_in_slots(const SoftmaxAttentionArgs& args) {
  return args.phase == Phase::kDecode && args.key_dim % 4 == 0 && args.value_dim % 4 == 0 &&
         args.key_dim + args.value_dim <= 1024 && has_one_token_each(args.batch);
}

/// Of the operator and its window alone: the same for every batch.
int slot_count(const SoftmaxAttentionArgs& args) {
  const int chunks = args.window / kChunkKeys + 2;
  return args.window > 0 && chunks < kMaxSlots ? chunks : kMaxSlots;
}

struct DecodeScratch {
  float *sums, *totals;
};

DecodeScratch carve(const SoftmaxAttentionArgs& args, ScratchLayout& layout) {
  if (!decodes_in_slots(args)) return {};
  const int sequences = args.batch.sequence_count < kDecodeSequences ? args.batch.sequence_count : kDecodeSequences;
  const std::size_t rows = static_cast<std::size_t>(sequences) * args.query_heads * slot_count(args);
  return {layout.take<float>(rows * args.value_dim), layout.take<float>(rows * 2)};
}

std::size_t scratch_bytes(const SoftmaxAttentionArgs& args) {
  ScratchLayout layout(nullptr);
  carve(args, layout);
  return layout.size_bytes();
}

/// Keys that a block reads in one step: a power of two that fills a stage.
int keys_at_once(const SoftmaxAttentionArgs& args, const Device& device) {
  const int stage_bytes = device.properties.shared_bytes_per_block >= kRoomySharedBytes ? 32 * 1024 : 14 * 1024;
  const int keys = stage_bytes / ((args.key_dim + args.value_dim) * static_cast<int>(sizeof(float)));
  return keys >= kMaxKeysAtOnce ? kMaxKeysAtOnce
         : keys < 8             ? 8
                                : static_cast<int>(std::bit_floor(static_cast<unsigned>(keys)));
}

template <int kHeads>
void decode(const Launcher& launcher, const SoftmaxAttentionArgs& args, void* scratch) {
  ScratchLayout layout(scratch);
  const DecodeScratch memory = carve(args, layout);
  DecodeAttentionArgs kernel_args{args, 0,           slot_count(args), keys_at_once(args, launcher.device()),
                                  0,    memory.sums, memory.totals};
  const int shared_heads = args.query_heads / args.kv_heads;
  kernel_args.head_groups = (shared_heads + kHeads - 1) / kHeads;
  // A recorded step is replayed until its furthest position passes a power of two.
  std::int64_t furthest = 0;
  for (std::int32_t b = 0; b < args.batch.sequence_count; ++b) furthest = std::max(furthest, args.starts_host[b] + 1);
  const auto reach = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(furthest)));
  const std::int64_t chunks = (reach + kChunkKeys - 1) / kChunkKeys;
  const auto slots = static_cast<unsigned>(args.window == 0 && chunks < kMaxSlots ? chunks : kernel_args.slot_count);
  const auto shared_bytes =
      static_cast<std::size_t>(decode_shared_floats<kHeads>(kernel_args.keys_at_once, args.key_dim, args.value_dim)) *
      sizeof(float);
  for (std::int32_t first = 0; first < args.batch.sequence_count; first += kDecodeSequences) {
    const auto sequences = static_cast<unsigned>(std::min(kDecodeSequences, args.batch.sequence_count - first));
    kernel_args.first_sequence = first;
    launcher(softmax_attention_decode_kernel<kHeads>,
             dim3(slots, static_cast<unsigned>(args.kv_heads * kernel_args.head_groups), sequences),
             dim3(kDecodeThreads), shared_bytes, kernel_args);
    launcher(combine_slots_kernel, dim3(static_cast<unsigned>(args.query_heads), sequences), dim3(kDecodeThreads),
             kDecodeThreads * 4 * sizeof(float), kernel_args);
  }
}

bool multiplies_matrices(const SoftmaxAttentionArgs& args) {
  return args.dtype == DType::kBF16 && args.key_dim % 8 == 0 && args.value_dim % 8 == 0 && args.key_dim <= 256 &&
         args.value_dim <= 256 && args.scale > 0 && is_in_eights(args.q) && is_in_eights(args.k) &&
         is_in_eights(args.v);
}

template <int kDim>
bool prefill(const Launcher& launcher, const SoftmaxAttentionArgs& args) {
  using Shape = PrefillShape<kDim>;
  if (static_cast<std::size_t>(launcher.device().properties.shared_bytes_per_block) < Shape::kSharedBytes + 256)
    return false;
  const auto tiles = static_cast<unsigned>(first_query_tile(args.batch.token_count, args.batch.sequence_count));
  launcher(softmax_attention_prefill_kernel<kDim>, dim3(tiles * static_cast<unsigned>(args.query_heads)),
           dim3(Shape::kThreads), Shape::kSharedBytes, args);
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
  if (decodes_in_slots(args)) {
    const int shared_heads = args.query_heads / args.kv_heads;
    return shared_heads == 1   ? decode<1>(launcher, args, scratch)
           : shared_heads <= 4 ? decode<4>(launcher, args, scratch)
                               : decode<8>(launcher, args, scratch);
  }
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
