// SparseGDN prefill (spec 3) in its five stages, each sequence by itself. General and exact in its decisions; not yet
// fast.
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/sparse_gdn_events.cuh"
#include "backends/gpu/kernels/sparse_gdn_intra.cuh"
#include "backends/gpu/kernels/sparse_gdn_layout.cuh"
#include "backends/gpu/kernels/sparse_gdn_outputs.cuh"
#include "backends/gpu/sparse_gdn_select_gpu.h"

namespace cairn::gpu {
namespace {

constexpr unsigned kThreads = 256;

/// The state before the call: outputs of early chunks read it after the walk has replaced it.
__global__ void save_initial_kernel(SparseGdnStage stage) {
  const std::int64_t matrix = static_cast<std::int64_t>(stage.call.delta.key_dim) * stage.call.delta.value_dim;
  const float* from = stage.call.delta.states[stage.sequence] + blockIdx.x * matrix;
  for (std::int64_t i = threadIdx.x; i < matrix; i += blockDim.x)
    stage.scratch.initial[blockIdx.x * matrix + i] = from[i];
}

struct TraceFloatsArgs {
  const double* from;
  float* to;
  std::int64_t count;
};

__global__ void trace_floats_kernel(TraceFloatsArgs args) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < args.count) args.to[i] = static_cast<float>(args.from[i]);
}

struct TraceSnapshotsArgs {
  SparseGdnStage stage;
  float* to;
};

/// Snapshots without the unused places: value head 0's, then head 1's.
__global__ void trace_snapshots_kernel(TraceSnapshotsArgs args) {
  const SparseGdnStage& stage = args.stage;
  const std::int64_t matrix = static_cast<std::int64_t>(stage.call.delta.key_dim) * stage.call.delta.value_dim;
  float* to = args.to;
  for (int head = 0; head < stage.call.delta.value_heads; ++head) {
    const std::int64_t size = stage.scratch.snapshot_count[head / stage.per_group()] * matrix;
    const float* from = stage.scratch.snapshots + static_cast<std::int64_t>(head) * stage.pairs() * matrix;
    for (std::int64_t i = threadIdx.x; i < size; i += blockDim.x) to[i] = from[i];
    to += size;
  }
}

/// The seven blocks of every chunk's inverse, also of a full one.
__global__ void trace_inverse_kernel(TraceSnapshotsArgs args) {
  const SparseGdnStage& stage = args.stage;
  constexpr int kSize = kBlockCount * kBlock * kBlock;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, cell = i / kSize;
  if (cell >= static_cast<std::int64_t>(stage.chunk_count) * stage.call.delta.value_heads) return;
  const int block = static_cast<int>(i % kSize) / (kBlock * kBlock), row = (block + 1) / 2, column = row - block % 2;
  const int p = row * kBlock + static_cast<int>(i) / kBlock % kBlock,
            q = column * kBlock + static_cast<int>(i) % kBlock;
  args.to[i] = inverse_at(stage, stage.scratch.inverse + cell * stage.inverse_size(), p, q);
}

template <class T>
void trace(const Launcher& launcher, T* to, const T* from, std::int64_t count) {
  if (to) launcher.copy(to, from, static_cast<std::size_t>(count) * sizeof(T));
}
void trace(const Launcher& launcher, float* to, const double* from, std::int64_t count) {
  if (to) launch_elements(launcher, trace_floats_kernel, count, TraceFloatsArgs{from, to, count});
}

void trace_selection(const Launcher& launcher, const SparseGdnStage& stage, const SparseGdnTrace& to) {
  const SparseGdnScratch& from = stage.scratch;
  const std::int64_t n = stage.groups(), chunks = stage.chunk_count, heads = stage.call.delta.value_heads,
                     pairs = stage.pairs();
  trace(launcher, to.rank, from.rank, n * chunks);
  trace(launcher, to.order, from.order, n * chunks);
  trace(launcher, to.retention, from.retention, heads);
  trace(launcher, to.lifetime, from.lifetime, heads);
  trace(launcher, to.eta, from.eta, heads);
  trace(launcher, to.visibility, from.visibility, heads);
  trace(launcher, to.gain_low_medium, from.gain_low_medium, n);
  trace(launcher, to.gain_medium_high, from.gain_medium_high, n);
  trace(launcher, to.mask, from.mask, n * chunks);
  trace(launcher, to.tier, from.tier, n);
  trace(launcher, to.row_group, from.row_group, n);
  trace(launcher, to.row_ptr, from.row_ptr, n + 1);
  trace(launcher, to.event_chunk, from.event_chunk, n * chunks);
  trace(launcher, to.event_snapshot, from.event_snapshot, n * chunks);
  trace(launcher, to.snapshot_count, from.snapshot_count, n);
  trace(launcher, to.entry_event, from.entry_event, n * pairs);
  trace(launcher, to.entry_snapshot, from.entry_snapshot, n * pairs);
}

void trace_intra(const Launcher& launcher, const SparseGdnStage& stage, const SparseGdnTrace& to) {
  const std::int64_t cells = std::int64_t{stage.chunk_count} * stage.call.delta.value_heads;
  trace(launcher, to.scores, stage.scratch.scores, cells);
  trace(launcher, to.gamma_log2, stage.scratch.gamma, cells);
  trace(launcher, to.u, stage.scratch.u,
        std::int64_t{stage.token_count} * stage.call.delta.value_heads * stage.call.delta.value_dim);
  if (to.inverse_blocks) {
    launch_elements(launcher, trace_inverse_kernel, cells * kBlockCount * kBlock * kBlock,
                    TraceSnapshotsArgs{stage, to.inverse_blocks});
  }
}

