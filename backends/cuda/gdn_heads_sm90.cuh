// gdn_heads: gdn_scan with a whole head in a block, for batches: the halves share the tiles of K, Q, T' and A'.
//   Computes  as gdn_scan, the same sums in the same order: a sequence has the same bits whichever of the two runs
//   Launch    one block of 4 warpgroups for each (sequence, value head), early after gdn_intra.
//             0, 1: the chains of 64 value columns each (184 registers); a chunk in two halves of 32 tokens
//             2: the outputs of both (120)
//             3: two threads, each loads a ring of tiles (24)
//   Shared    3 stages of K, V, T' (38 KB), 2 of Q and A' (22 KB), S^T and U'^T of both halves (48 KB), outputs 16 KB
//   Traffic   60 KB per chunk and head from L2; from memory 30 KB a token, 2.0 GB for 65,536
//   Measured  (H200, one run, in turns) 8 x 8,192 tokens 564 us, 648 before; with gdn_intra 894, before 1,117: predicted
//             700. 4 x 8,192 tokens 457, before 563. What helped: outputs by the copy engine, operands from uniform
//             registers (see gdn_scan), T' without zeros; A' without zeros and a second tile of outputs 1 % more
//   Tried     A' formed here from Q K^T, with 27 KB a token and gdn_intra at 190 us: 670 us at the start of a chunk, 682
//             after the products with S; with gdn_intra 839 and 876 where this form has 869 and 871 (two runs), for
//             4 x 8,192 tokens 418 and 437. The 8 products cost 120 us, more than 256 cycles of the matrix engine and
//             32 KB of shared memory explain. The same with Q in registers: 690. S handed over before the products with
//             it: 545 to 556 where this order has 528 to 540.
//             Beside gdn_intra by flags, with 64, 86 or 96 blocks at a time, gdn_intra in the order of these waves:
//             1,058 to 1,530 us where one after the other took 1,050 to 1,120 (same run): gdn_intra starves it.
//             A bulk prefetch of whole token rows to L2, 4 chunks ahead: 722 to 751 us, 585 to 654 without.
//             As gdn_scan for batch 1 (one half in a block, these rings and halves of 32 tokens): 675 us where gdn_scan
//             has 630 for 32,768 tokens; with the halves of a head as a cluster whose tiles are loaded to both: 1,280
#pragma once

#include "backends/cuda/gdn_scan_sm90.cuh"

namespace cairn::gpu::sm90 {

// What the copies bring, in rings: a tile waits there from its load until its last use.
struct ChainTiles {
  unsigned char k[2 * kTileBytes], v[2][kTileBytes];
  LowerTile inverse;
};
struct QueryTiles {
  unsigned char q[2 * kTileBytes];
  LowerTile scores;
};
template <int kCount>
struct RingBarriers {
  std::uint64_t full[kCount], empty[kCount];
};

inline constexpr int kHeadsThreads = 512, kChainStages = 3, kQueryStages = 2;

struct HeadsShared {
  ChainTiles chain[kChainStages];
  QueryTiles query[kQueryStages];
  unsigned char state[2][2 * kTileBytes], deltas[2][kTileBytes], out[2][kTileBytes];
  ChunkFactors factors[kChainStages];
  RingBarriers<kChainStages> chain_ring;
  RingBarriers<kQueryStages> query_ring;
};
static_assert(sizeof(HeadsShared) <= 232448, "one block for each multiprocessor");

/// From the named barriers of one half to those of the other.
inline constexpr int kHalfSignals = 5;

/// The place of one half of a block's head.
__device__ __forceinline__ ScanPlace heads_place(const GdnPrefillArgs& a, int block, int half) {
  return scan_place(a, 2 * block + half);
}

template <int kCount>
__device__ __forceinline__ void init_ring(RingBarriers<kCount>& ring, int warps) {
  for (int i = 0; i < kCount; ++i) {
    barrier_init(shared_address(&ring.full[i]), 1);
    barrier_init_for_warps(shared_address(&ring.empty[i]), warps);
  }
}

/// Walks the stages of a ring.
template <int kCount>
struct RingPlace {
  int index = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++index == kCount) index = 0, parity ^= 1;
  }
};

