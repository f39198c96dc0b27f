// linear, few tokens, on sm_90: a block for each multiprocessor takes neighbouring outputs and streams their weights, and the
// tokens, through a ring in shared memory. It fills the ring with weights as soon as the block of the linear call before it
// has left, while the small kernels between the two run.
//   Loads     the ninth warp, boxes of the copy engine: [kGroups][rows of the pass][64 inputs] of the weight and as many
//             inputs of the tokens; the first weights before the kernel that makes the tokens has ended
//   Products  eight warps. kGroups = 8, few outputs: a warp takes 64 of a stage's 512 inputs, of all rows, and the sums of the
//             warps are added. kGroups = 1, many outputs: a warp takes every eighth 8 rows
//   Numerics  a row's bits depend on the row and the weight: tokens are the rows of the products, kGroups is chosen by the
//             weight's size, the sums of the warps are added in their order
//   Limit     2 N K bytes of weights, 4.3 TB/s
//   Residency more than half the shared memory, so that two blocks of a call never share a multiprocessor. With
//             rings of 90 KB the next call's block lay beside this one's, but wherever a small kernel between them took
//             its room it went beside its sibling elsewhere, which then took twice as long
//   Measured  (H200) a decode step of a 4B model (Qwen3.5 shape, 8.41 GB, limit 1.96 ms), ms, 1 and 8 tokens, one run:
//             rings of 90 KB 3.50, 3.51; of 118 KB 2.95, 3.57; of 150 KB 2.91, 3.45. linear_decode_sm80: 3.39, 4.89 (another
//             day, older small kernels)
//             Four linear calls and six small kernels in a chain, rings of 90 KB (us; 225.6 MB, limit 52.4; in turns):
//               tokens                    1      8     16     32     64
//               linear_decode_sm80     78.8  109.4  113.9  146.3  264.2
//               this                   70.4   72.8   78.7   85.5  134.9
//             N x K, alone, 1 and 8 tokens (limit):  12,352 x 2,560 (14.7) 17.2, 17.7;  2,560 x 4,096 (4.9) 7.3, 7.3;
//             18,432 x 2,560 (21.9) 24.1, 24.9;  2,560 x 9,216 (11.0) 13.2, 13.5;  248,320 x 2,560 (296) 298, 303
//   Tried     1 KB copies without boxes: 2.4 TB/s; tokens by ordinary loads: 26 us for 12,352 outputs of 8 tokens; the last
//             warp brings the next call's first 118 or 150 KB a block into L2: 2 to 4 % slower; its own next boxes too: 6 %
//             slower; weights without leave_first(): 4 % slower; the norms and swiglu inside the calls: 68.4 to 67.8 us a
//             layer with 1 token, 71.0 to 77.7 with 8
#pragma once

#include "backends/cuda/linear_args_sm80.cuh"
#include "backends/cuda/sm90_instructions.cuh"

namespace cairn::gpu::sm90 {

inline constexpr int kLinearWarps = 8, kLinearThreads = (kLinearWarps + 1) * 32, kLinearMostStages = 10;

/// A weight in boxes of [groups][pass_rows][64 inputs] (encode_row_slabs), and how blocks take them.
struct LinearBoxes {
  CUtensorMap rows;
  int out_dim, pass_rows, slabs;

  /// The first row of a block; of the block behind the last: the number of rows.
  __device__ int first_row(unsigned block) const { return static_cast<int>(std::int64_t{out_dim} * block / gridDim.x); }
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
  static constexpr int kTiles = kInputGroups == 1 ? 3 : 4, kRowGroups = kLinearWarps / kInputGroups;
  static constexpr int kMostRows = kTiles * 8 * kRowGroups, kTokens = kTokenTiles * 8;
  static constexpr int kRingBytes = (kTokenTiles <= 2 ? 150 : 194) * 1024;
  static constexpr int kSumTokens = kTokenTiles == 1 ? 8 : 16;  ///< whose sums leave together
  struct Shared {  ///< behind the ring
    float sums[kInputGroups][kMostRows][kSumTokens + 1];
    std::uint64_t full[kLinearMostStages], empty[kLinearMostStages];
  };
};

/// The rows of this block, and in how many passes it takes them.
struct LinearRows {
  int first, count, passes;
  __device__ explicit LinearRows(const LinearBoxes& weight)
      : first(weight.first_row(blockIdx.x)),
        count(weight.first_row(blockIdx.x + 1) - first),
        passes((count + weight.pass_rows - 1) / weight.pass_rows) {}
};

/// One thread: fills the ring.
template <int kInputGroups, class Shared>
__device__ __forceinline__ void fill_ring(const LinearDecodeArgs& args, const LinearRows& rows, int first_token,
                                          std::uint32_t ring, Shared& shared) {
  const LinearBoxes& weight = args.weight;
  const int slabs = weight.slabs, steps = rows.passes * slabs;
  const int bytes = (weight.pass_rows + args.box_tokens) * kInputGroups * 128;
  const std::uint64_t once = leave_first();
  const auto load_weights = [&](int stage, int pass, int slab) {
    const std::uint32_t full = shared_address(&shared.full[stage]);
    barrier_expect(full, bytes);
    load_slab(ring + stage * args.stage_bytes, &weight.rows, rows.first + pass * weight.pass_rows, slab * kInputGroups, full, once);
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

/// With few tokens it leaves registers for the small kernels that run beside it.
template <int kInputGroups, int kTokenTiles>
__global__ void __launch_bounds__(kLinearThreads, kTokenTiles == 1 ? 3 : kTokenTiles == 2 ? 2 : 1)
    linear_decode_sm90_kernel(const __grid_constant__ LinearDecodeArgs launched) {
  using Form = LinearDecodeForm<kInputGroups, kTokenTiles>;
  constexpr int kPairs = (kTokenTiles + 1) / 2, kTiles = Form::kTiles;
  const std::uint32_t dynamic = shared_address(dynamic_shared()), ring = (dynamic + 1023) / 1024 * 1024;
  unsigned char* behind_ring = dynamic_shared() + (ring - dynamic) + launched.stages * launched.stage_bytes;
  auto& shared = *reinterpret_cast<typename Form::Shared*>(behind_ring);
  let_next_kernel_start();
  const LinearBf16Args& args = launched.call;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const LinearRows rows(launched.weight);
  const int pass_rows = launched.weight.pass_rows, slabs = launched.weight.slabs;
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
    if (lane == 0) fill_ring<kInputGroups>(launched, rows, first_token, ring, shared);
    return wait_for_previous_kernel();
  }

  // Of 8 rows or tokens, lane group g takes g / 2 + g % 2 * 4: what 8 lanes read together then lies in all banks.
  const int mine = lane / 8 + lane / 4 % 2 * 4, group = warp % kInputGroups, first_tile = warp / kInputGroups;
  std::uint32_t weight_place[kTiles], token_place[kTokenTiles];
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
    const int row = (first_tile + r * Form::kRowGroups) * 8 + mine;
    weight_place[r] = ring + swizzled(group * pass_rows + min(row, pass_rows - 1), lane % 4);
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
    row = rows.first + pass * pass_rows, count = min(pass_rows, rows.first + rows.count - row);
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
