// linear, many tokens, sm_90a: a block walks over tiles of 64 kGroups outputs x kTokens tokens. One warp copies boxes
// of 64 inputs ahead (bulk copies, a ring of stages); each warpgroup multiplies 64 outputs by all tokens of the tile.
//   Roles     outputs are the rows of a product, tokens its columns: few tokens make narrow tiles, so that small
//             prompts use many multiprocessors
//   Numerics  an output is one chain of products of 16 inputs in their order, in every form and tile: the same bits.
//             Inputs past the end and tokens past the end are zeros of the copy engine
//   Order     tiles of `tokens_together` token tiles (about 2,048 tokens) side by side, then the next outputs: what
//             runs at the same time shares its operands in L2
//   Limit     2 T N K operations at 790 TFLOP/s; for few tokens 2 N K bytes of weights at 4.3 TB/s
//   Measured  (H200, us, TFLOP/s or TB/s; linear_prefill_sm80 took 494 us on average at 2,048 tokens, 101 us at 64)
//               N x K              T 64              T 256       T 512       T 2,048      T 8,192
//               12,352 x 2,560     19.7  3.2 TB/s    29.4  550   47.3  684   169.6  764     757  685
//                2,560 x 4,096     15.0  1.4 TB/s    24.0  224   25.6  420    58.6  733     260  662
//               18,432 x 2,560     30.2  3.1 TB/s    46.7  517   75.2  642   274.4  704   1,271  608
//                2,560 x 9,216     31.5  1.5 TB/s    46.5  260   47.2  512   142.9  676     495  781
//             (256 and 512 tokens: of the form that is chosen now, timed before it was)
//             predicted 550 to 660: no cluster is needed. At 8,192 tokens the clock falls under the load
//   Peer      cuBLASLt 13.1, its first choice, same run (us, this in brackets): 2,048 x 2,560 x 9,728 (T x K x N) 137 (159),
//             2,048 x 9,728 x 2,560 123 (155), 8,192 x 2,560 x 9,728 515 (631), 512 x 2,560 x 9,728 36 (48), 128 15.7 (21)
//   Tried     two blocks of the same tokens as a cluster, each brings half of them to both: a third less from L2, predicted
//             0.85 of the time, measured the same (159, 156, 650); with arrivals that release to the cluster 199, 244, 1,428
#pragma once

#include "backends/cuda/linear_args_sm80.cuh"
#include "backends/cuda/linear_products_sm90.cuh"