/// Of two groups of products, one a half: the second may still run when the first is asked for.
__device__ __forceinline__ void wait_for_half(int half, float (&o)[32]) {
  if (half == 0)
    products_wait<1>();
  else
    products_wait<0>();
  pin(o);
}

/// X^T = S^T K^T of 32 tokens: 8 products, committed.
__device__ __forceinline__ void multiply_state(float (&x)[16], const std::uint32_t (&state)[8][4], std::uint64_t keys) {
#pragma unroll
  for (int i = 0; i < 8; ++i) multiply_64x32(x, state[i], columns(keys, i), i > 0);
  products_commit();
}

/// R^T = V^T - 2^g X^T of 32 tokens as the left operand of 2 products of 16 tokens. Cleared rows of K and V give zeros.
__device__ __forceinline__ void subtract_recalled(const std::uint32_t (*value)[4], const float2* in,
                                                  const float (&x)[16], std::uint32_t (*r)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {  // rows lane / 4 and + 8 of the 8 x 8 piece j
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t pair = value[j / 2][j % 2 * 2 + i];
      r[j / 2][j % 2 * 2 + i] =
          pack_bf16(low_bf16(pair) - in[j].x * x[4 * j + 2 * i], high_bf16(pair) - in[j].y * x[4 * j + 2 * i + 1]);
    }
  }
}

/// U'^T of 32 tokens rounded, and (2^(gamma - g) U')^T rounded, both as left operands.
__device__ __forceinline__ void round_deltas(const float (&u)[16], const float2* out_decay, std::uint32_t (*r)[4],
                                             std::uint32_t (*write)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float first = u[4 * j + 2 * i], second = u[4 * j + 2 * i + 1];
      write[j / 2][j % 2 * 2 + i] = pack_bf16(first * out_decay[j].x, second * out_decay[j].y);
      r[j / 2][j % 2 * 2 + i] = pack_bf16(first, second);
    }
  }
}

/// One thread: calls load(chunk, stage, barrier) for every chunk, once its stage is free.
template <int kCount, class Load>
__device__ __forceinline__ void load_ring(const ScanPlace& place, RingBarriers<kCount>& ring, const Load& load) {
  RingPlace<kCount> at;
#pragma unroll 1
  for (int chunk = place.begin; chunk < place.end; ++chunk, at.advance()) {
    barrier_wait(shared_address(&ring.empty[at.index]), at.parity ^ 1);  // the first round of a stage waits for nothing
    load(chunk, at.index, shared_address(&ring.full[at.index]));
  }
}

/// Two threads of different warps, so that no ring waits for the other one.
__device__ __forceinline__ void load_rings(const GdnPrefillArgs& a, const ScanPlace& place, HeadsShared& shared,
                                           int warp) {
  if (warp == 0) {
    load_ring(place, shared.chain_ring, [&](int chunk, int stage, std::uint32_t full) {
      ChainTiles& to = shared.chain[stage];
      const int row = place.rows(chunk).first;
      const std::int64_t at = work_index(a, place, chunk);
      barrier_expect(full, sizeof(ChainTiles) + sizeof(ChunkFactors));
#pragma unroll
      for (int i = 0; i < 2; ++i)
        load_tile(shared_address(to.k) + i * kTileBytes, &a.k, place.key_head * kDim + 64 * i, row, full);
      load_bytes(shared_address(&to.inverse), a.work.inverses + at, sizeof(LowerTile), full);
      load_bytes(shared_address(&shared.factors[stage]), a.work.factors + at * 3 * kChunk, sizeof(ChunkFactors), full);
#pragma unroll
      for (int i = 0; i < 2; ++i) load_tile(shared_address(to.v[i]), &a.v, place.head * kDim + 64 * i, row, full);
    });
  } else if (warp == 1) {
    load_ring(place, shared.query_ring, [&](int chunk, int stage, std::uint32_t full) {
      barrier_expect(full, sizeof(QueryTiles));
      load_bytes(shared_address(&shared.query[stage].scores), a.work.scores + work_index(a, place, chunk),
                 sizeof(LowerTile), full);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        load_tile(shared_address(shared.query[stage].q) + i * kTileBytes, &a.q, place.key_head * kDim + 64 * i,
                  place.rows(chunk).first, full);
    });
  }
}

