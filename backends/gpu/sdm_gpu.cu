// sdm: product-key addressing, then rows are claimed, then the tables are updated and read.
//   address  a block per (token, head): top-W of each half, of their sums, softmax
//   claim    a block per sequence walks its write slots in order; a slot that leaves M0, or whose row is shared, gets the
//            next free row and a copy. Before the update, so that all blocks of a head agree; a row read before its first
//            write holds what M0 or the shared row holds.
//   update   a thread owns one value column of one head of one sequence and goes through its tokens: predict, write, read.
//            No thread waits for another.
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"
#include "backends/interface/scratch_layout.h"

namespace cairn::gpu {
namespace {

constexpr int kMaxSide = 1024, kMaxCount = 128;
constexpr unsigned kAddressThreads = 128;

struct SdmScratch {
  std::int32_t *write_slots, *read_slots;  ///< [T, H, W'], [T, H, R']
  float *write_weights, *read_weights;
  std::size_t size_bytes;
};

__host__ __device__ inline std::int32_t kept(std::int32_t count, std::int32_t side) {
  return count < side * side ? count : side * side;
}

SdmScratch carve(const SdmArgs& args, void* scratch) {
  const std::size_t pairs = static_cast<std::size_t>(args.batch.token_count) * static_cast<std::size_t>(args.head_count);
  const auto writes = pairs * static_cast<std::size_t>(kept(args.write_count, args.side));
  const auto reads = pairs * static_cast<std::size_t>(kept(args.read_count, args.side));
  ScratchLayout layout(scratch);
  SdmScratch pieces{};
  pieces.write_slots = layout.take<std::int32_t>(writes);
  pieces.write_weights = layout.take<float>(writes);
  pieces.read_slots = layout.take<std::int32_t>(reads);
  pieces.read_weights = layout.take<float>(reads);
  pieces.size_bytes = layout.size_bytes();
  return pieces;
}

struct SdmKernelArgs {
  SdmArgs call;
  SdmScratch scratch;
};

struct AddressArgs {
  ConstRows scores;
  DType dtype;
  std::int32_t token_count, head_count, side, count;
  float scale;
  std::int32_t* slots;
  float* weights;
  std::int32_t* trace_slots;
  float* trace_weights;
};

/// True when (value, index) comes before (other, other_index): larger first, ties to the lower index.
__device__ inline bool comes_first(float value, int index, float other, int other_index) {
  return value > other || (value == other && index < other_index);
}

/// The `keep` best of `count` scores of this block, best first: each thread counts how many come before its own.
__device__ inline void rank_scores(const float* scores, int count, int keep, float* best, int* best_index) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    int rank = 0;
    for (int j = 0; j < count && rank < keep; ++j) rank += comes_first(scores[j], j, scores[i], i) ? 1 : 0;
    if (rank < keep) {
      best[rank] = scores[i];
      best_index[rank] = i;
    }
  }
  __syncthreads();
}