namespace cairn::gpu::sm90 {

struct LinearPrefillArgs {
  CUtensorMap x, weight;    ///< boxes of kTokens, of 64 kGroups rows, by 64 inputs
  LinearBf16Args call;      ///< `weight` is null where it is already behind the map
  const float* row_scales;  ///< [out_dim] factors of the sums, or null
  int token_tiles, out_tiles, tokens_together;
  bool stores_eights;  ///< outputs are bf16 and may be moved 16 bytes at a time
};

/// What a form needs: shared memory, stages, blocks of a multiprocessor.
template <int kTokens, int kGroups>
struct LinearForm {
  static constexpr int kOutputs = 64 * kGroups, kStageBytes = (kTokens + kOutputs) * 128;
  static constexpr int kBlocks = kGroups > 1 ? 1 : 3;
  static constexpr int kSliceBytes = 32 * 128,
                       kSlicesBytes = kGroups * 2 * kSliceBytes;  // two of 32 tokens a warpgroup
  static constexpr int kRoom = (kBlocks > 1 ? 75 : 220) * 1024 - kSlicesBytes;
  static constexpr int kStages = kRoom / kStageBytes < 8 ? kRoom / kStageBytes : 8;
  static constexpr int kThreads = kGroups * 128 + (kGroups > 1 ? 128 : 32);
  struct Shared {
    unsigned char stages[kStages][kStageBytes];  ///< tokens, then outputs
    unsigned char slices[kSlicesBytes];
    std::uint64_t full[kStages], empty[kStages];
  };
};

struct LinearTile {
  int first_token, first_out;
  template <int kTokens, int kOutputs>
  __device__ static LinearTile of(const LinearPrefillArgs& a, int index) {
    const int together = a.tokens_together * a.out_tiles, begin = index / together * a.tokens_together;
    const int height = min(a.tokens_together, a.token_tiles - begin), within = index % together;
    return {(begin + within % height) * kTokens, within / height * kOutputs};
  }
};

/// The place in a ring of stages.
template <int kStages>
struct RingPlace {
  int stage = 0, parity;
  __device__ explicit RingPlace(int first_parity) : parity(first_parity) {}
  __device__ void step() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

template <int kTokens, int kGroups>
__device__ __forceinline__ void copy_tiles(const LinearPrefillArgs& a,
                                           typename LinearForm<kTokens, kGroups>::Shared& shared) {
  using Form = LinearForm<kTokens, kGroups>;
  RingPlace<Form::kStages> place(1);  // the first round of a stage waits for nothing
  for (int i = static_cast<int>(blockIdx.x); i < a.token_tiles * a.out_tiles; i += static_cast<int>(gridDim.x)) {
    const LinearTile tile = LinearTile::of<kTokens, Form::kOutputs>(a, i);
    for (int k = 0; k < a.call.in_dim; k += 64) {
      const std::uint32_t full = shared_address(&shared.full[place.stage]),
                          to = shared_address(shared.stages[place.stage]);
      barrier_wait(shared_address(&shared.empty[place.stage]), place.parity);
      barrier_expect(full, Form::kStageBytes);
      load_tile(to + kTokens * 128, &a.weight, k, tile.first_out, full);
      load_tile(to, &a.x, k, tile.first_token, full);
      place.step();
    }
  }
}

/// A thread's sums leave one by one: any type, stride and alignment.
template <int kTokens>
__device__ __forceinline__ void store_singly(const LinearPrefillArgs& a, int first_token, int first_out,
                                             const float (&d)[kTokens / 2], int lane) {
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    finish(a.call, first_token + i / 4 * 8 + lane % 4 * 2 + i % 2, first_out + lane / 4 + i / 2 % 2 * 8, d[i]);
  }
}

/// 64 outputs of 32 tokens at a time through shared memory, 16 bytes a thread. Two slices in turn: one barrier each.
template <int kTokens>
__device__ __forceinline__ void store_eights(const LinearPrefillArgs& a, int first_token, int first_out,
                                             const float (&d)[kTokens / 2], std::uint32_t slices, int thread,
                                             int group) {
  const int warp = thread / 32, lane = thread % 32, piece = thread % 8;
  auto* out = static_cast<std::uint16_t*>(a.call.out) + first_out + piece * 8;
  const bool is_output = first_out + piece * 8 < a.call.out_dim;
#pragma unroll
  for (int slice = 0; slice < kTokens / 32; ++slice) {
    const std::uint32_t at = slices + slice % 2 * (32 * 128);
    const auto for_each_piece = [&](const auto& visit) {  // this thread's: two tokens
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = thread / 8 + 16 * i, token = first_token + slice * 32 + row;
        if (is_output && token < a.call.token_count) visit(at + swizzled(row, piece), out + token * a.call.out_stride);
      }
    };
    if (a.call.accumulate) {
      for_each_piece([](std::uint32_t place, std::uint16_t* from) {
        store_shared_16(place, *reinterpret_cast<const uint4*>(from));
      });
      warpgroup_barrier(1 + group);
    }
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {  // 16 tokens
      const float* sums = d + slice * 16 + pair * 8;
      const std::uint32_t matrices = at + swizzled(pair * 16 + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
      std::uint32_t m[4], old[4] = {};
      if (a.call.accumulate) load_transposed(old, matrices);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        m[i] = a.call.accumulate ? pack_bf16(low_bf16(old[i]) + sums[2 * i], high_bf16(old[i]) + sums[2 * i + 1])
                                 : pack_bf16(sums[2 * i], sums[2 * i + 1]);
      }
      __syncwarp();  // every lane has read what is overwritten
      store_transposed(matrices, m);
    }
    warpgroup_barrier(1 + group);
    for_each_piece([](std::uint32_t place, std::uint16_t* to) { store_global_16(to, load_shared_16(place)); });
  }
}

