// linear, few tokens, on sm_90: a block for each multiprocessor takes neighbouring outputs and streams their weights, and the
// tokens, through a ring in shared memory. It fills the ring with weights as soon as the block of the linear call before it
// has left, while the small kernels between the two run.
//   Loads     the ninth warp, boxes of the copy engine: [kGroups][rows of the pass][64 inputs] of the weight and as many
//             inputs of the tokens; the first weights before the kernel that makes the tokens has ended
//   Products  eight warps. kGroups = 8, few outputs: a warp takes 64 of a stage's 512 inputs, of all rows, and the sums of the
//             warps are added. kGroups = 1, many outputs: a warp takes every eighth 8 rows, of more than 32 tokens every
//             fourth and half of the tokens
//   Numerics  a row's bits depend on the row and the weight: tokens are the rows of the products, kGroups is chosen by the
//             weight's size, the sums of the warps are added in their order
//   Limit     2 N K bytes of weights, 4.3 TB/s
//   Residency more than half the shared memory, so that two blocks of a call never share a multiprocessor. With
//             rings of 90 KB the next call's block lay beside this one's, but wherever a small kernel between them took
//             its room it went beside its sibling elsewhere, which then took twice as long
//   Measured  (H200) a decode step of a 4B model (Qwen3.5 shape, 8.41 GB, limit 1.96 ms), ms, 1 and 8 tokens, one run:
//             rings of 90 KB 3.50, 3.51; of 118 KB 2.95, 3.57; of 150 KB 2.91, 3.45. linear_decode_sm80: 3.39, 4.89 (another
//             day, older small kernels)
//             Weights asked for before the block's first barrier, no 64-bit divisions, swiglu inside: 2.65, 3.26, where the
//             form before read 2.79, 3.36 in turns (another machine). A layer's four calls and six small kernels in a chain
//             (limit 52.4 us): 65.1, 69.6; without swiglu 66.7, 71.3; before 68.5, 71.5. Of the loss against the limit about
//             2.2 us a call lie between its last products and the next call's first weights
//             Four linear calls and six small kernels in a chain, rings of 90 KB (us; 225.6 MB, limit 52.4; in turns):
//               tokens                    1      8     16     32     64
//               linear_decode_sm80     78.8  109.4  113.9  146.3  264.2
//               this                   70.4   72.8   78.7   85.5  134.9
//             N x K, alone, 1 and 8 tokens (limit):  12,352 x 2,560 (14.7) 17.2, 17.7;  2,560 x 4,096 (4.9) 7.3, 7.3;
//             18,432 x 2,560 (21.9) 24.1, 24.9;  2,560 x 9,216 (11.0) 13.2, 13.5;  248,320 x 2,560 (296) 298, 303
//             64 tokens, half of them a warp: 33.5 us for 34.4 (9,728 x 2,560), 39.7 for 46.4 (18,432), 450 for 483
//             (248,320), predicted three quarters; 32 tokens 23.7 for 22.2, not taken. cuBLASLt, whose bits depend on the
//             batch: 16.0 for 64 tokens of 9,728 x 2,560, 17.8 of 2,560 x 9,728 (this 26.2)
//   Tried     1 KB copies without boxes: 2.4 TB/s; tokens by ordinary loads: 26 us for 12,352 outputs of 8 tokens; the last
//             warp brings the next call's first 118 or 150 KB a block into L2: 2 to 4 % slower; its own next boxes too: 6 %
//             slower; weights without leave_first(): 4 % slower; the norms inside the calls: 1 us a layer slower with 1 token, 6
//             to 25 with 8 (the loads of x queue behind the ring's); rings of 120 to 200 KB, uneven shares of rows: no change
#pragma once

#include "backends/cuda/linear_args_sm80.cuh"
#include "backends/cuda/sm90_instructions.cuh"

