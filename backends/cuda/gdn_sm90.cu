// gdn and delta_net prefill on sm_90: two kernels, gdn_intra (no state) and gdn_scan (the recurrence over chunks).
// When a batch has few scans (batch 1: 64 blocks of 132 multiprocessors) the two overlap: gdn_intra gets the other
// multiprocessors, starts first, and publishes a flag for each chunk and key head; gdn_scan starts when all blocks of
// gdn_intra run (programmatic launch), so waiting for a flag cannot stall. Otherwise they run one after the other, and
// gdn_heads, which forms its own scores, takes the place of gdn_scan where it needs less time.
// Decode of one token a sequence: gdn_decode.
// Takes bf16, K = V = 128, HV / HK <= 4, 16-byte aligned rows, no residual, a scale above 0; the rest goes to the
// shared operator.
#include <algorithm>
#include <cmath>

#include "backends/cuda/cuda_overrides.h"
#include "backends/cuda/gdn_decode_sm90.cuh"
#include "backends/cuda/gdn_heads_sm90.cuh"
#include "backends/cuda/gdn_intra_sm90.cuh"
#include "backends/cuda/gdn_scan_sm90.cuh"
#include "backends/cuda/sm90_devices.h"
#include "backends/cuda/tensor_map.h"
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"
#include "backends/interface/scratch_layout.h"