template <int kTokens, int kGroups>
__device__ __forceinline__ void multiply_tiles(const LinearPrefillArgs& a,
                                               typename LinearForm<kTokens, kGroups>::Shared& shared, int thread,
                                               int group) {
  using Form = LinearForm<kTokens, kGroups>;
  const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
  RingPlace<Form::kStages> place(0);
  for (int i = static_cast<int>(blockIdx.x); i < a.token_tiles * a.out_tiles; i += static_cast<int>(gridDim.x)) {
    LinearTile tile = LinearTile::of<kTokens, Form::kOutputs>(a, i);
    tile.first_out += group * 64;
    float d[kTokens / 2] = {};
    pin(d);
    int last = -1;  // the stage of the products under way
    for (int k = 0; k < a.call.in_dim; k += 64) {
      barrier_wait(shared_address(&shared.full[place.stage]), place.parity);
      const std::uint32_t tokens = shared_address(shared.stages[place.stage]);
      const std::uint32_t outputs = tokens + (kTokens + group * 64) * 128;
      products_begin();
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        multiply_64<kTokens>(d, operand(outputs + part * 32), operand(tokens + part * 32), part > 0 || k > 0);
      }
      products_commit();
      products_wait<1>();
      if (last >= 0 && lane == 0) barrier_arrive(shared_address(&shared.empty[last]));
      last = place.stage;
      place.step();
    }
    products_wait<0>();
    pin(d);
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[last]));
    if (a.row_scales || (a.stores_eights && a.call.bias)) {
      const int first = tile.first_out + row, second = first + 8;
      const bool has_first = first < a.call.out_dim, has_second = second < a.call.out_dim;
      const float factor0 = a.row_scales && has_first ? a.row_scales[first] : 1.0f;
      const float factor1 = a.row_scales && has_second ? a.row_scales[second] : 1.0f;
      const bool adds = a.stores_eights && a.call.bias;  // store_singly adds its own
      const float bias0 = adds && has_first ? a.call.bias[first] : 0.0f,
                  bias1 = adds && has_second ? a.call.bias[second] : 0.0f;
#pragma unroll
      for (int j = 0; j < kTokens / 2; ++j) d[j] = d[j] * (j / 2 % 2 ? factor1 : factor0) + (j / 2 % 2 ? bias1 : bias0);
    }
    if (a.stores_eights) {
      store_eights<kTokens>(a, tile.first_token, tile.first_out, d,
                            shared_address(shared.slices) + group * 2 * Form::kSliceBytes, thread, group);
    } else {
      store_singly<kTokens>(a, tile.first_token, tile.first_out + thread / 32 * 16, d, lane);
    }
  }
}

template <int kTokens, int kGroups>
__global__ void __launch_bounds__(LinearForm<kTokens, kGroups>::kThreads, LinearForm<kTokens, kGroups>::kBlocks)
    linear_prefill_sm90_kernel(const __grid_constant__ LinearPrefillArgs a) {
  using Form = LinearForm<kTokens, kGroups>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Form::Shared*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  let_next_kernel_start();
  if (thread == 0) {
    for (int i = 0; i < Form::kStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), kGroups * 4);  // one arrival of each warp that multiplies
    }
    fence_barrier_init();
  }
  wait_for_previous_kernel();
  __syncthreads();
  if (thread < kGroups * 128) {
    if constexpr (kGroups > 1) set_registers_up<240>();
    multiply_tiles<kTokens, kGroups>(a, shared, thread % 128, thread / 128);
  } else {
    if constexpr (kGroups > 1) set_registers_down<24>();
    if (thread == kGroups * 128) copy_tiles<kTokens, kGroups>(a, shared);
  }
}

}  // namespace cairn::gpu::sm90
