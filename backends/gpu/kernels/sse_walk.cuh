// sse_walk: every shape, token by token. A block owns 32 value columns of one head of one sequence and goes through its
// tokens in order: the chosen partitions, then the shared one. States stay in global memory: which partition a token
// touches is not known before.
//   Launch   grid (ceil(V / 32), H, B), 256 threads: 32 columns x 8 parts of the key rows
#pragma once

#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {

inline constexpr int kWalkColumns = 32, kWalkParts = 8;

struct SseWalkArgs {
  SseArgs call;
  const std::int32_t* chosen;  ///< [T, k]
  const float* weight;         ///< [T, k]
};

/// Sum of the parts of this thread's column, the same order for every thread.
__device__ inline float sum_parts(float value, float (*partial)[kWalkColumns]) {
  const int column = static_cast<int>(threadIdx.x) % kWalkColumns, part = static_cast<int>(threadIdx.x) / kWalkColumns;
  __syncthreads();
  partial[part][column] = value;
  __syncthreads();
  float sum = 0;
  for (int p = 0; p < kWalkParts; ++p) sum += partial[p][column];
  return sum;
}

struct SseWalkToken {
  const ConstRows *q, *k;
  const float *log_decay, *beta;  ///< of the whole batch
  float write, read;              ///< e_i or 1
};

/// One partition, one token: decay, write, read. Returns the output of this thread's column.
__device__ inline float walk_step(const SseArgs& args, const SseWalkToken& token, std::int64_t t, int head,
                                  float* state, float (*partial)[kWalkColumns]) {
  const int column = static_cast<int>(blockIdx.x) * kWalkColumns + static_cast<int>(threadIdx.x) % kWalkColumns;
  const int part = static_cast<int>(threadIdx.x) / kWalkColumns;
  const bool is_inside = column < args.value_dim;
  const std::int64_t first = static_cast<std::int64_t>(head) * args.key_dim;
  const std::int64_t gate = t * args.head_count + head;
  const bool is_gdn = args.transition == SseTransition::kGdn;
  const auto decay = [&](int k) { return expf(token.log_decay[is_gdn ? gate : gate * args.key_dim + k]); };
  const auto key = [&](int k) { return load(*token.k, args.dtype, t, first + k); };
  float value =
      is_inside ? load(args.v, args.dtype, t, static_cast<std::int64_t>(head) * args.value_dim + column) : 0.0f;
  float write = token.write;
  if (args.transition != SseTransition::kGla) {
    // kDelta: predict with k, write e k. kGdn: the key is e k in both places.
    const float predict = is_gdn ? token.write : 1.0f;
    float recalled = 0;
    for (int k = part; is_inside && k < args.key_dim; k += kWalkParts) {
      recalled += decay(k) * state[static_cast<std::int64_t>(k) * args.value_dim + column] * predict * key(k);
    }
    value -= sum_parts(recalled, partial);
    write *= token.beta[gate];
  }
  float read = 0;
  for (int k = part; is_inside && k < args.key_dim; k += kWalkParts) {
    float& s = state[static_cast<std::int64_t>(k) * args.value_dim + column];
    s = decay(k) * s + write * key(k) * value;
    read += s * load(*token.q, args.dtype, t, first + k);
  }
  return token.read * sum_parts(read, partial);
}

__global__ void sse_walk_kernel(SseWalkArgs walk) {
  const SseArgs& args = walk.call;
  __shared__ float partial[kWalkParts][kWalkColumns];
  const int head = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const int column = static_cast<int>(blockIdx.x) * kWalkColumns + static_cast<int>(threadIdx.x) % kWalkColumns;
  const std::int64_t matrix = static_cast<std::int64_t>(args.key_dim) * args.value_dim;
  for (std::int64_t t = args.batch.offsets[b]; t < args.batch.offsets[b + 1]; ++t) {
    float out = 0;
    for (int i = 0; i < args.top_k; ++i) {
      const std::int64_t partition = walk.chosen[t * args.top_k + i];
      const float e = walk.weight[t * args.top_k + i];
      const SseWalkToken token{
          &args.q, &args.k, args.log_decay, args.beta, args.gate_write ? e : 1.0f, args.gate_read ? e : 1.0f};
      out += walk_step(args, token, t, head, args.states[b] + (partition * args.head_count + head) * matrix, partial);
    }
    if (args.shared_q.data) {
      const SseWalkToken token{&args.shared_q,
                               &args.shared_k,
                               args.shared_log_decay ? args.shared_log_decay : args.log_decay,
                               args.shared_beta ? args.shared_beta : args.beta,
                               1.0f,
                               1.0f};
      out += walk_step(args, token, t, head, args.shared_states[b] + head * matrix, partial);
    }
    if (threadIdx.x < kWalkColumns && column < args.value_dim) {
      store(args.out, args.dtype, t, static_cast<std::int64_t>(head) * args.value_dim + column, out);
    }
  }
}

}  // namespace cairn::gpu
