// sse: one kernel routes (softmax and top-k per token), one walks. A walking block owns 32 value columns of one head of one
// sequence and goes through its tokens in order: the chosen partitions, then the shared one. States stay in global memory:
// which partition a token touches is not known before.
//   Launch   grid (ceil(V / 32), H, B), 256 threads: 32 columns x 8 parts of the key rows
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"
#include "backends/interface/scratch_layout.h"

namespace cairn::gpu {
namespace {

constexpr int kColumns = 32, kParts = 8;
constexpr std::int32_t kMaxPartitions = 4096;

struct SseScratch {
  std::int32_t* chosen;  ///< [T, k]
  float* weight;         ///< [T, k]
  std::size_t size_bytes;
};

SseScratch carve(const SseArgs& args, void* scratch) {
  const std::size_t count = static_cast<std::size_t>(args.batch.token_count) * static_cast<std::size_t>(args.top_k);
  ScratchLayout layout(scratch);
  SseScratch pieces{};
  pieces.chosen = layout.take<std::int32_t>(count);
  pieces.weight = layout.take<float>(count);
  pieces.size_bytes = layout.size_bytes();
  return pieces;
}

struct SseKernelArgs {
  SseArgs call;
  SseScratch scratch;
};

/// A thread routes one token: partitions are few. Largest first, ties to the lower index.
__global__ void route_partitions_kernel(SseKernelArgs kernel_args) {
  const SseArgs& args = kernel_args.call;
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (t >= args.batch.token_count) return;
  const float* logits = args.route_logits + t * args.partition_count;
  float largest = -INFINITY, sum = 0;
  for (int i = 0; i < args.partition_count; ++i) largest = fmaxf(largest, logits[i]);
  for (int i = 0; i < args.partition_count; ++i) sum += expf(logits[i] - largest);
  float above = INFINITY;
  int above_index = -1;
  for (int k = 0; k < args.top_k; ++k) {
    int best = -1;  // the largest that comes after (above, above_index) in order
    for (int i = 0; i < args.partition_count; ++i) {
      const bool is_left = logits[i] < above || (logits[i] == above && i > above_index);
      if (is_left && (best < 0 || logits[i] > logits[best])) best = i;
    }
    if (best < 0) best = k;  // NaN: any partition, but one of the state's
    kernel_args.scratch.chosen[t * args.top_k + k] = best;
    kernel_args.scratch.weight[t * args.top_k + k] = expf(logits[best] - largest) / sum;
    above = logits[best];
    above_index = best;
  }
}

/// Sum of the parts of this thread's column, the same order for every thread.
__device__ inline float sum_parts(float value, float (*partial)[kColumns]) {
  const int column = static_cast<int>(threadIdx.x) % kColumns, part = static_cast<int>(threadIdx.x) / kColumns;
  __syncthreads();
  partial[part][column] = value;
  __syncthreads();
  float sum = 0;
  for (int p = 0; p < kParts; ++p) sum += partial[p][column];
  return sum;
}

struct SseToken {
  const ConstRows *q, *k;
  const float *log_decay, *beta;  ///< of the whole batch
  float write, read;              ///< e_i or 1
};

/// One partition, one token: decay, write, read. Returns the output of this thread's column.
__device__ inline float step(const SseArgs& args, const SseToken& token, std::int64_t t, int head, float* state,
                             float (*partial)[kColumns]) {
  const int column = static_cast<int>(blockIdx.x) * kColumns + static_cast<int>(threadIdx.x) % kColumns;
  const int part = static_cast<int>(threadIdx.x) / kColumns;
  const bool is_inside = column < args.value_dim;
  const std::int64_t first = static_cast<std::int64_t>(head) * args.key_dim;
  const std::int64_t gate = t * args.head_count + head;
  const bool is_gdn = args.transition == SseTransition::kGdn;
  const auto decay = [&](int k) { return expf(token.log_decay[is_gdn ? gate : gate * args.key_dim + k]); };
  const auto key = [&](int k) { return load(*token.k, args.dtype, t, first + k); };
  float value = is_inside ? load(args.v, args.dtype, t, static_cast<std::int64_t>(head) * args.value_dim + column) : 0.0f;
  float write = token.write;
  if (args.transition != SseTransition::kGla) {
    // kDelta: predict with k, write e k. kGdn: the key is e k in both places.
    const float predict = is_gdn ? token.write : 1.0f;
    float recalled = 0;
    for (int k = part; is_inside && k < args.key_dim; k += kParts) {
      recalled += decay(k) * state[static_cast<std::int64_t>(k) * args.value_dim + column] * predict * key(k);
    }
    value -= sum_parts(recalled, partial);
    write *= token.beta[gate];
  }
  float read = 0;
  for (int k = part; is_inside && k < args.key_dim; k += kParts) {
    float& s = state[static_cast<std::int64_t>(k) * args.value_dim + column];
    s = decay(k) * s + write * key(k) * value;
    read += s * load(*token.q, args.dtype, t, first + k);
  }
  return token.read * sum_parts(read, partial);
}

__global__ void walk_partitions_kernel(SseKernelArgs kernel_args) {
  const SseArgs& args = kernel_args.call;
  __shared__ float partial[kParts][kColumns];
  const int head = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int column = static_cast<int>(blockIdx.x) * kColumns + static_cast<int>(threadIdx.x) % kColumns;
  const std::int64_t matrix = static_cast<std::int64_t>(args.key_dim) * args.value_dim;
  for (std::int64_t t = args.batch.offsets[b]; t < args.batch.offsets[b + 1]; ++t) {
    float out = 0;
    for (int i = 0; i < args.top_k; ++i) {
      const std::int64_t partition = kernel_args.scratch.chosen[t * args.top_k + i];
      const float e = kernel_args.scratch.weight[t * args.top_k + i];
      const SseToken token{&args.q, &args.k, args.log_decay, args.beta, args.gate_write ? e : 1.0f, args.gate_read ? e : 1.0f};
      out += step(args, token, t, head, args.states[b] + (partition * args.head_count + head) * matrix, partial);
    }
    if (args.shared_q.data) {
      const SseToken token{&args.shared_q, &args.shared_k, args.shared_log_decay ? args.shared_log_decay : args.log_decay,
                           args.shared_beta ? args.shared_beta : args.beta, 1.0f, 1.0f};
      out += step(args, token, t, head, args.shared_states[b] + head * matrix, partial);
    }
    if (threadIdx.x < kColumns && column < args.value_dim) {
      store(args.out, args.dtype, t, static_cast<std::int64_t>(head) * args.value_dim + column, out);
    }
  }
}

const char* unsupported_reason(const SseArgs& args) {
  return first_reason({require_activations("sse", args.dtype), require_range("sse", "partition_count", args.partition_count, 1, kMaxPartitions),
                       require_range("sse", "top_k", args.top_k, 1, args.partition_count),
                       require_range("sse", "head_count", args.head_count, 1, 65535)});
}

std::size_t scratch_bytes(const SseArgs& args) { return carve(args, nullptr).size_bytes; }

void run(BackendQueue* queue, const SseArgs& args, void* scratch) {
  const Launcher launcher(queue, "sse");
  const SseKernelArgs kernel_args{args, carve(args, scratch)};
  launch_elements(launcher, route_partitions_kernel, args.batch.token_count, kernel_args);
  const dim3 grid(static_cast<unsigned>((args.value_dim + kColumns - 1) / kColumns), static_cast<unsigned>(args.head_count),
                  static_cast<unsigned>(args.batch.sequence_count));
  launcher(walk_partitions_kernel, grid, dim3(kColumns * kParts), 0, kernel_args);
}

}  // namespace

void add_sse(OpTable& ops) { ops.sse = {unsupported_reason, scratch_bytes, run}; }

}  // namespace cairn::gpu
