// gdn_heads: gdn_scan with a whole head in a block, for batches. It forms its scores and factors itself, so that
// gdn_intra reads no queries and writes T' and g alone.
//   Computes  as gdn_scan, the same sums in the same order: a sequence has the same bits whichever of the two runs
//   Launch    blocks of 4 warpgroups, one for each multiprocessor at most, early after gdn_intra; see for_each_segment
//             0, 1: 64 value columns each (208 registers): S -> X, Q S -> W -> S, O. S^T, X^T, W^T and O^T stay in
//             registers, every product has its left side there, and no warpgroup hands anything over but outputs
//             2: A' of up to two chunks ahead (72).  3: three warps: loads; stores; factors from g (24)
//   Shared    3 stages of K, Q, V, T' (54 KB) and factors, A' of 2 chunks, outputs of 2 chunks (32 KB)
//   Traffic   54 KB per chunk and head from L2; from memory 27 KB a token with 16 key and 32 value heads
//   Measured  (H200, gpu_gdn_bench, in turns with the form before) 8 x 8,192 tokens 683 to 699 us with gdn_intra, for
//             713; on other machines 711 for 749, 697 to 713, 674 to 683; with gdn_intra in f16 660 to 686. 4 x 8,192
//             303 to 354 for 327 to 378; 2 x 8,192 205 for 217. The form with A' from gdn_intra and outputs by a
//             warpgroup of their own took 884
//   Limit     3,000 cycles a chunk, of which products take 2,280. Beside them little is free: of 64 cycles of two
//             64x64x16 products 16 can issue something else, each further FMUL, FADD, IADD or F2FP delays the next
//             product by a cycle (measured alone). And energy: a batch runs at 1.42 GHz, where 2 sequences have 1.78,
//             so that dealing work out evenly (windows) saves time only where multiprocessors were idle before
//   Steps     (us, 8 x 8,192, one run each, beside the form before at 530 to 600) outputs by the chains and scores by a
//             third warpgroup, which also loads: 764; loads two chunks ahead: 628 to 601; X as one product of 64
//             tokens: 602 to 597; a warp of its own for loads and stores, scores of 64 columns (two of 32: 11 %
//             slower): 587 to 597; the state rounded in two halves: 591 to 603; K and Q as one operand of 128 rows: 585
//             to 593
//             W in place of U', one operand for S and O, and A' without gates in most chunks (see gdn_intra), 200 of
//             1,400 instructions fewer: predicted 0.93 of the time, measured 577 for 617. Operands of one addition, S
//             decayed while X is multiplied, R in two parts: 567. O of tokens 0 to 31 without the columns of A' that
//             are zero: 563. It is the count of instructions that tells, hardly their order
//   Tried     loads, waits for scores and for room asked for before the products that they do not belong to: 592 to
//             653 where this took 564. Loads by two warps, one group of products in place of two, S decayed in two
//             parts or after the wait, other addresses of the code (0.5 to 6 KB on): the same within 1 %. K's products
//             across the end of the loop, T' as operands of 64 and of 32 rows into the same sums: ptxas serialises.
//             S kept as 2^-e S, so that neither it nor the scores need gates (250 of 1,500 instructions fewer): right,
//             616 where 573, and gdn_scan 548 where 517; why is not shown. Q S asked for before U': 622 where 611.
//             Scores formed by the warpgroup of the outputs: 670 to 690. Windows of single heads, so that heads of a
//             key drift apart: 752 together where 712. Heads of a key as a cluster, K and Q loaded to both: 675 where
//             559. Beside gdn_intra by flags: 1,058 to 1,530 where one after the other took 1,050. A bulk prefetch of
//             token rows to L2: 20 % slower. The halves as a cluster: 1,280 where 675
#pragma once

#include "backends/cuda/gdn_heads_roles_sm90.cuh"

namespace cairn::gpu::sm90 {

inline constexpr int kHeadsThreads = 512;

/// The tile of outputs [64 tokens x 64 columns] to the storing thread; the last tokens of a sequence, if they fill no
/// chunk, to memory.
__device__ __forceinline__ void give_outputs(const GdnPrefillArgs& a, const ScanPlace& place, ChunkRows rows,
                                             std::uint32_t tile, std::uint32_t done, int warp, int lane) {
  fence_engines();
  warp_arrive(done, lane);
  if (rows.count == kChunk) return;
  warpgroup_barrier(1 + place.half);
  const int first = 16 * warp + lane / 8;
  const int column = place.head * kDim + 64 * place.half + 8 * (lane % 8);
  unsigned short* out = a.out + (rows.first + first) * a.out_stride + column;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 data = load_shared_16(tile + swizzled(first + 4 * i, lane % 8));
    if (first + 4 * i < rows.count) store_global_16(out + 4 * i * a.out_stride, data);
  }
  warpgroup_barrier(1 + place.half);  // all have read
}

