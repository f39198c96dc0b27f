// sparse_gdn on sm_90: stages 1, 3 and 4 of SparseGDN on tensor cores, the shared selector between them.
//   intra    every chunk at once: T' = diag(2^e) M^-1 diag(beta) in 7 blocks, decays, scores
//   select   the small kernels of the shared source
//   events   the walks over the kept chunks, U' in the rows of the outputs, the states that outputs read
//   outputs  starts once every walk has started, and follows them
// Scratch: states, bounded by the most that any choice of tiers can keep. T' lies in the rows of the outputs.
// Takes bf16, K = V = 128, HV / HK <= 4, 16-byte aligned rows, the 7-block inverse; the rest, and calls that trace, go
// to the shared operator.
#include "backends/cuda/cuda_overrides.h"
#include "backends/cuda/sm90_devices.h"
#include "backends/cuda/sparse_gdn_events_sm90.cuh"
#include "backends/cuda/sparse_gdn_intra_sm90.cuh"
#include "backends/cuda/sparse_gdn_outputs_sm90.cuh"
#include "backends/cuda/tensor_map.h"
#include "backends/gpu/kernels/any_element.cuh"
#include "backends/gpu/sparse_gdn_select_gpu.h"

namespace cairn::gpu {
namespace {

using namespace sm90::sparse;

Op<SparseGdnArgs> shared_sparse_gdn;

/// What these kernels take: known when the scratch is planned.
bool takes(const SparseGdnArgs& a) {
  const DeltaRuleArgs& d = a.delta;
  return d.dtype == DType::kBF16 && d.key_dim == kDim && d.value_dim == kDim && d.key_heads > 0 &&
         d.value_heads % d.key_heads == 0 && d.value_heads / d.key_heads <= kMaxHeadsPerKey && !a.full_inverse &&
         !a.trace && is_in_eights(d.q) && is_in_eights(d.k) && is_in_eights(d.v) && is_in_eights(d.out) &&
         d.out.stride <= kMaxOutStride;
}

/// Calls visit(high, medium) for choices of tiers of which one keeps the most states.
template <class Visit>
void for_each_choice(const SparseGdnArgs& a, const Visit& visit) {
  const int n = a.delta.key_heads;
  if (a.policy == SparsePolicy::kAll || a.policy == SparsePolicy::kGiven) {
    visit(n, 0);
  } else if (a.policy == SparsePolicy::kFixed) {
    const int high = static_cast<int>(round_half_even(3LL * n, 16)),
              medium = static_cast<int>(round_half_even(4LL * n, 16));
    visit(high < 1 ? 1 : high, medium < n - 1 ? medium : n - 1);
  } else {
    for (int high = 1; high <= most_high(n); ++high) {
      const int most = medium_centre(n, high) + 1;
      visit(high, most < 1 ? 0 : most < n - high ? most : n - high);
    }
  }
}

/// Places for states that sequences of so many chunks together can need: an entry state a pair of a high row, one an
/// event of others, and the initial ones. Of one sequence what the choices of tiers can take; of several, which may
/// split the chunks in any way, the largest share of a choice, in hundredths of chunks.
std::int64_t snapshot_places(const SparseGdnArgs& a, std::int64_t chunks, std::int64_t sequences) {
  const int n = a.delta.key_heads, count = static_cast<int>(chunks);
  const bool may_keep_all = a.policy == SparsePolicy::kAll || a.policy == SparsePolicy::kGiven;
  std::int64_t most = 0, hundredths = 0;
  for_each_choice(a, [&](int high, int medium) {
    const int rows[3] = {n - high - medium, medium, high};
    std::int64_t places = 0;
    for (int tier = 0; tier < 3; ++tier)
      places += std::int64_t{rows[tier]} * snapshot_room(may_keep_all ? count : keep_count(count, tier), count);
    const std::int64_t share = 50LL * rows[2] + 30LL * rows[1] + 8LL * rows[0];
    most = places > most ? places : most;
    hundredths = share > hundredths ? share : hundredths;
  });
  return sequences == 1 ? most : hundredths * chunks / 100 + sequences * (3LL * n + 2);
}

SparseWork carve(const SparseGdnArgs& a, SparseSelection* selection, ScratchLayout& layout) {
  const DeltaRuleArgs& d = a.delta;
  const auto sequences =
      static_cast<std::size_t>(d.batch.sequence_count < kSelectSequences ? d.batch.sequence_count : kSelectSequences);
  const std::size_t chunks = (static_cast<std::size_t>(d.batch.token_count) + sequences * (kChunk - 1)) / kChunk,
                    cells = chunks * static_cast<std::size_t>(d.value_heads);
  const auto places = static_cast<std::size_t>(
      snapshot_places(a, static_cast<std::int64_t>(chunks), static_cast<std::int64_t>(sequences)));
  *selection = carve_sparse_selection(d.key_heads, d.value_heads, static_cast<int>(sequences), chunks, layout);
  SparseWork work;
  const std::size_t heads = sequences * static_cast<std::size_t>(d.value_heads);
  work.short_inverse = layout.take<InverseBlocks>(heads);
  work.decay = layout.take<float>(cells * kChunk);
  work.snapshots =
      layout.take<unsigned char>(places * static_cast<std::size_t>(d.value_heads / d.key_heads) * kSnapshotBytes);
  work.progress = layout.take<int>(heads * 4 + 1);
  work.next_item = work.progress + heads * 4;
  return work;
}

std::size_t own_scratch_bytes(const SparseGdnArgs& a) {
  ScratchLayout layout(nullptr);
  SparseSelection selection;
  carve(a, &selection, layout);
  return layout.size_bytes();
}

std::size_t scratch_bytes(const SparseGdnArgs& a) {
  if (!takes(a)) return shared_sparse_gdn.scratch_bytes(a);
  const std::size_t own = own_scratch_bytes(a);
  if (has_only_sm90()) return own;
  const std::size_t shared = shared_sparse_gdn.scratch_bytes(a);
  return own > shared ? own : shared;
}

/// Fills in sequences [first, first + count) of the batch.
void place_sequences(const SparseGdnArgs& a, SparsePrefillArgs& args, int first, int count) {
  const DeltaRuleArgs& d = a.delta;
  SparseSelectArgs& select = args.select;
  select.sequence_count = count;
  args.states = d.states + first;
  select.token_begin[0] = d.batch.offsets_host[first];
  for (int b = 0; b < count; ++b) {
    select.token_begin[b + 1] = d.batch.offsets_host[first + b + 1];
    const int chunks = (select.token_begin[b + 1] - select.token_begin[b] + kChunk - 1) / kChunk;
    select.chunk_begin[b + 1] = select.chunk_begin[b] + chunks;
    args.item_begin[b + 1] = args.item_begin[b] + (chunks + 1) / 2 * d.key_heads;
    args.snapshot_begin[b + 1] = args.snapshot_begin[b] + static_cast<int>(snapshot_places(a, chunks, 1));
  }
}

// ---------------------------------------------------------------- the stages

void launch_intra(const Launcher& launcher, const SparsePrefillArgs& args) {
  const int items = args.select.chunk_begin[args.select.sequence_count] * args.key_heads;
  const int blocks = launcher.device().properties.multiprocessors * kIntraBlocksPerProcessor;
  launcher(sparse_intra_kernel, dim3(static_cast<unsigned>(items < blocks ? items : blocks)), dim3(128),
           sizeof(IntraShared), args);
}

void clear_progress(const Launcher& launcher, const SparsePrefillArgs& args) {
  launcher.zero(args.work.progress,
                sizeof(int) * (static_cast<std::size_t>(args.work.next_item - args.work.progress) + 1));
}

template <Walk kWalk = kEventRows>
void launch_events(const Launcher& launcher, const SparsePrefillArgs& args) {
  const int blocks = args.select.sequence_count * args.value_heads * 2;
  launcher(sparse_events_kernel<kWalk>, dim3(static_cast<unsigned>(blocks)), dim3(kEventThreads), sizeof(EventShared),
           args);
}

/// Blocks of outputs: enough to keep up with the walks. Beyond three quarters of the multiprocessors more of them would
/// only take memory's time from the walks.
int count_output_blocks(const SparsePrefillArgs& args, int processors) {
  const int items = args.item_begin[args.select.sequence_count];
  int pairs = 1;
  for (int b = 0; b < args.select.sequence_count; ++b)
    pairs = args.select.pair_count(b) > pairs ? args.select.pair_count(b) : pairs;
  const std::int64_t enough = std::int64_t{kOutputBlocksPerHead} * args.heads_per_key * items / pairs;
  const int most = items < processors ? items : processors, least = processors * 3 / 4;
  if (args.select.policy == SparsePolicy::kGiven || enough > most || least > most) return most;
  return enough > least ? static_cast<int>(enough) : least;
}

void launch_outputs(const Launcher& launcher, const SparsePrefillArgs& args) {
  const int blocks = count_output_blocks(args, launcher.device().properties.multiprocessors);
  launcher.early(sparse_outputs_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kOutputThreads), sizeof(OutputShared),
                 args);
}

/// What all sequences of a call share; false: the rows cannot be described.
bool describe(const SparseGdnArgs& a, void* scratch, SparsePrefillArgs* args) {
  const DeltaRuleArgs& d = a.delta;
  const std::int64_t tokens = d.batch.token_count;
  if (!encode_rows(&args->q, d.q, tokens, d.key_heads * kDim) ||
      !encode_rows(&args->k, d.k, tokens, d.key_heads * kDim) ||
      !encode_rows(&args->v, d.v, tokens, d.value_heads * kDim) ||
      !encode_rows(&args->v_tail, d.v, tokens, d.value_heads * kDim, 32) ||
      !encode_rows(&args->out, d.out, tokens, d.value_heads * kDim) ||
      !encode_plain_rows(&args->inverse, d.out, tokens, d.value_heads * kDim, kInverseLines)) {
    return false;
  }
  ScratchLayout layout(scratch);
  args->work = carve(a, &args->select.s, layout);
  args->select.policy = a.policy, args->select.seed = a.seed;
  args->select.dtype = d.dtype, args->select.gate = a.gate, args->select.norm_weight = a.norm_weight;
  args->select.given_mask = a.given_mask, args->select.given_tier = a.given_tier;
  args->select.group_count = d.key_heads, args->select.head_count = d.value_heads, args->select.value_dim = d.value_dim;
  args->log_decay = d.log_decay, args->beta = d.beta;
  args->out_rows = static_cast<unsigned short*>(d.out.data), args->out_stride = d.out.stride;
  args->scale = d.scale;
  args->key_heads = d.key_heads, args->value_heads = d.value_heads, args->heads_per_key = d.value_heads / d.key_heads;
  return true;
}

void run_prefill(BackendQueue* queue, const SparseGdnArgs& a, void* scratch) {
  const Launcher launcher(queue, "sparse_gdn");
  const Batch& batch = a.delta.batch;
  SparsePrefillArgs args = {};
  if (batch.token_count == 0) return;
  if (!describe(a, scratch, &args))
    return note_error(launcher.queue(), cudaErrorInvalidValue, "sparse_gdn: describing the rows");
  for (int first = 0; first < batch.sequence_count; first += kSelectSequences) {
    const int left = batch.sequence_count - first;
    place_sequences(a, args, first, left < kSelectSequences ? left : kSelectSequences);
    if (args.item_begin[args.select.sequence_count] == 0) continue;
    clear_progress(launcher, args);
    launch_intra(launcher, args);
    select_sparse_gdn(launcher, args.select);
    launch_events(launcher, args);
    launch_outputs(launcher, args);
  }
}

void run(BackendQueue* queue, const SparseGdnArgs& a, void* scratch) {
  const bool is_sm90 = queue_of(queue).device->properties.major == 9;
  if (is_sm90 && takes(a)) {
    run_prefill(queue, a, scratch);
  } else {
    shared_sparse_gdn.run(queue, a, scratch);
  }
}

}  // namespace

void override_sparse_gdn_for_sm90(OpTable& ops) {
  shared_sparse_gdn = ops.sparse_gdn;
  ops.sparse_gdn = {shared_sparse_gdn.unsupported_reason, scratch_bytes, run};
}

}  // namespace cairn::gpu