/// One of the m * m candidate sums may be among the best W only if fewer than W sums dominate it: (i + 1)(j + 1) <= W.
__global__ void address_kernel(AddressArgs args) {
  __shared__ float scores[kMaxSide];
  __shared__ float best[2][kMaxCount];
  __shared__ int best_index[2][kMaxCount];
  __shared__ float kept_score[kMaxCount];
  __shared__ int kept_slot[kMaxCount];
  __shared__ int candidate_count;
  float* candidate = reinterpret_cast<float*>(dynamic_shared());
  const std::int64_t pair = blockIdx.x, t = pair / args.head_count, head = pair % args.head_count;
  const int n = args.side, m = args.count < n ? args.count : n, keep = kept(args.count, n);
  const int thread = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  for (int half = 0; half < 2; ++half) {
    // Finite, NaN as the least: their order is total, so that every place is filled with a slot of the table.
    for (int i = thread; i < n; i += step) {
      scores[i] = fminf(fmaxf(load(args.scores, args.dtype, t, (head * 2 + half) * n + i), -1e38f), 1e38f);
    }
    __syncthreads();
    rank_scores(scores, n, m, best[half], best_index[half]);
  }
  // Candidates in order of (rank of a, rank of b); their slots follow them.
  int* candidate_slot = reinterpret_cast<int*>(candidate + 8 * kMaxCount);
  if (thread == 0) {
    int count = 0;
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < m && (i + 1) * (j + 1) <= keep; ++j) {
        candidate[count] = best[0][i] + best[1][j];
        candidate_slot[count++] = best_index[0][i] * n + best_index[1][j];
      }
    }
    candidate_count = count;
  }
  __syncthreads();
  const int count = candidate_count;
  for (int i = thread; i < count; i += step) {
    int rank = 0;
    for (int j = 0; j < count && rank < keep; ++j) {
      rank += comes_first(candidate[j], candidate_slot[j], candidate[i], candidate_slot[i]) ? 1 : 0;
    }
    if (rank < keep) {
      kept_score[rank] = candidate[i];
      kept_slot[rank] = candidate_slot[i];
    }
  }
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < keep; ++i) sum += expf((kept_score[i] - kept_score[0]) * args.scale);
  for (int i = thread; i < keep; i += step) {
    const float weight = expf((kept_score[i] - kept_score[0]) * args.scale) / sum;
    args.slots[pair * keep + i] = kept_slot[i];
    args.weights[pair * keep + i] = weight;
    if (args.trace_slots) args.trace_slots[pair * keep + i] = kept_slot[i];
    if (args.trace_weights) args.trace_weights[pair * keep + i] = weight;
  }
}

__device__ inline float* row_address(const SdmArgs& args, const SdmTable& table, std::int32_t row) {
  return table.slabs[row / args.rows_per_slab] + static_cast<std::int64_t>(row % args.rows_per_slab) * args.value_dim;
}

__global__ void claim_rows_kernel(SdmKernelArgs kernel_args) {
  const SdmArgs& args = kernel_args.call;
  const int b = static_cast<int>(blockIdx.x), writes = kept(args.write_count, args.side);
  const SdmTable table = args.tables[b];
  const std::int64_t slot_count = static_cast<std::int64_t>(args.side) * args.side;
  const std::int32_t first_private = table.control[1];
  std::int32_t next = table.control[0];
  const std::int64_t first = static_cast<std::int64_t>(args.batch.offsets[b]) * args.head_count * writes;
  const std::int64_t last = static_cast<std::int64_t>(args.batch.offsets[b + 1]) * args.head_count * writes;
  for (std::int64_t i = first; i < last; ++i) {  // the same path in every thread of the block
    const std::int64_t head = i / writes % args.head_count;
    const std::int64_t slot = head * slot_count + kernel_args.scratch.write_slots[i];
    const std::int32_t old = table.row_of_slot[slot];
    if (old >= first_private) continue;
    __syncthreads();  // all have read the slot's row
    float* to = row_address(args, table, next);
    const float* shared = old >= 0 ? row_address(args, table, old) : nullptr;
    for (int v = static_cast<int>(threadIdx.x); v < args.value_dim; v += static_cast<int>(blockDim.x)) {
      to[v] = shared ? shared[v] : args.initial ? load(args.initial, args.initial_dtype, slot * args.value_dim + v) : 0.0f;
    }
    if (threadIdx.x == 0) table.row_of_slot[slot] = next;
    ++next;
    __syncthreads();  // the next look at a slot sees this one
  }
  if (threadIdx.x == 0) table.control[0] = next;
}