/// W, S and O of 64 value columns.
__device__ __forceinline__ void run_half(const GdnPrefillArgs& a, HeadsShared& shared, int block, int half,
                                         int thread) {
  const int warp = uniform_warp() % 4, lane = thread % 32;
  const std::uint32_t v_at = swizzled(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
  RingPlace<kHeadsStages> at;
  int turn = 0;
  for_each_segment(a, block, [&](const HeadsSegment& segment) {
    ScanPlace place = segment.place;
    place.half = half;
    float* state = a.states[place.sequence] + state_offset(place) + first_state_element(warp, lane);
    float s[64], xo[64], w[2][16];  // xo: (K S)^T, then (Q S)^T
    std::uint32_t rounded[8][4];
    if (segment.from > place.begin) {  // begun by a block before this one, which waits for nobody
      if (thread == 0) {
        while (read_published(state_left(a, block - heads_side_by_side(a), half)) == 0) __nanosleep(100);
      }
      warpgroup_barrier(1 + half);
    }
    for_each_state_distance([&](int i, int distance) { s[i] = __ldcg(state + distance); });
    round_state(s, rounded);
    const auto wait_for_tiles = [&](int chunk) {
      barrier_wait(shared_address(&shared.full[at.index]), at.parity);
      const int count = place.rows(chunk).count;
      if (count == kChunk) return;
      // Each half clears the keys for itself; the other one may still read them, but zeros where these come.
      HeadsStage& to = shared.stages[at.index];
      clear_rows(to.kq[0][0], to.kq[1][0], to.v[half], count, thread);
      warpgroup_barrier(1 + half);
    };
    // Where there is time: not in form_deltas, whose multiplications ptxas would move past the wait for X.
    const auto decay_state = [&](float decay) {
#pragma unroll
      for (int i = 0; i < 64; ++i) s[i] *= decay;
      pin(s);
    };
    const auto form_deltas = [&] {
      const HeadsStage& now = shared.stages[at.index];
      const std::uint32_t v = shared_address(now.v[half]);
      const HeadsOperands operands(now);
      float2 in[8];
      std::uint32_t value[4][4], r[4][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) load_transposed(value[j], v + 16 * 128 * j + v_at);
      load_factors(shared.factors[at.index].in, lane, in);
      products_wait<0>();
      pin(xo);
      const float(&x)[32] = reinterpret_cast<const float(&)[32]>(xo);
      subtract_recalled<0, 2>(value, in, x, r);
      products_begin();
#pragma unroll
      for (int i = 0; i < 2; ++i) multiply_64x32(w[0], r[i], upper_columns(operands.inverse(), i), i > 0);
#pragma unroll
      for (int i = 0; i < 2; ++i) multiply_64x32(w[1], r[i], lower_columns(operands.inverse(), i), i > 0);
      products_commit();
      subtract_recalled<2, 4>(value, in, x, r);
      pin(r[2]), pin(r[3]);
      products_begin();
#pragma unroll
      for (int i = 2; i < 4; ++i) multiply_64x32(w[1], r[i], lower_columns(operands.inverse(), i), 1);
      products_commit();
      products_wait<0>();
      pin(w[0]), pin(w[1]);
    };
    wait_for_tiles(segment.from);
    const HeadsOperands first(shared.stages[at.index]);
    products_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i) multiply_64x128(xo, rounded[i], first.keys(i), i > 0);
    products_commit();
    decay_state(shared.factors[at.index].in[kChunk - 1]);
    form_deltas();
    int used = 0;
    for (int chunk = segment.from; chunk < segment.to; ++chunk, ++turn) {
      const bool has_next = chunk + 1 < segment.to;
      const int slot = turn & 1, parity = turn >> 1 & 1;
      HeadsStage& now = shared.stages[at.index];
      const HeadsOperands operands(now);
      const ChunkFactors& factors = shared.factors[at.index];
      float2 read[8];
      std::uint32_t deltas[4][4];
      round_sums(w[0], 0, deltas[0]), round_sums(w[0], 1, deltas[1]);
      products_begin();
#pragma unroll
      for (int i = 0; i < 2; ++i) multiply_64x128_transposed(s, deltas[i], operands.transposed_keys(i));
      products_commit();
      round_sums(w[1], 0, deltas[2]), round_sums(w[1], 1, deltas[3]);
      products_begin();
#pragma unroll
      for (int i = 2; i < 4; ++i) multiply_64x128_transposed(s, deltas[i], operands.transposed_keys(i));
      products_commit();
      load_factors(factors.read, lane, read);
      float o[2][16];  // of tokens 0 to 31, 32 to 63
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float* const to = o[j / 4] + 4 * (j % 4);
        to[0] = xo[32 + 4 * j] * read[j].x, to[1] = xo[33 + 4 * j] * read[j].y;
        to[2] = xo[34 + 4 * j] * read[j].x, to[3] = xo[35 + 4 * j] * read[j].y;
      }
      pin(o[0]), pin(o[1]);
      barrier_wait(shared_address(&shared.scores_ready[slot]), parity);
      products_begin();
#pragma unroll
      for (int i = 0; i < 2; ++i) multiply_64x32(o[0], deltas[i], tile_columns(shared.scores[slot], i), 1);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        multiply_64x32(o[1], deltas[i], tile_columns(shared.scores[slot] + kTileBytes / 2, i), 1);
      products_commit();
      used = at.index;
      if (has_next) {
        at.advance();
        wait_for_tiles(chunk + 1);
      }
      products_wait<1>();
      pin(s);
      // The next products of the state begin with half of it rounded. After the last chunk they are of that chunk
      // again, for nothing.
      const HeadsOperands next(shared.stages[at.index]);
#pragma unroll
      for (int i = 0; i < 4; ++i) round_sums(s, i, rounded[i]), pin(rounded[i]);
      barrier_wait(shared_address(&shared.out_free[slot]), parity ^ 1);
      const std::uint32_t out_tile = shared_address(shared.out[slot][half]);
      products_wait<0>();
      pin(o[0]), pin(o[1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t m[4];
        round_sums(o[i / 2], i % 2, m);
        store_transposed(out_tile + 16 * 128 * i + v_at, m);
      }
      products_begin();
#pragma unroll
      for (int i = 0; i < 4; ++i) multiply_64x128(xo, rounded[i], next.keys(i), i > 0);
      products_commit();
#pragma unroll
      for (int i = 4; i < 8; ++i) round_sums(s, i, rounded[i]), pin(rounded[i]);
      products_begin();
#pragma unroll
      for (int i = 4; i < 8; ++i) multiply_64x128(xo, rounded[i], next.keys(i), 1);
      products_commit();
      if (chunk + 1 < place.end) keep_checkpoint(a, place, chunk + 1 - place.begin, s, warp, lane);
      if (has_next) {
        warp_arrive(shared_address(&shared.empty[used]), lane);
        decay_state(shared.factors[at.index].in[kChunk - 1]);
      }
      give_outputs(a, place, place.rows(chunk), out_tile, shared_address(&shared.chunk_done[slot]), warp, lane);
      form_deltas();
    }
    warp_arrive(shared_address(&shared.empty[used]), lane);
    at.advance();
    for_each_state_distance([&](int i, int distance) { state[distance] = s[i]; });
    if (segment.to < place.end) {  // to be finished by another block
      warpgroup_barrier(1 + half);
      if (thread == 0) publish(state_left(a, block, half), 1);
    }
  });
}