namespace cairn::gpu::sm90 {

inline constexpr int kLinearWarps = 8, kLinearThreads = (kLinearWarps + 1) * 32, kLinearMostStages = 10;

/// A weight in boxes of [groups][parts][pass_rows][64 inputs], and how blocks take them: with two parts, gate and up, an output
/// belongs to two rows of the weight.
struct LinearBoxes {
  CUtensorMap rows;
  int block_rows, blocks_with_one_more;  ///< of one part
  int pass_rows, passes, slabs;          ///< passes: of a block with one more
};

struct LinearDecodeArgs {
  LinearBoxes weight;
  CUtensorMap tokens;
  LinearBf16Args call;
  int box_tokens;
  int stages, stage_bytes, token_bytes;  ///< where a stage's tokens begin: behind its weights
};

/// How many inputs a stage holds, in 64s, and how many rows: of a warp's kTiles times 8.
template <int kInputGroups, int kTokenTiles>
struct LinearDecodeForm {
  /// Warps that have the same rows, each with its part of many tokens.
  static constexpr int kTokenParts = kInputGroups == 1 && kTokenTiles == 8 ? 2 : 1, kWarpTokenTiles = kTokenTiles / kTokenParts;
  static constexpr int kTiles = kInputGroups == 1 ? 3 * kTokenParts : 4, kRowGroups = kLinearWarps / kInputGroups / kTokenParts;
  static constexpr int kMostRows = kTiles * 8 * kRowGroups, kTokens = kTokenTiles * 8;
  static constexpr int kRingBytes = (kTokenTiles <= 2 ? 150 : 194) * 1024;
  static constexpr int kSumTokens = kTokenTiles == 1 ? 8 : 16;  ///< of a part, whose sums leave together
  struct Shared {  ///< behind the ring
    float sums[kInputGroups][kMostRows][kTokenParts * kSumTokens + 1];
    std::uint64_t full[kLinearMostStages], empty[kLinearMostStages];
  };
};

/// The rows of this block, and in how many passes it takes them.
struct LinearRows {
  int first, count, passes;
  __device__ explicit LinearRows(const LinearBoxes& weight) {
    const int block = static_cast<int>(blockIdx.x), more = weight.blocks_with_one_more;
    first = block * weight.block_rows + min(block, more);
    count = weight.block_rows + (block < more);
    passes = weight.passes - (count <= (weight.passes - 1) * weight.pass_rows);
  }
};

/// One thread: makes the ring and keeps it full.
template <int kInputGroups, int kParts, class Shared>
struct LinearRing {
  const LinearDecodeArgs& args;
  const LinearRows& rows;
  Shared& shared;
  std::uint32_t ring;
  int first_token, pass = 0, slab = 0;

  /// The next weights on their way.
  __device__ __forceinline__ void load_weights(int stage, std::uint64_t policy) {
    const std::uint32_t full = shared_address(&shared.full[stage]), to = ring + stage * args.stage_bytes;
    const int row = rows.first + pass * args.weight.pass_rows;
    barrier_expect(full, (kParts * args.weight.pass_rows + args.box_tokens) * kInputGroups * 128);
    if constexpr (kParts == 1) {
      load_slab(to, &args.weight.rows, row, slab * kInputGroups, full, policy);
    } else {
      load_slab_parts(to, &args.weight.rows, row, slab * kInputGroups, full, policy);
    }
    if (++slab == args.weight.slabs) slab = 0, ++pass;
  }
  __device__ __forceinline__ void load_tokens(int stage, int of_slab) {
    load_slab(ring + stage * args.stage_bytes + args.token_bytes, &args.tokens, first_token, of_slab * kInputGroups,
              shared_address(&shared.full[stage]));
  }
  __device__ __forceinline__ int steps() const { return rows.passes * args.weight.slabs; }
  /// Before anybody waits for a stage: barriers, and weights into every stage.
  __device__ __forceinline__ void begin() {
    prefetch_map(&args.weight.rows);
    for (int i = 0; i < args.stages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init_for_warps(shared_address(&shared.empty[i]), kLinearWarps);
    }
    fence_barrier_init();
    const std::uint64_t once = leave_first();
    for (int i = 0; i < min(args.stages, steps()); ++i) load_weights(i, once);
    prefetch_map(&args.tokens);
  }
  /// The tokens of those stages, and all that follows.
  __device__ __forceinline__ void go_on() {
    const std::uint64_t once = leave_first();
    const int early = min(args.stages, steps());
    wait_for_previous_kernel();
    for (int i = 0, token_slab = 0; i < early; ++i) {
      load_tokens(i, token_slab);
      if (++token_slab == args.weight.slabs) token_slab = 0;
    }
    for (int step = early, stage = 0, parity = 0; step < steps(); ++step) {
      barrier_wait(shared_address(&shared.empty[stage]), parity);
      const int of_slab = slab;
      load_weights(stage, once);
      load_tokens(stage, of_slab);
      if (++stage == args.stages) stage = 0, parity ^= 1;
    }
  }
};

/// swiglu of a gate and an up as linear stores them.
__device__ __forceinline__ void finish_swiglu(const LinearBf16Args& args, int token, int out, float gate, float up) {
  const int half = args.out_dim / 2;
  if (token >= args.token_count || out >= half) return;
  if (args.bias) gate += args.bias[out], up += args.bias[half + out];
  gate = load_element(to_bf16(gate)), up = load_element(to_bf16(up));
  store(args.out, DType::kBF16, token * args.out_stride + out, silu(gate) * up);
}

/// With few tokens it leaves registers for the small kernels that run beside it.
template <int kInputGroups, int kTokenTiles, int kParts>
__global__ void __launch_bounds__(kLinearThreads, kTokenTiles == 1 ? 3 : kTokenTiles == 2 ? 2 : 1)
    linear_decode_sm90_kernel(const __grid_constant__ LinearDecodeArgs launched) {
  using Form = LinearDecodeForm<kInputGroups, kTokenTiles>;
  constexpr int kWarpTokenTiles = Form::kWarpTokenTiles, kPairs = (kWarpTokenTiles + 1) / 2, kTiles = Form::kTiles;
  const std::uint32_t dynamic = shared_address(dynamic_shared()), ring = (dynamic + 1023) / 1024 * 1024;
  unsigned char* behind_ring = dynamic_shared() + (ring - dynamic) + launched.stages * launched.stage_bytes;
  auto& shared = *reinterpret_cast<typename Form::Shared*>(behind_ring);
  let_next_kernel_start();
  const LinearBf16Args& args = launched.call;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const LinearRows rows(launched.weight);
  const int pass_rows = launched.weight.pass_rows, box_rows = kParts * pass_rows, slabs = launched.weight.slabs;
  const int first_token = static_cast<int>(blockIdx.y) * Form::kTokens;
  LinearRing<kInputGroups, kParts, typename Form::Shared> filler{launched, rows, shared, ring, first_token};
  if (threadIdx.x == kLinearWarps * 32) filler.begin();
  __syncthreads();
  if (warp == kLinearWarps) {
    if (lane == 0) filler.go_on();
    return wait_for_previous_kernel();
  }

  // Of 8 rows or tokens, lane group g takes g / 2 + g % 2 * 4: what 8 lanes read together then lies in all banks.
  const int mine = lane / 8 + lane / 4 % 2 * 4, group = warp % kInputGroups;
  const int first_tile = warp / kInputGroups % Form::kRowGroups, part = warp / kInputGroups / Form::kRowGroups;
  std::uint32_t weight_place[kTiles], token_place[kWarpTokenTiles];
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
    const int row = (first_tile + r * Form::kRowGroups) * 8 + mine;
    weight_place[r] = ring + swizzled(group * box_rows + min(row, box_rows - 1), lane % 4);
  }
#pragma unroll
  for (int t = 0; t < kWarpTokenTiles; ++t) {
    const int token = (part * kWarpTokenTiles + t) * 8 + mine;
    const int line = group * launched.box_tokens + min(token, launched.box_tokens - 1);
    token_place[t] = ring + launched.token_bytes + swizzled(line, lane % 4);
  }
  wait_for_previous_kernel();