// ---------------------------------------------------------------- the stages

void select(const Launcher& launcher, const SparseGdnStage& stage) {
  const SparseGdnArgs& call = stage.call;
  SparseSelectArgs args = {};
  args.policy = call.policy, args.seed = call.seed;
  args.dtype = call.delta.dtype, args.gate = call.gate, args.norm_weight = call.norm_weight;
  args.given_mask = call.given_mask, args.given_tier = call.given_tier;
  args.group_count = call.delta.key_heads, args.head_count = call.delta.value_heads,
  args.value_dim = call.delta.value_dim;
  args.sequence_count = 1;
  args.s = stage.scratch;
  args.token_begin[0] = stage.first_token, args.token_begin[1] = stage.first_token + stage.token_count;
  args.chunk_begin[1] = stage.chunk_count;
  select_sparse_gdn(launcher, args);
}

void run_sequence(const Launcher& launcher, const SparseGdnStage& stage) {
  const DeltaRuleArgs& d = stage.call.delta;
  const auto heads = static_cast<unsigned>(d.value_heads), chunks = static_cast<unsigned>(stage.chunk_count);
  launcher(save_initial_kernel, dim3(heads), dim3(kThreads), 0, stage);
  launcher(sparse_intra_kernel, dim3(chunks, heads), dim3(kThreads), kIntraSharedBytes, stage);
  if (stage.call.trace) trace_intra(launcher, stage, *stage.call.trace);
  select(launcher, stage);
  launcher(walk_events_kernel, dim3(static_cast<unsigned>((d.value_dim + kEventColumns - 1) / kEventColumns), heads),
           dim3(kThreads), event_shared_bytes(d.key_dim), stage);
  launcher(pair_outputs_kernel, dim3(static_cast<unsigned>(stage.pairs()), heads), dim3(kThreads), kOutputSharedBytes,
           stage);
  if (!stage.call.trace) return;
  trace_selection(launcher, stage, *stage.call.trace);
  trace(launcher, stage.call.trace->u_new, stage.scratch.u,
        std::int64_t{stage.token_count} * d.value_heads * d.value_dim);
  if (stage.call.trace->snapshots)
    launcher(trace_snapshots_kernel, dim3(1), dim3(kThreads), 0,
             TraceSnapshotsArgs{stage, stage.call.trace->snapshots});
}

const char* unsupported_reason(const SparseGdnArgs& args) {
  const DeltaRuleArgs& d = args.delta;
  const char* name = "sparse_gdn";
  return first_reason({require_activations(name, d.dtype), require_heads(name, d.key_heads, d.value_heads),
                       require_range(name, "key_dim", d.key_dim, 1, 256),
                       require_range(name, "value_dim", d.value_dim, 1, 65536),
                       require_range(name, "value head count", d.value_heads, 1, 65535)});
}

std::size_t scratch_bytes(const SparseGdnArgs& args) {
  return carve_sparse_gdn(args, args.delta.batch.token_count, nullptr).size_bytes;
}

void run(BackendQueue* queue, const SparseGdnArgs& args, void* scratch) {
  const Launcher launcher(queue, "sparse_gdn");
  const Batch& batch = args.delta.batch;
  for (std::int32_t b = 0; b < batch.sequence_count; ++b) {
    const std::int32_t first = batch.offsets_host[b], count = batch.offsets_host[b + 1] - first;
    if (count == 0) continue;
    run_sequence(launcher,
                 {args, carve_sparse_gdn(args, count, scratch), b, first, count, (count + kChunk - 1) / kChunk});
  }
}

}  // namespace

void select_sparse_gdn(const Launcher& launcher, const SparseSelectArgs& args) {
  const auto groups = static_cast<unsigned>(args.group_count), sequences = static_cast<unsigned>(args.sequence_count);
  int longest = 0;
  for (int b = 0; b < args.sequence_count; ++b) longest = args.chunk_count(b) > longest ? args.chunk_count(b) : longest;
  const auto tiles = static_cast<unsigned>((longest + kSelectThreads - 1) / kSelectThreads);
  if (!args.is_given()) {
    launcher(measure_heads_kernel, dim3(static_cast<unsigned>(args.head_count), sequences), dim3(kSelectThreads), 0,
             args);
    if (longest <= kSortedChunks) {
      unsigned size = 64;
      while (static_cast<int>(size) < longest) size *= 2;
      launcher(sort_chunks_kernel, dim3(groups, sequences), dim3(size < 2048 ? size / 2 : 1024), size * 12, args);
    } else {
      launcher(order_chunks_kernel, dim3(tiles, groups, sequences), dim3(kSelectThreads), 0, args);
    }
    launcher(sum_gains_kernel, dim3(groups, sequences), dim3(kSelectThreads), 0, args);
  }
  launcher(assign_tiers_kernel, dim3(sequences), dim3(kSelectThreads), 0, args);
  launcher(lay_out_events_kernel, dim3(groups, sequences), dim3(kSelectThreads), 0, args);
}

void add_sparse_gdn(OpTable& ops) { ops.sparse_gdn = {unsupported_reason, scratch_bytes, run}; }

}  // namespace cairn::gpu