__global__ void __launch_bounds__(kHeadsThreads, 1) gdn_heads_kernel(const __grid_constant__ GdnPrefillArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  HeadsShared& shared = *reinterpret_cast<HeadsShared*>(memory);
  const int group = uniform_warp() / 4, thread = threadIdx.x % 128;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kHeadsStages; ++i) {
      barrier_init(shared_address(&shared.gates[i]), 1);
      barrier_init(shared_address(&shared.full[i]), 1 + kArrivingLanes);
      barrier_init_for_warps(shared_address(&shared.empty[i]), 12);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init_for_warps(shared_address(&shared.scores_ready[i]), 4);
      barrier_init_for_warps(shared_address(&shared.chunk_done[i]), 8);
      barrier_init(shared_address(&shared.out_free[i]), 1);
    }
    fence_barrier_init();
  }
  for (int i = 0; i < kHeadsStages; ++i) clear_zeros(shared.stages[i].inverse, threadIdx.x);
  fence_engines();
  wait_for_previous_kernel();
  if (threadIdx.x == 0) shared.block = atomicAdd(a.work.ready + 2 * gridDim.x, 1);
  __syncthreads();
  const int block = __shfl_sync(0xffffffffu, shared.block, 0);
  if (group < 2) {
    set_registers_up<208>();
    run_half(a, shared, block, group, thread);
  } else if (group == 2) {
    set_registers_down<72>();
    run_scores(a, shared, block, thread);
  } else {
    set_registers_down<24>();
    if (thread == 0) load_chunks(a, shared, block);
    if (thread == 32) store_chunks(a, shared, block);
    if (thread / 32 == 2) form_factors(a, shared, block, thread % 32);
  }
}

}  // namespace cairn::gpu::sm90