/// U' and S of 64 value columns. A chunk goes through in two halves of 32 tokens, so that the products of one half run
/// while the other is rounded; T' is lower triangular, so the first 32 deltas need only the first 32 tokens.
__device__ __forceinline__ void run_half(const GdnPrefillArgs& a, const ScanPlace& place, HeadsShared& shared,
                                         int thread) {
  const int warp = uniform_warp() % 4, lane = thread % 32, half = place.half, signal = half * kHalfSignals;
  float* state = a.states[place.sequence] + state_offset(place) + first_state_element(warp, lane);
  float s[64];
  std::uint32_t rounded[8][4];
  for_each_state_distance([&](int i, int distance) { s[i] = state[distance]; });
  round_state(s, rounded);
  const std::uint32_t v_at = swizzled(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
  const std::uint32_t state_tile = shared_address(shared.state[half]), delta_tile = shared_address(shared.deltas[half]);
  RingPlace<kChainStages> at;
  const auto wait_for_tiles = [&](int chunk) {
    barrier_wait(shared_address(&shared.chain_ring.full[at.index]), at.parity);
    const int count = place.rows(chunk).count;
    if (count == kChunk) return;
    // Each chain clears the keys for itself.
    clear_rows(shared.chain[at.index].k, shared.chain[at.index].v[half], count, thread);
    warpgroup_barrier(signal + kChainOnly);
  };
  int used = 0;
  wait_for_tiles(place.begin);
  for (int chunk = place.begin; chunk < place.end; ++chunk) {
    ChainTiles& now = shared.chain[at.index];
    const std::uint32_t k = shared_address(now.k), v = shared_address(now.v[half]);
    const std::uint64_t lower = operand(shared_address(now.inverse.lower));
    const std::uint64_t upper = operand_64(shared_address(now.inverse.upper));
    const ChunkFactors& factors = shared.factors[at.index];
    float x0[16], x1[16], u0[16], u1[16];
    products_begin();
    multiply_state(x0, rounded, operand(k));
    multiply_state(x1, rounded, operand(k + 32 * 128));
    if (chunk > place.begin) {  // what is left of the last one
      warp_arrive(shared_address(&shared.chain_ring.empty[used]), lane);
      keep_checkpoint(a, place, chunk - place.begin, s, warp, lane);
      pair_wait(signal + kStateFree);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      store_matrices(state_tile + i / 4 * kTileBytes + fragment_address(warp, lane, 2 * (i % 4)), rounded[i]);
    }
    pair_arrive(signal + kStateReady);
    float2 in[8], out_decay[8];
    std::uint32_t value[4][4], r[4][4], write[4][4], rounded_u[4][4];
#pragma unroll
    for (int j = 0; j < 2; ++j) load_transposed(value[j], v + 16 * 128 * j + v_at);
    load_factors(factors.in, lane, in);
    const float decay = factors.in[kChunk - 1];
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= decay;  // here, where there is time
    pin(s);
    products_wait<1>();
    pin(x0);
    subtract_recalled(value, in, x0, r);
    products_begin();
#pragma unroll
    for (int i = 0; i < 2; ++i) multiply_64x32(u0, r[i], further(upper, 32 * i), i > 0);
    products_commit();
#pragma unroll
    for (int j = 2; j < 4; ++j) load_transposed(value[j], v + 16 * 128 * j + v_at);
    products_wait<1>();
    pin(x1);
    subtract_recalled(value + 2, in + 4, x1, r + 2);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x32(u1, r[i], further(lower, 32 * i), i > 0);
    products_commit();
    load_factors(factors.out, lane, out_decay);
    products_wait<1>();
    pin(u0);
    round_deltas(u0, out_decay, rounded_u, write);
    products_begin();
#pragma unroll
    for (int i = 0; i < 2; ++i) multiply_64x128_transposed(s, write[i], further(operand_transposed(k), 2048 * i));
    products_commit();
    products_wait<1>();
    pin(u1);
    round_deltas(u1, out_decay + 4, rounded_u + 2, write + 2);
    products_begin();
#pragma unroll
    for (int i = 2; i < 4; ++i) multiply_64x128_transposed(s, write[i], further(operand_transposed(k), 2048 * i));
    products_commit();
    if (chunk > place.begin) pair_wait(signal + kDeltasFree);
#pragma unroll
    for (int i = 0; i < 4; ++i) store_matrices(delta_tile + fragment_address(warp, lane, 2 * i), rounded_u[i]);
    pair_arrive(signal + kDeltasReady);
    used = at.index;
    at.advance();
    if (chunk + 1 < place.end) wait_for_tiles(chunk + 1);
    products_wait<0>();
    pin(s);
    round_state(s, rounded);
  }
  pair_wait(signal + kStateFree);
  pair_wait(signal + kDeltasFree);
  for_each_state_distance([&](int i, int distance) { state[distance] = s[i]; });
}

/// O = scale 2^g Q S + A' U' of the block's columns. The tiles of S^T and U'^T come by ordinary stores: the fence is on
/// this side, which has time.
__device__ __forceinline__ void run_both_outputs(const GdnPrefillArgs& a, ScanPlace place, HeadsShared& shared,
                                                 int thread) {
  const int warp = uniform_warp() % 4, lane = thread % 32;
  RingPlace<kChainStages> chain_at;
  RingPlace<kQueryStages> query_at;
  for (int chunk = place.begin; chunk < place.end; ++chunk) {
    const ChunkFactors& factors = shared.factors[chain_at.index];
    float o[2][32];
    std::uint32_t scores[4][4];
    const QueryTiles& now = shared.query[query_at.index];
    barrier_wait(shared_address(&shared.query_ring.full[query_at.index]), query_at.parity);
    barrier_wait(shared_address(&shared.chain_ring.full[chain_at.index]), chain_at.parity);
    const float factor0 = a.scale * factors.in[16 * warp + lane / 4],
                factor1 = a.scale * factors.in[16 * warp + lane / 4 + 8];
    load_scores(scores, now.scores, warp, lane);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      pair_wait(h * kHalfSignals + kStateReady);
      fence_engines();
      products_begin();
      multiply_queries(o[h], operand(shared_address(now.q)), operand(shared_address(shared.state[h])));
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      wait_for_half(h, o[h]);
      pair_arrive(h * kHalfSignals + kStateFree);
      if (h == 1) {
        warp_arrive(shared_address(&shared.query_ring.empty[query_at.index]), lane);
        warp_arrive(shared_address(&shared.chain_ring.empty[chain_at.index]), lane);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        o[h][4 * j] *= factor0, o[h][4 * j + 1] *= factor0;
        o[h][4 * j + 2] *= factor1, o[h][4 * j + 3] *= factor1;
      }
      pin(o[h]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::uint64_t deltas = operand(shared_address(shared.deltas[h]));
      pair_wait(h * kHalfSignals + kDeltasReady);
      fence_engines();
      products_begin();
#pragma unroll
      for (int i = 0; i < 4; ++i) multiply_64x64(o[h], scores[i], further(deltas, 32 * i), 1);
      products_commit();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      wait_for_half(h, o[h]);
      pair_arrive(h * kHalfSignals + kDeltasFree);
      place.half = h;
      store_outputs<1>(a, place, place.rows(chunk), o[h], shared_address(shared.out[h]), warp, lane);
    }
    chain_at.advance(), query_at.advance();
  }
  if (lane == 0) stores_wait<0>();
}

__global__ void __launch_bounds__(kHeadsThreads, 1) gdn_heads_kernel(const __grid_constant__ GdnPrefillArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  HeadsShared& shared = *reinterpret_cast<HeadsShared*>(memory);
  const int group = uniform_warp() / 4, thread = threadIdx.x % 128;
  if (threadIdx.x == 0) {
    init_ring(shared.chain_ring, 12);
    init_ring(shared.query_ring, 4);
    fence_barrier_init();
  }
  __syncthreads();
  const ScanPlace place = heads_place(a, blockIdx.x, group < 2 ? group : 0);
  wait_for_previous_kernel();
  if (place.begin == place.end) return;
  if (group < 2) {
    set_registers_up<184>();
    run_half(a, place, shared, thread);
  } else if (group == 2) {
    set_registers_down<120>();
    run_both_outputs(a, place, shared, thread);
  } else {
    set_registers_down<24>();
    if (thread % 32 == 0) load_rings(a, place, shared, thread / 32);
  }
}

}  // namespace cairn::gpu::sm90
