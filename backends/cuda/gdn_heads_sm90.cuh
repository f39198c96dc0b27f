// gdn_heads: gdn_scan with a whole head in a block, for batches: the halves share the tiles of K, Q, T' and A'.
//   Computes  as gdn_scan, the same sums in the same order: a sequence has the same bits whichever of the two runs
//   Launch    one block of 4 warpgroups for each (sequence, value head), after gdn_intra.
//             0, 1: the chains of 64 value columns each (192 registers); a chunk in two halves of 32 tokens
//             2: the outputs of both (104)
//             3: three threads, each loads a ring of tiles (24)
//   Shared    3 stages of K, V, T' (40 KB), 2 of Q and of A' (24 KB), S^T and U'^T of both halves (48 KB), outputs 8 KB
//   Traffic   64 KB per chunk and head from L2 (gdn_scan: 112); from memory the same 32 KB a token, 2.1 GB for 65,536
//   Measured  (H200) 8 x 8,192 tokens 570 us, gdn_scan 623 (means of two each, in turns); 3,480 cycles a chunk at 1.47
//             GHz, of which the chains wait 900 for tiles: 3.8 TB/s from and to memory, so bytes should come next
//   Tried     beside gdn_intra by flags, with 64, 86 or 96 blocks at a time, gdn_intra in the order of these waves:
//             1,058 to 1,530 us where one after the other took 1,050 to 1,120 (same run): gdn_intra starves it.
//             A bulk prefetch of whole token rows to L2, 4 chunks ahead: 722 to 751 us, 585 to 654 without.
//             As gdn_scan for batch 1 (one half in a block, these rings and halves of 32 tokens): 675 us where gdn_scan
//             has 630 for 32,768 tokens; with the halves of a head as a cluster whose tiles are loaded to both: 1,280
#pragma once

#include "backends/cuda/gdn_scan_sm90.cuh"

