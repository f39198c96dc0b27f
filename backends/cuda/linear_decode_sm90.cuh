// linear, few tokens, on sm_90: a block for each multiprocessor takes neighbouring outputs and streams their weights, and the
// tokens, through a ring in shared memory. The ring leaves room for the block of the next linear call, which fills its own
// ring with weights while this one ends and the small kernels between the two run: the memory does not wait for them.
//   Loads     the ninth warp, boxes of the copy engine: [kGroups][rows of the pass][64 inputs] of the weight and as many
//             inputs of the tokens; the first weights before the kernel that makes the tokens has ended
//   Products  eight warps. kGroups = 8, few outputs: a warp takes 64 of a stage's 512 inputs, of all rows, and the sums of the
//             warps are added. kGroups = 1, many outputs: a warp takes every eighth 8 rows
//   Numerics  a row's bits depend on the row and the weight: tokens are the rows of the products, kGroups is chosen by the
//             weight's size, the sums of the warps are added in their order
//   Limit     2 N K bytes of weights, 4.3 TB/s
//   Residency 288 threads of 64 to 72 registers and 100 KB: what runs between two linear calls should fit beside both, in 24 K
//             registers a multiprocessor. Where it does not, a block goes beside its sibling elsewhere and the two take twice
//             as long: with norms of 126 registers x 256 threads a model of 8 layers took 1.30 ms a token, 1.13 without
//   Measured  (H200, us; four linear calls and six small kernels in a chain: 225.6 MB, limit 52.4; linear_decode_sm80 in turn)
//               tokens                    1      8     16     32     64
//               linear_decode_sm80     78.8  109.4  113.9  146.3  264.2
//               this                   70.4   72.8   78.7   85.5  134.9
//             N x K, alone, 1 and 8 tokens (limit):  12,352 x 2,560 (14.7) 17.2, 17.7;  2,560 x 4,096 (4.9) 7.3, 7.3;
//             18,432 x 2,560 (21.9) 24.1, 24.9;  2,560 x 9,216 (11.0) 13.2, 13.5;  248,320 x 2,560 (296) 298, 303
//   Tried     1 KB copies without boxes: 2.4 TB/s; tokens by ordinary loads: 26 us for 12,352 outputs of 8 tokens; rings of
//             40, 60, 75 KB: 0 to 15 % slower; two or three stages before the tokens: the same; weights without leave_first(): 4 %
#pragma once

#include "backends/cuda/linear_args_sm80.cuh"
#include "backends/cuda/sm90_instructions.cuh"