namespace cairn::gpu {
namespace {

using namespace sm90;

Op<DeltaRuleArgs> shared_gdn, shared_delta_net;
// States of a decode: below the first size the launch is what costs, up to the second they stay in the L2 of 50 MB.
constexpr std::size_t kAheadBytes = std::size_t{4} << 20, kOnceBytes = std::size_t{40} << 20;

/// The shapes that these kernels take.
bool takes_shape(const DeltaRuleArgs& a) {
  return a.dtype == DType::kBF16 && a.key_dim == kDim && a.value_dim == kDim && a.key_heads > 0 &&
         a.value_heads % a.key_heads == 0 && a.value_heads / a.key_heads <= 4;
}
/// The scale is in the exponents of scores.
bool is_prefill(const DeltaRuleArgs& a) { return a.phase == Phase::kPrefill && takes_shape(a) && a.scale > 0; }
bool takes_pointers(const DeltaRuleArgs& a) {
  return !a.residual.data && is_in_eights(a.q) && is_in_eights(a.k) && is_in_eights(a.v) && is_in_eights(a.out);
}

GdnWorkspace carve(const DeltaRuleArgs& a, ScratchLayout& layout) {
  const std::size_t chunks = static_cast<std::size_t>(a.batch.token_count) / kChunk + a.batch.sequence_count;
  GdnWorkspace work;
  work.inverses = layout.take<LowerTile>(chunks * a.value_heads);
  work.scores = layout.take<LowerTile>(chunks * a.value_heads);
  work.factors = layout.take<float>(chunks * a.value_heads * sizeof(ChunkFactors) / sizeof(float));
  const std::size_t flags = chunks * a.key_heads;
  work.ready = layout.take<int>(std::max<std::size_t>(flags, 2 * kMaxHeadsBlocks + 1));
  return work;
}

/// Of the operator that takes the call: where other devices are as well, of either. Pointers are known by their
/// alignment when a call is planned.
std::size_t scratch_bytes(const DeltaRuleArgs& a, const Op<DeltaRuleArgs>& shared) {
  if (!is_prefill(a) || !takes_pointers(a)) return shared.scratch_bytes(a);
  ScratchLayout layout(nullptr);
  carve(a, layout);
  return has_only_sm90() ? layout.size_bytes() : std::max(layout.size_bytes(), shared.scratch_bytes(a));
}

Error launch_scan(const Launcher& launcher, const GdnPrefillArgs& args, int blocks) {
  const int device_bytes = launcher.device().properties.shared_bytes_per_block;
  if (const Error error = allow_shared_memory(gdn_scan_kernel, device_bytes); error != kSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kScanThreads);
  config.dynamicSmemBytes = sizeof(ScanShared);
  config.stream = launcher.stream();
  config.attrs = &attribute;
  config.numAttrs = args.overlapped ? 1 : 0;
  return cudaLaunchKernelEx(&config, gdn_scan_kernel, args);
}

/// Plans the windows of gdn_heads; chunks > 0.
void plan_windows(GdnPrefillArgs& args, int processors) {
  const int chunks = args.chunk_begin[args.sequence_count], side = args.value_heads / args.key_heads;
  const int most = std::max(1, std::min(processors, kMaxHeadsBlocks) / side), total = chunks * args.key_heads;
  int longest = 0, sequences = 0;
  for (int b = 0; b < args.sequence_count; ++b) {
    const int length = args.chunk_begin[b + 1] - args.chunk_begin[b];
    longest = std::max(longest, length), sequences += length > 0;
  }
  int window = std::max(longest, (total + most - 1) / most);
  if (chunks == sequences * longest) {  // all alike: whole heads where that costs little, no state is handed over then
    const std::int64_t whole = (static_cast<std::int64_t>(window) + longest - 1) / longest * longest;
    if (whole * 20 <= static_cast<std::int64_t>(window) * 21) window = static_cast<int>(whole);
  }
  args.heads_window = window;
  args.heads_blocks = (total + window - 1) / window * side;
}

/// gdn_heads or gdn_scan: both give the same bits. Microseconds a chunk as measured; gdn_scan has its chunks in rounds
/// of blocks, and scores that gdn_intra writes.
bool are_whole_heads_faster(const GdnPrefillArgs& args, int processors) {
  int sequences = 0;
  for (int b = 0; b < args.sequence_count; ++b) sequences += args.chunk_begin[b + 1] > args.chunk_begin[b];
  const int chunks = args.chunk_begin[args.sequence_count], scans = 2 * sequences * args.value_heads;
  const double rounds = (scans + processors - 1) / processors, mean = static_cast<double>(chunks) / sequences;
  return 2.2 * args.heads_window < 1.22 * rounds * mean + 0.0035 * args.value_heads * chunks;
}

/// Warpgroups of a block of gdn_intra beside the scan: few leave it more of the memory, but all together must be ahead
/// of it. A turn takes a lone warpgroup 2 us, a chunk takes the scan 1.
int groups_beside_scan(const GdnPrefillArgs& args, int blocks) {
  const int turns = args.key_heads * ((args.value_heads / args.key_heads + 1) / 2);  // of a chunk
  const int groups = 1 + 2 * turns / blocks;
  return std::min(groups, kIntraGroups<true>);
}

/// What does not need the state, for `blocks` multiprocessors.
template <bool kScores>
void launch_intra(const Launcher& launcher, const GdnPrefillArgs& args, int blocks) {
  const int groups = args.overlapped ? groups_beside_scan(args, blocks) : kIntraGroups<kScores>;
  const int items = (args.chunk_begin[args.sequence_count] * args.key_heads + groups - 1) / groups;
  launcher(gdn_intra_kernel<kScores>, dim3(blocks < items ? blocks : items), dim3(128 * groups),
           kIntraSharedBytes<kScores>, args);
}

/// Sequences [first, first + count) of the batch.
void run_sequences(const Launcher& launcher, const DeltaRuleArgs& a, GdnPrefillArgs& args, int first, int count) {
  args.sequence_count = count;
  args.states = a.states + first;
  args.checkpoints = a.checkpoint_chunks ? a.checkpoints + first : nullptr;
  args.chunk_begin[0] = 0;
  args.token_begin[0] = a.batch.offsets_host[first];
  for (int b = 0; b < count; ++b) {
    const int begin = a.batch.offsets_host[first + b], end = a.batch.offsets_host[first + b + 1];
    args.token_begin[b + 1] = end;
    args.chunk_begin[b + 1] = args.chunk_begin[b] + (end - begin + kChunk - 1) / kChunk;
  }
  const int chunks = args.chunk_begin[count];
  if (chunks == 0) return;
  const int processors = launcher.device().properties.multiprocessors;
  const int scans = count * a.value_heads * 2;
  args.overlapped = scans <= processors - 32;
  plan_windows(args, processors);
  if (!args.overlapped && are_whole_heads_faster(args, processors)) {
    launch_intra<false>(launcher, args, processors);
    if (launcher.queue().error != kSuccess) return;
    launcher.early(gdn_heads_kernel, dim3(args.heads_blocks), dim3(kHeadsThreads), sizeof(HeadsShared), args);
    return;
  }
  if (args.overlapped) launcher.zero(args.work.ready, sizeof(int) * static_cast<std::size_t>(chunks) * a.key_heads);
  launch_intra<true>(launcher, args, args.overlapped ? processors - scans : processors);
  if (launcher.queue().error != kSuccess) return;
  note_error(launcher.queue(), launch_scan(launcher, args, scans), "gdn");
}

void run_prefill(BackendQueue* queue, const DeltaRuleArgs& a, void* scratch) {
  const Launcher launcher(queue, "gdn");
  if (a.batch.token_count == 0) return;
  GdnPrefillArgs args = {};
  if (!encode_rows(&args.q, a.q, a.batch.token_count, a.key_heads * kDim) ||
      !encode_rows(&args.k, a.k, a.batch.token_count, a.key_heads * kDim) ||
      !encode_rows(&args.v, a.v, a.batch.token_count, a.value_heads * kDim) ||
      !encode_rows(&args.out_map, {a.out.data, a.out.stride}, a.batch.token_count, a.value_heads * kDim, 16) ||
      !encode_rows(&args.out_tiles, {a.out.data, a.out.stride}, a.batch.token_count, a.value_heads * kDim)) {
    note_error(launcher.queue(), cudaErrorInvalidValue, "gdn: describing the rows");
    return;
  }
  ScratchLayout layout(scratch);
  args.work = carve(a, layout);
  args.log_decay = a.log_decay;
  args.beta = a.beta;
  args.out = static_cast<unsigned short*>(a.out.data);
  args.out_stride = a.out.stride;
  args.scale = a.scale, args.log2_scale = std::log2(a.scale);
  args.key_heads = a.key_heads;
  args.value_heads = a.value_heads;
  args.checkpoint_chunks = a.checkpoint_chunks;
  for (int first = 0; first < a.batch.sequence_count; first += kMaxSequences) {
    const int left = a.batch.sequence_count - first;
    run_sequences(launcher, a, args, first, left < kMaxSequences ? left : kMaxSequences);
  }
}

void run_decode(BackendQueue* queue, const DeltaRuleArgs& a) {
  GdnDecodeArgs args = {};
  args.q = static_cast<const unsigned short*>(a.q.data), args.q_stride = a.q.stride;
  args.k = static_cast<const unsigned short*>(a.k.data), args.k_stride = a.k.stride;
  args.v = static_cast<const unsigned short*>(a.v.data), args.v_stride = a.v.stride;
  args.out = static_cast<unsigned short*>(a.out.data), args.out_stride = a.out.stride;
  args.log_decay = a.log_decay, args.beta = a.beta;
  args.states = a.states;
  args.scale = a.scale;
  args.value_heads = a.value_heads, args.heads_per_key = a.value_heads / a.key_heads;
  const std::size_t bytes = sizeof(float) * kDim * kDim * a.value_heads * a.batch.sequence_count;
  const auto kernel = bytes <= kAheadBytes  ? gdn_decode_kernel<false, true>
                      : bytes <= kOnceBytes ? gdn_decode_kernel<true, false>
                                            : gdn_decode_kernel<false, false>;
  const dim3 grid(kDim / kDecodeColumns, a.value_heads, a.batch.sequence_count);
  Launcher(queue, "gdn").early(kernel, grid, dim3(kDecodeThreads), 0, args);
}

template <Op<DeltaRuleArgs>* kShared>
Op<DeltaRuleArgs> chunked() {
  return {kShared->unsupported_reason, [](const DeltaRuleArgs& a) { return scratch_bytes(a, *kShared); },
          [](BackendQueue* queue, const DeltaRuleArgs& a, void* scratch) {
            const bool is_sm90 = queue_of(queue).device->properties.major == 9;
            if (is_sm90 && is_prefill(a) && takes_pointers(a)) {
              run_prefill(queue, a, scratch);
            } else if (is_sm90 && takes_shape(a) && has_one_token_each(a.batch) && takes_pointers(a)) {
              run_decode(queue, a);
            } else {
              kShared->run(queue, a, scratch);
            }
          }};
}

}  // namespace

void override_gdn_for_sm90(OpTable& ops) {
  shared_gdn = ops.gdn;
  shared_delta_net = ops.delta_net;
  ops.gdn = chunked<&shared_gdn>();
  ops.delta_net = chunked<&shared_delta_net>();
}

}  // namespace cairn::gpu