__global__ void update_tables_kernel(SdmKernelArgs kernel_args) {
  const SdmArgs& args = kernel_args.call;
  const int v = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), b = static_cast<int>(blockIdx.z);
  const std::int64_t head = blockIdx.y;
  if (v >= args.value_dim) return;
  const SdmTable table = args.tables[b];
  const std::int64_t slot_count = static_cast<std::int64_t>(args.side) * args.side;
  const std::int32_t* row_of_slot = table.row_of_slot + head * slot_count;
  const int writes = kept(args.write_count, args.side), reads = kept(args.read_count, args.side);
  for (std::int64_t t = args.batch.offsets[b]; t < args.batch.offsets[b + 1]; ++t) {
    const std::int64_t pair = t * args.head_count + head;
    const std::int32_t* write_slots = kernel_args.scratch.write_slots + pair * writes;
    const float* write_weights = kernel_args.scratch.write_weights + pair * writes;
    const float g = args.log_decay[pair], beta = args.beta[pair], shared_decay = expf(g);
    const auto decay = [&](int i) { return args.key_weighted_decay ? expf(g * write_weights[i]) : shared_decay; };
    const float value = load(args.v, args.dtype, t, head * args.value_dim + v);
    float recalled = 0;
    for (int i = 0; i < writes; ++i) {
      recalled += write_weights[i] * decay(i) * row_address(args, table, row_of_slot[write_slots[i]])[v];
    }
    const float residual = value - recalled;
    if (args.residual.data) store(args.residual, args.dtype, t, head * args.value_dim + v, residual);
    for (int i = 0; i < writes; ++i) {
      float& cell = row_address(args, table, row_of_slot[write_slots[i]])[v];
      const float decayed = decay(i) * cell;
      cell = decayed + beta * write_weights[i] * (args.slot_residual ? value - decayed : residual);
    }
    const std::int32_t* read_slots = kernel_args.scratch.read_slots + pair * reads;
    const float* read_weights = kernel_args.scratch.read_weights + pair * reads;
    float out = 0;
    for (int i = 0; i < reads; ++i) {
      const std::int32_t row = row_of_slot[read_slots[i]];
      const std::int64_t initial = (head * slot_count + read_slots[i]) * args.value_dim + v;
      out += read_weights[i] * (row >= 0       ? row_address(args, table, row)[v]
                                : args.initial ? load(args.initial, args.initial_dtype, initial)
                                               : 0.0f);
    }
    store(args.out, args.dtype, t, head * args.value_dim + v, out);
  }
}

const char* unsupported_reason(const SdmArgs& args) {
  return first_reason({require_activations("sdm", args.dtype), require_range("sdm", "side", args.side, 1, kMaxSide),
                       require_range("sdm", "write_count", args.write_count, 1, kMaxCount),
                       require_range("sdm", "read_count", args.read_count, 1, kMaxCount),
                       require_range("sdm", "head_count", args.head_count, 1, 65535),
                       args.initial ? require_floating("sdm", args.initial_dtype) : nullptr});
}

std::size_t scratch_bytes(const SdmArgs& args) { return carve(args, nullptr).size_bytes; }

void run(BackendQueue* queue, const SdmArgs& args, void* scratch) {
  const Launcher launcher(queue, "sdm");
  const SdmKernelArgs kernel_args{args, carve(args, scratch)};
  const SdmScratch& pieces = kernel_args.scratch;
  const dim3 pairs(static_cast<unsigned>(args.batch.token_count * args.head_count));
  const std::size_t shared_bytes = 8 * kMaxCount * (sizeof(float) + sizeof(int));  // candidates: sum of W / i < 8 W for W <= 128
  launcher(address_kernel, pairs, dim3(kAddressThreads), shared_bytes,
           AddressArgs{args.write_scores, args.dtype, args.batch.token_count, args.head_count, args.side, args.write_count,
                       args.write_scale, pieces.write_slots, pieces.write_weights, args.trace_write_slots, args.trace_write_weights});
  launcher(address_kernel, pairs, dim3(kAddressThreads), shared_bytes,
           AddressArgs{args.read_scores, args.dtype, args.batch.token_count, args.head_count, args.side, args.read_count,
                       args.read_scale, pieces.read_slots, pieces.read_weights, args.trace_read_slots, args.trace_read_weights});
  launcher(claim_rows_kernel, dim3(static_cast<unsigned>(args.batch.sequence_count)), dim3(256), 0, kernel_args);
  const dim3 columns(static_cast<unsigned>((args.value_dim + 63) / 64), static_cast<unsigned>(args.head_count),
                     static_cast<unsigned>(args.batch.sequence_count));
  launcher(update_tables_kernel, columns, dim3(64), 0, kernel_args);
}

}  // namespace

void add_sdm(OpTable& ops) { ops.sdm = {unsupported_reason, scratch_bytes, run}; }

}  // namespace cairn::gpu
