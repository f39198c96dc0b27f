// sse: which partitions a token goes to is found on the device (sse_route). Prefill in bf16 with K up to 128 and up to
// 64 partitions: by segments, lists of each window's tokens (sse_lists), their chunks (delta_chunk_plan), the sum of a
// token's outputs; both paths of SseArgs are this one. Decode of the usual shapes: sse_decode. The rest: sse_walk,
// token by token. The choice looks at the call's types and dims alone, so a sequence has the same bits in any batch.
#include "backends/gpu/delta_chunk_gpu.h"
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/sse_decode.cuh"
#include "backends/gpu/kernels/sse_lists.cuh"
#include "backends/gpu/kernels/sse_walk.cuh"

namespace cairn::gpu {
namespace {

constexpr std::int32_t kMaxPartitions = 4096;

bool takes_lists(const SseArgs& a) {
  return takes_chunks(a.dtype, a.phase, a.key_dim) && a.partition_count <= kMaxListedPartitions;
}

/// Quads that a window's routed lists may fill. The most blocks: every list has one token, then as many as there are
/// tokens for have 33, which take 4 blocks, and one has 17.
std::int32_t routed_quads(const SseArgs& a) {
  const std::int32_t members = kChunkTokens * a.top_k,
                     lists = a.partition_count < members ? a.partition_count : members;
  const std::int32_t left = members - lists, longest = left / 32 < lists ? left / 32 : lists;
  const std::int32_t one_more = longest < lists && left - 32 * longest >= kBlockTokens ? 1 : 0;
  return (lists + 3 * longest + one_more + kChunkBlocks - 1) / kChunkBlocks;
}
std::int32_t blocks_per_window(const SseArgs& a) {
  return (routed_quads(a) + (a.shared_q.data ? 1 : 0)) * kChunkBlocks;
}

struct SseScratch {
  std::int32_t* chosen;  ///< [T, k]
  float* weight;         ///< [T, k]
  ChunkMember* members;
  std::int32_t *first, *block, *row;
  ChunkBlock* blocks;
  float* list_out;
  ChunkTiles tiles;
  std::size_t size_bytes;
};

SseScratch carve(const SseArgs& a, void* scratch) {
  const std::size_t count = static_cast<std::size_t>(a.batch.token_count) * a.top_k;
  ScratchLayout layout(scratch);
  SseScratch pieces{};
  pieces.chosen = layout.take<std::int32_t>(count);
  pieces.weight = layout.take<float>(count);
  if (takes_lists(a)) {
    const std::size_t windows = segment_windows(a.batch.token_count, a.batch.sequence_count),
                      lists = a.partition_count + 1;
    pieces.members = layout.take<ChunkMember>(windows * kChunkTokens * a.top_k);
    pieces.first = layout.take<std::int32_t>(windows * lists);
    pieces.block = layout.take<std::int32_t>(windows * lists);
    pieces.blocks = layout.take<ChunkBlock>(windows * blocks_per_window(a));
    pieces.row = layout.take<std::int32_t>(windows * kChunkTokens * a.top_k);
    const std::size_t rows = windows * blocks_per_window(a) * kBlockTokens;
    pieces.list_out = layout.take<float>(rows * a.head_count * a.value_dim);
    pieces.tiles = carve_chunk_tiles(
        {a.batch.token_count, a.batch.sequence_count, a.head_count, a.key_dim,
         a.partition_count + (a.shared_q.data ? 1 : 0), blocks_per_window(a), a.transition != SseTransition::kGla},
        layout);
  }
  pieces.size_bytes = layout.size_bytes();
  return pieces;
}

void launch_route(const Launcher& launcher, const SseArgs& a, const SseScratch& scratch) {
  const SseRouteArgs args{a.route_logits, a.batch.token_count, a.partition_count,
                          a.top_k,        scratch.chosen,      scratch.weight};
  launch_elements(launcher, sse_route_kernel, a.batch.token_count, args);
}

SseListArgs list_args(const SseArgs& a, const SseScratch& scratch) {
  SseListArgs args{};
  DeltaChunkArgs& chunks = args.chunks;
  const bool is_delta = a.transition != SseTransition::kGla;
  chunks.offsets = a.batch.offsets;
  chunks.sequence_count = a.batch.sequence_count;
  chunks.key_heads = chunks.value_heads = a.head_count;
  chunks.key_dim = a.key_dim, chunks.value_dim = a.value_dim;
  chunks.scale = 1.0f;
  chunks.decay = a.transition == SseTransition::kGdn ? ChunkDecay::kToken : ChunkDecay::kRow;
  chunks.routed = {a.q, a.k, a.log_decay, is_delta ? a.beta : nullptr, a.states};
  args.has_shared = a.shared_q.data != nullptr;
  if (args.has_shared) {
    chunks.shared = {a.shared_q, a.shared_k, a.shared_log_decay ? a.shared_log_decay : a.log_decay,
                     !is_delta       ? nullptr
                     : a.shared_beta ? a.shared_beta
                                     : a.beta,
                     a.shared_states};
  }
  chunks.routed_lists = a.partition_count;
  chunks.list_count = a.partition_count + (args.has_shared ? 1 : 0);
  chunks.v = a.v, chunks.out = a.out;
  chunks.list_out = scratch.list_out;
  chunks.lists = {scratch.members, scratch.first,          scratch.block,
                  scratch.blocks,  kChunkTokens * a.top_k, routed_quads(a)};
  chunks.tiles = scratch.tiles;
  chunks.blocks_per_window = blocks_per_window(a);
  find_alignments(chunks);
  args.chosen = scratch.chosen, args.weight = scratch.weight;
  args.members = scratch.members, args.first = scratch.first, args.block = scratch.block, args.row = scratch.row;
  args.blocks = scratch.blocks;
  args.top_k = a.top_k;
  args.gate_write = a.gate_write, args.gate_read = a.gate_read;
  args.weighs_erase = a.transition == SseTransition::kGdn;
  return args;
}

void run_lists(const Launcher& launcher, const SseArgs& a, const SseScratch& scratch) {
  launch_route(launcher, a, scratch);
  SseListArgs args = list_args(a, scratch);
  const unsigned columns = static_cast<unsigned>(a.head_count) * a.value_dim;
  for_each_segment(args.chunks, a.batch, [&](const DeltaChunkArgs& segment, std::int32_t sequences) {
    const auto windows = static_cast<unsigned>(segment.window_count);
    launcher(sse_list_kernel, dim3(windows), dim3(kListThreads), sizeof(std::int32_t) * kChunkTokens * a.top_k, args);
    run_chunk_segment(launcher, segment, a.transition == SseTransition::kGla ? ChunkEdit::kNone : ChunkEdit::kTied,
                      sequences);
    launcher(sse_sum_kernel,
             dim3((columns + 4 * kSumThreads - 1) / (4 * kSumThreads), windows, kChunkTokens / kSumTokens),
             dim3(kSumThreads), 0, args);
  });
}

bool is_plain_decode(const SseArgs& a) {
  if (a.phase != Phase::kDecode || a.value_dim % kRecurrenceColumns != 0 || a.partition_count > kMaxListedPartitions)
    return false;
  return (a.key_dim == 64 || a.key_dim == 128 || a.key_dim == 256) && has_one_token_each(a.batch);
}

template <class Element>
void launch_decode(const Launcher& launcher, const SseArgs& a) {
  const dim3 grid(a.value_dim / kRecurrenceColumns, a.head_count, a.batch.sequence_count);
  const auto kernel = a.key_dim == 64    ? sse_decode_kernel<Element, 4>
                      : a.key_dim == 128 ? sse_decode_kernel<Element, 8>
                                         : sse_decode_kernel<Element, 16>;
  launcher(kernel, grid, dim3(kDecodeThreads), 0, a);
}

void launch_walk(const Launcher& launcher, const SseArgs& a, const SseScratch& scratch) {
  launch_route(launcher, a, scratch);
  const dim3 grid(static_cast<unsigned>((a.value_dim + kWalkColumns - 1) / kWalkColumns),
                  static_cast<unsigned>(a.head_count), static_cast<unsigned>(a.batch.sequence_count));
  launcher(sse_walk_kernel, grid, dim3(kWalkColumns * kWalkParts), 0, SseWalkArgs{a, scratch.chosen, scratch.weight});
}

const char* unsupported_reason(const SseArgs& args) {
  return first_reason({require_activations("sse", args.dtype),
                       require_range("sse", "partition_count", args.partition_count, 1, kMaxPartitions),
                       require_range("sse", "top_k", args.top_k, 1, args.partition_count),
                       require_range("sse", "head_count", args.head_count, 1, 65535)});
}

std::size_t scratch_bytes(const SseArgs& args) { return carve(args, nullptr).size_bytes; }

void run(BackendQueue* queue, const SseArgs& a, void* scratch) {
  const Launcher launcher(queue, "sse");
  const ChunkEdit edit = a.transition == SseTransition::kGla ? ChunkEdit::kNone : ChunkEdit::kTied;
  if (is_plain_decode(a)) {
    with_element(a.dtype, [&](auto element) { launch_decode<decltype(element)>(launcher, a); });
  } else if (takes_lists(a) && has_room_for_chunks(launcher.device(), edit, a.key_dim)) {
    run_lists(launcher, a, carve(a, scratch));
  } else {
    launch_walk(launcher, a, carve(a, scratch));
  }
}

}  // namespace

void add_sse(OpTable& ops) { ops.sse = {unsupported_reason, scratch_bytes, run}; }

}  // namespace cairn::gpu