namespace cairn::gpu::sm90 {

inline constexpr int kLinearWarps = 8, kLinearThreads = (kLinearWarps + 1) * 32, kLinearMostStages = 8;

struct LinearDecodeArgs {
  CUtensorMap weight, tokens;  ///< see encode_row_slabs
  LinearBf16Args call;
  int pass_rows, box_tokens;   ///< of a box
  int stages, stage_bytes, token_bytes;  ///< where a stage's tokens begin: behind its weights
};

/// How many inputs a stage holds, in 64s, and how many rows: of a warp's kTiles times 8.
template <int kInputGroups, int kTokenTiles>
struct LinearDecodeForm {
  static constexpr int kTiles = kInputGroups == 1 ? 3 : 4, kRowGroups = kLinearWarps / kInputGroups;
  static constexpr int kMostRows = kTiles * 8 * kRowGroups, kTokens = kTokenTiles * 8;
  static constexpr int kRingBytes = (kTokenTiles <= 2 ? 90 : 190) * 1024;  ///< two blocks of few tokens lie side by side
  static constexpr int kSumTokens = kTokenTiles == 1 ? 8 : 16;  ///< whose sums leave together
  struct Shared {
    unsigned char ring[kRingBytes];
    float sums[kInputGroups][kMostRows][kSumTokens + 1];
    std::uint64_t full[kLinearMostStages], empty[kLinearMostStages];
  };
};

/// The rows of a block, and in how many passes it takes them.
struct LinearRows {
  int first, count, passes;
  __device__ explicit LinearRows(const LinearDecodeArgs& args) {
    const auto place = [&](unsigned block) { return static_cast<int>(std::int64_t{args.call.out_dim} * block / gridDim.x); };
    first = place(blockIdx.x), count = place(blockIdx.x + 1) - first, passes = (count + args.pass_rows - 1) / args.pass_rows;
  }
};

/// One thread: fills the ring.
template <int kInputGroups, class Shared>
__device__ __forceinline__ void fill_ring(const LinearDecodeArgs& args, const LinearRows& rows, int first_token, int slabs,
                                          Shared& shared) {
  const int bytes = (args.pass_rows + args.box_tokens) * kInputGroups * 128, steps = rows.passes * slabs;
  const std::uint32_t ring = shared_address(shared.ring);
  const std::uint64_t once = leave_first();
  const auto load_weights = [&](int stage, int pass, int slab) {
    const std::uint32_t full = shared_address(&shared.full[stage]);
    barrier_expect(full, bytes);
    load_slab(ring + stage * args.stage_bytes, &args.weight, rows.first + pass * args.pass_rows, slab * kInputGroups, full, once);
  };
  const auto load_tokens = [&](int stage, int slab) {
    load_slab(ring + stage * args.stage_bytes + args.token_bytes, &args.tokens, first_token, slab * kInputGroups,
              shared_address(&shared.full[stage]));
  };
  const int early = min(args.stages, steps);
  int pass = 0, slab = 0, stage = 0, parity = 0;
  for (int i = 0; i < early; ++i) {
    load_weights(i, pass, slab);
    if (++slab == slabs) slab = 0, ++pass;
  }
  prefetch_map(&args.tokens);
  wait_for_previous_kernel();
  for (int i = 0; i < early; ++i) load_tokens(i, i % slabs);
  for (int step = early; step < steps; ++step) {
    barrier_wait(shared_address(&shared.empty[stage]), parity);
    load_weights(stage, pass, slab);
    load_tokens(stage, slab);
    if (++slab == slabs) slab = 0, ++pass;
    if (++stage == args.stages) stage = 0, parity ^= 1;
  }
}

template <int kInputGroups, int kTokenTiles>
__global__ void __launch_bounds__(kLinearThreads, kTokenTiles == 1 ? 3 : kTokenTiles == 2 ? 2 : 1)
    linear_decode_sm90_kernel(const __grid_constant__ LinearDecodeArgs launched) {
  using Form = LinearDecodeForm<kInputGroups, kTokenTiles>;
  constexpr int kPairs = (kTokenTiles + 1) / 2, kTiles = Form::kTiles;
  const std::uint32_t dynamic = shared_address(dynamic_shared()), ring = (dynamic + 1023) / 1024 * 1024;
  auto& shared = *reinterpret_cast<typename Form::Shared*>(dynamic_shared() + (ring - dynamic));
  let_next_kernel_start();
  const LinearBf16Args& args = launched.call;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const LinearRows rows(launched);
  const int slabs = (args.in_dim + kInputGroups * 64 - 1) / (kInputGroups * 64);
  const int first_token = static_cast<int>(blockIdx.y) * Form::kTokens;
  if (threadIdx.x == kLinearWarps * 32) {
    for (int i = 0; i < launched.stages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), kLinearWarps);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (warp == kLinearWarps) {
    if (lane == 0) fill_ring<kInputGroups>(launched, rows, first_token, slabs, shared);
    return wait_for_previous_kernel();
  }

  // Of 8 rows or tokens, lane group g takes g / 2 + g % 2 * 4: what 8 lanes read together then lies in all banks.
  const int mine = lane / 8 + lane / 4 % 2 * 4, group = warp % kInputGroups, first_tile = warp / kInputGroups;
  std::uint32_t weight_place[kTiles], token_place[kTokenTiles];
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
    const int row = (first_tile + r * Form::kRowGroups) * 8 + mine;
    weight_place[r] = ring + swizzled(group * launched.pass_rows + min(row, launched.pass_rows - 1), lane % 4);
  }
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    const int line = group * launched.box_tokens + min(t * 8 + mine, launched.box_tokens - 1);
    token_place[t] = ring + launched.token_bytes + swizzled(line, lane % 4);
  }
  wait_for_previous_kernel();

  float sums[kPairs][kTiles][4];
  int row = rows.first, count = 0, stage = 0, parity = 0;
  const int thread = static_cast<int>(threadIdx.x);
  float before = 0;
  const auto begin_pass = [&](int pass) {
    row = rows.first + pass * launched.pass_rows, count = min(launched.pass_rows, rows.first + rows.count - row);
#pragma unroll
    for (int i = 0; i < kPairs * kTiles * 4; ++i) sums[i / 4 / kTiles][i / 4 % kTiles][i % 4] = 0;
    if (kInputGroups > 1 && kTokenTiles == 1 && thread < count * 8) {
      before = read_output(args, first_token + thread / count, row + thread % count);
    }
  };
  const auto multiply = [&] {
    barrier_wait(shared_address(&shared.full[stage]), parity);
    const std::uint32_t offset = stage * launched.stage_bytes;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      uint4 x[kPairs * 2];
#pragma unroll
      for (int t = 0; t < kPairs * 2; ++t) {
        x[t] = t < kTokenTiles ? load_shared_16((token_place[t < kTokenTiles ? t : 0] ^ (p * 64)) + offset) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        if ((first_tile + r * Form::kRowGroups) * 8 >= count) continue;
        const uint4 w = load_shared_16((weight_place[r] ^ (p * 64)) + offset);
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const uint4 upper = x[2 * pair], lower = x[2 * pair + 1];
          const std::uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
          multiply_16x8(sums[pair][r], first, w.x, w.y);
          multiply_16x8(sums[pair][r], second, w.z, w.w);
        }
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[stage]));
    if (++stage == launched.stages) stage = 0, parity ^= 1;
  };
  const auto end_pass = [&] {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      warps_barrier();  // the sums before have been read
#pragma unroll
      for (int i = 0; i < kTiles * 4; ++i) {
        const int out = (first_tile + i / 4 * Form::kRowGroups) * 8 + lane % 4 + i % 2 * 4, token = i % 4 / 2 * 8 + mine;
        if (token < Form::kSumTokens) shared.sums[group][out][token] = sums[pair][i / 4][i % 4];
      }
      warps_barrier();
      for (int i = thread; i < count * Form::kSumTokens; i += kLinearWarps * 32) {
        const int out = i % count, token = i / count;
        float sum = 0;
#pragma unroll
        for (int g = 0; g < kInputGroups; ++g) sum += shared.sums[g][out][token];
        if constexpr (kInputGroups > 1 && kTokenTiles == 1) {
          finish(args, first_token + token, row + out, sum, before);
        } else {
          finish(args, first_token + pair * 16 + token, row + out, sum);
        }
      }
    }
  };
  for (int pass = 0; pass < rows.passes; ++pass) {
    begin_pass(pass);
    for (int slab = 0; slab < slabs; ++slab) multiply();
    end_pass();
  }
}

}  // namespace cairn::gpu::sm90