  float sums[kPairs][kTiles][4];
  int row = rows.first, count = 0, stage = 0, parity = 0;
  const int thread = static_cast<int>(threadIdx.x);
  float before = 0;
  // Output i of a pass and some tokens.
  const auto token_of = [&](int i) { return launched.box_tokens == 1 ? 0 : i / count; };
  const auto begin_pass = [&](int pass) {
    row = rows.first + pass * pass_rows, count = min(pass_rows, rows.first + rows.count - row);
#pragma unroll
    for (int i = 0; i < kPairs * kTiles * 4; ++i) sums[i / 4 / kTiles][i / 4 % kTiles][i % 4] = 0;
    if (kInputGroups > 1 && kTokenTiles == 1 && thread < count * launched.box_tokens) {
      const int token = token_of(thread);
      before = read_output(args, first_token + token, row + thread - token * count);
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
        x[t] = t < kWarpTokenTiles ? load_shared_16((token_place[t < kWarpTokenTiles ? t : 0] ^ (p * 64)) + offset)
                                   : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        if ((first_tile + r * Form::kRowGroups) * 8 >= (kParts == 1 ? count : box_rows)) continue;
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
    warp_arrive(shared_address(&shared.empty[stage]), lane);
    if (++stage == launched.stages) stage = 0, parity ^= 1;
  };
  const auto end_pass = [&] {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      warps_barrier();  // the sums before have been read
#pragma unroll
      for (int i = 0; i < kTiles * 4; ++i) {
        const int out = (first_tile + i / 4 * Form::kRowGroups) * 8 + lane % 4 + i % 2 * 4, token = i % 4 / 2 * 8 + mine;
        if (token < Form::kSumTokens) shared.sums[group][out][part * Form::kSumTokens + token] = sums[pair][i / 4][i % 4];
      }
      warps_barrier();
      const int sum_tokens = Form::kTokenParts > 1 ? Form::kTokenParts * Form::kSumTokens
                                                   : min(Form::kSumTokens, launched.box_tokens - pair * 16);
      for (int i = thread; i < count * sum_tokens; i += kLinearWarps * 32) {
        const int column = token_of(i), out = i - column * count;
        const auto sum_of = [&](int line) {
          float sum = 0;
#pragma unroll
          for (int g = 0; g < kInputGroups; ++g) sum += shared.sums[g][line][column];
          return sum;
        };
        const float sum = sum_of(out);
        const int of_part = pair * 16 + column % Form::kSumTokens;
        const int token = first_token + column / Form::kSumTokens * (kWarpTokenTiles * 8) + of_part;
        if constexpr (kParts == 2) {
          finish_swiglu(args, token, row + out, sum, sum_of(pass_rows + out));
        } else if constexpr (kInputGroups > 1 && kTokenTiles == 1) {
          finish(args, token, row + out, sum, before);
        } else {
          finish(args, token, row + out, sum);
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