namespace cairn::gpu::sm90 {

// What the copies bring, in rings: a tile waits there from its load until its last use.
struct ChainTiles {
  unsigned char k[2 * kTileBytes], inverse[kTileBytes], v[2][kTileBytes];
};
struct QueryTiles {
  unsigned char q[2 * kTileBytes];
};
struct ScoreTiles {
  unsigned char scores[kTileBytes];
};
template <int kCount>
struct RingBarriers {
  std::uint64_t full[kCount], empty[kCount];
};

inline constexpr int kHeadsThreads = 512, kChainStages = 3, kQueryStages = 2, kScoreStages = 2;

struct HeadsShared {
  ChainTiles chain[kChainStages];
  QueryTiles query[kQueryStages];
  ScoreTiles score[kScoreStages];
  unsigned char state[2][2 * kTileBytes], deltas[2][kTileBytes], out[kTileBytes];
  float factors[kChainStages][2 * kChunk];  ///< 2^g, then 2^(gamma - g)
  float output_factors[kScoreStages][kChunk];
  RingBarriers<kChainStages> chain_ring;
  RingBarriers<kQueryStages> query_ring;
  RingBarriers<kScoreStages> score_ring;
};
static_assert(sizeof(HeadsShared) <= 232448, "one block for each multiprocessor");

/// From the named barriers of one half to those of the other.
inline constexpr int kHalfSignals = 5;

/// The place of one half of a block's head.
__device__ __forceinline__ ScanPlace heads_place(const GdnPrefillArgs& a, int block, int half) {
  return scan_place(a, 2 * block + half);
}

template <int kCount>
__device__ __forceinline__ void init_ring(RingBarriers<kCount>& ring, int readers) {
  for (int i = 0; i < kCount; ++i) {
    barrier_init(shared_address(&ring.full[i]), 1);
    barrier_init(shared_address(&ring.empty[i]), readers);
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
__device__ __forceinline__ void multiply_state(float (&x)[16], const std::uint32_t (&state)[8][4], std::uint32_t keys) {
#pragma unroll
  for (int i = 0; i < 8; ++i) multiply_64x32(x, state[i], operand(keys + i / 4 * kTileBytes + i % 4 * 32), i > 0);
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

/// Where the first of a thread's 64 state elements lies in a [K, V] state, from the half's first column.
__device__ __forceinline__ int first_state_element(int warp, int lane) {
  return 2 * (lane % 4) * kDim + 16 * warp + lane / 4;
}
/// Calls visit(element of s, distance from the first) for all 64: constants, so that one address serves them.
template <class Visit>
__device__ __forceinline__ void for_each_state_distance(const Visit& visit) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) visit(4 * j + i, (8 * j + i % 2) * kDim + 8 * (i / 2));
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

/// Three threads of different warps, so that no ring waits for another one.
__device__ __forceinline__ void load_rings(const GdnPrefillArgs& a, const ScanPlace& place, HeadsShared& shared,
                                           int warp) {
  const auto tiles = [&](int chunk) {
    return a.work.tiles + (static_cast<std::int64_t>(chunk) * a.value_heads + place.head) * 2 * kTileBytes;
  };
  if (warp == 0) {
    load_ring(place, shared.chain_ring, [&](int chunk, int stage, std::uint32_t full) {
      ChainTiles& to = shared.chain[stage];
      const int row = place.rows(chunk).first;
      barrier_expect(full, sizeof(ChainTiles) + kFactorBytes);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        load_tile(shared_address(to.k) + i * kTileBytes, &a.k, place.key_head * kDim + 64 * i, row, full);
      load_bytes(shared_address(to.inverse), tiles(chunk), kTileBytes, full);
      load_bytes(shared_address(shared.factors[stage]), chunk_factors(a, place, chunk), kFactorBytes, full);
#pragma unroll
      for (int i = 0; i < 2; ++i) load_tile(shared_address(to.v[i]), &a.v, place.head * kDim + 64 * i, row, full);
    });
  } else if (warp == 1) {
    load_ring(place, shared.query_ring, [&](int chunk, int stage, std::uint32_t full) {
      barrier_expect(full, sizeof(QueryTiles));
#pragma unroll
      for (int i = 0; i < 2; ++i)
        load_tile(shared_address(shared.query[stage].q) + i * kTileBytes, &a.q, place.key_head * kDim + 64 * i,
                  place.rows(chunk).first, full);
    });
  } else if (warp == 2) {
    load_ring(place, shared.score_ring, [&](int chunk, int stage, std::uint32_t full) {
      barrier_expect(full, sizeof(ScoreTiles) + kChunk * 4);
      load_bytes(shared_address(shared.score[stage].scores), tiles(chunk) + kTileBytes, kTileBytes, full);
      load_bytes(shared_address(shared.output_factors[stage]), chunk_factors(a, place, chunk), kChunk * 4, full);
    });
  }
}

/// U' and S of 64 value columns. A chunk goes through in two halves of 32 tokens, so that the products of one half run
/// while the other is rounded; T' is lower triangular, so the first 32 deltas need only the first 32 tokens.
__device__ __forceinline__ void run_half(const GdnPrefillArgs& a, const ScanPlace& place, HeadsShared& shared,
                                         int thread) {
  const int warp = thread / 32, lane = thread % 32, half = place.half, signal = half * kHalfSignals;
  float* state = a.states[place.sequence] + state_offset(place) + first_state_element(warp, lane);
  float s[64];
  std::uint32_t rounded[8][4];
  for_each_state_distance([&](int i, int distance) { s[i] = state[distance]; });
  round_state(s, rounded);
  const std::uint32_t v_at = swizzled(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
  const std::uint32_t state_tile = shared_address(shared.state[half]), delta_tile = shared_address(shared.deltas[half]);
  RingPlace<kChainStages> at;
  for (int chunk = place.begin; chunk < place.end; ++chunk) {
    ChainTiles& now = shared.chain[at.index];
    const int count = place.rows(chunk).count;
    barrier_wait(shared_address(&shared.chain_ring.full[at.index]), at.parity);
    if (count < kChunk) {
      clear_rows(now.k, now.v[half], count, thread);  // each chain clears the keys for itself
      warpgroup_barrier(signal + kChainOnly);
    }
    const std::uint32_t k = shared_address(now.k), inverse = shared_address(now.inverse);
    const std::uint32_t v = shared_address(now.v[half]);
    const float* factors = shared.factors[at.index];
    float x0[16], x1[16], u0[16], u1[16];
    products_begin();
    multiply_state(x0, rounded, k);
    multiply_state(x1, rounded, k + 32 * 128);
    if (chunk > place.begin) pair_wait(signal + kStateFree);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      store_matrices(state_tile + i / 4 * kTileBytes + fragment_address(warp, lane, 2 * (i % 4)), rounded[i]);
    }
    pair_arrive(signal + kStateReady);
    float2 in[8], out_decay[8];
    std::uint32_t value[4][4], r[4][4], write[4][4], rounded_u[4][4];
#pragma unroll
    for (int j = 0; j < 2; ++j) load_transposed(value[j], v + 16 * 128 * j + v_at);
    load_factors(factors, lane, in);
    const float decay = factors[kChunk - 1];
    products_wait<1>();
    pin(x0);
    subtract_recalled(value, in, x0, r);
    products_begin();
#pragma unroll
    for (int i = 0; i < 2; ++i) multiply_64x32(u0, r[i], operand(inverse + 32 * i), i > 0);
    products_commit();
#pragma unroll
    for (int j = 2; j < 4; ++j) load_transposed(value[j], v + 16 * 128 * j + v_at);
    products_wait<1>();
    pin(x1);
    subtract_recalled(value + 2, in + 4, x1, r + 2);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_64x32(u1, r[i], operand(inverse + 32 * 128 + 32 * i), i > 0);
    products_commit();
    load_factors(factors + kChunk, lane, out_decay);
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= decay;
    pin(s);
    products_wait<1>();
    pin(u0);
    round_deltas(u0, out_decay, rounded_u, write);
    products_begin();
#pragma unroll
    for (int i = 0; i < 2; ++i) multiply_64x128_transposed(s, write[i], operand_transposed(k + 2048 * i));
    products_commit();
    products_wait<1>();
    pin(u1);
    round_deltas(u1, out_decay + 4, rounded_u + 2, write + 2);
    products_begin();
#pragma unroll
    for (int i = 2; i < 4; ++i) multiply_64x128_transposed(s, write[i], operand_transposed(k + 2048 * i));
    products_commit();
    if (chunk > place.begin) pair_wait(signal + kDeltasFree);
#pragma unroll
    for (int i = 0; i < 4; ++i) store_matrices(delta_tile + fragment_address(warp, lane, 2 * i), rounded_u[i]);
    pair_arrive(signal + kDeltasReady);
    products_wait<0>();
    pin(s);
    __syncwarp();  // all lanes have read
    if (lane == 0) barrier_arrive(shared_address(&shared.chain_ring.empty[at.index]));
    round_state(s, rounded);
    keep_checkpoint(a, place, chunk + 1 - place.begin, chunk + 1 == place.end, s, warp, lane);
    at.advance();
  }
  pair_wait(signal + kStateFree);
  pair_wait(signal + kDeltasFree);
  for_each_state_distance([&](int i, int distance) { state[distance] = s[i]; });
}

/// O = scale 2^g Q S + A' U' of the block's columns. The tiles of S^T and U'^T come by ordinary stores: the fence is on
/// this side, which has time.
__device__ __forceinline__ void run_both_outputs(const GdnPrefillArgs& a, ScanPlace place, HeadsShared& shared,
                                                 int thread) {
  const int warp = thread / 32, lane = thread % 32;
  RingPlace<kQueryStages> query_at;
  RingPlace<kScoreStages> score_at;
  for (int chunk = place.begin; chunk < place.end; ++chunk) {
    const std::uint32_t q = shared_address(shared.query[query_at.index].q);
    const std::uint32_t scores = shared_address(shared.score[score_at.index].scores);
    float o[2][32];
    barrier_wait(shared_address(&shared.query_ring.full[query_at.index]), query_at.parity);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t state = shared_address(shared.state[h]);
      pair_wait(h * kHalfSignals + kStateReady);
      fence_engines();
      products_begin();
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const std::uint32_t piece = i / 4 * kTileBytes + i % 4 * 32;
        multiply_64x64(o[h], operand(q + piece), operand(state + piece), i > 0);
      }
      products_commit();
    }
    barrier_wait(shared_address(&shared.score_ring.full[score_at.index]), score_at.parity);
    const float* factors = shared.output_factors[score_at.index] + 16 * warp + lane / 4;
    const float factor0 = a.scale * factors[0], factor1 = a.scale * factors[8];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      wait_for_half(h, o[h]);
      pair_arrive(h * kHalfSignals + kStateFree);
      if (h == 1) {
        __syncwarp();  // all lanes have read
        if (lane == 0) barrier_arrive(shared_address(&shared.query_ring.empty[query_at.index]));
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
      const std::uint32_t deltas = shared_address(shared.deltas[h]);
      pair_wait(h * kHalfSignals + kDeltasReady);
      fence_engines();
      products_begin();
#pragma unroll
      for (int i = 0; i < 4; ++i) multiply_64x64(o[h], operand(scores + 32 * i), operand(deltas + 32 * i), 1);
      products_commit();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      wait_for_half(h, o[h]);
      pair_arrive(h * kHalfSignals + kDeltasFree);
      if (h == 1) {
        __syncwarp();  // all lanes have read
        if (lane == 0) barrier_arrive(shared_address(&shared.score_ring.empty[score_at.index]));
      }
      place.half = h;
      store_outputs(a, place, place.rows(chunk), o[h], shared_address(shared.out), warp, lane);
    }
    query_at.advance(), score_at.advance();
  }
}

__global__ void __launch_bounds__(kHeadsThreads, 1) gdn_heads_kernel(const __grid_constant__ GdnPrefillArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  HeadsShared& shared = *reinterpret_cast<HeadsShared*>(memory);
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  if (threadIdx.x == 0) {
    init_ring(shared.chain_ring, 8);  // one arrival of each warp that reads
    init_ring(shared.query_ring, 4);
    init_ring(shared.score_ring, 4);
    fence_barrier_init();
  }
  __syncthreads();
  const ScanPlace place = heads_place(a, blockIdx.x, group < 2 ? group : 0);
  if (place.begin == place.end) return;
  if (group < 2) {
    set_registers_up<192>();
    run_half(a, place, shared, thread);
  } else if (group == 2) {
    set_registers_down<104>();
    run_both_outputs(a, place, shared, thread);
  } else {
    set_registers_down<24>();
    if (thread % 32 == 0) load_rings(a, place, shared, thread / 32);
  }
}

}  // namespace cairn::gpu::sm90
