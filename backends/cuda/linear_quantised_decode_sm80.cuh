// linear, few tokens, weights of i8 or i4: a block owns 16 outputs and up to 8 kTokenTiles tokens; its 4 warps take
// turns over the inputs. Weights are the rows of the products, tokens their columns.
//   Loads     packed weights once, 16 bytes a lane, kAhead loads under way; the first before the kernel that makes the
//             tokens has ended
//   i8        a lane's 16 inputs become exact bf16; the row's scale is a factor of the sum
//   i4        a lane's 16 bytes are a group of 32 inputs; four lanes of a row exchange words, so that a product sees
//             one group, and the scale is a factor of its f32 sum: no weight is rounded. Two nibbles become exact
//             bf16 in three instructions, in pairs (i, i + 4), as the tokens' inputs then are
//   Numerics  f32 sums, warps added in order: a row's bits depend on the row and the weight
//   Limit     packed bytes and scales (i4, groups of 32: 20 bytes for 32 weights) at 4.3 TB/s
//   Measured  (H200, us; TB/s of packed weights, at 4.2 of all bytes)      1 token        8 tokens    64 tokens
//               i8  18,432 x 2,560                                       19.1  2.5      19.6        47
//               i4  18,432 x 2,560                                       18.0  1.3      20.8       130
//                    2,560 x 4,096                                       10.3  0.5
//                    2,560 x 9,216                                       20.1  0.6
//                  248,320 x 2,560                                        161  2.0
//             predicted 7 us for i4: integer instructions take two cycles each, about 250 for 2,048 weights. The first
//             i4 took 30 us, with divisions by the group size and products that waited for each other
//   Tried     i4 in words of 4 bytes without the exchange: 18.3, 12.8, 24.7, 157; 32 outputs a block from 17 tokens on:
//             i4 as fast, i8 86 us; five loads under way for i8: 19.9
//   Checked   decode against double sums on the block emulator (1.4e-7, the same bits in every form)
#pragma once

#include "backends/cuda/linear_args_sm80.cuh"

namespace cairn::gpu {

struct LinearQuantisedArgs {
  LinearBf16Args call;  ///< its weight is null
  const unsigned char* data;
  const float* scales;
  int group_size;
};

inline constexpr int kQuantisedWarps = 4, kQuantisedRows = 16;

/// x[2 i], x[2 i + 1] of a token's eight inputs -> pairs (i, i + 4).
__device__ inline void pair_far(const uint4& x, std::uint32_t (&pairs)[4]) {
  pairs[0] = __byte_perm(x.x, x.z, 0x5410);
  pairs[1] = __byte_perm(x.x, x.z, 0x7632);
  pairs[2] = __byte_perm(x.y, x.w, 0x5410);
  pairs[3] = __byte_perm(x.y, x.w, 0x7632);
}

/// Word i of lane j of four goes to word j of lane i.
__device__ inline void exchange_words(std::uint32_t (&w)[4], int quarter) {
  const bool is_odd = (quarter & 1) != 0, is_high = (quarter & 2) != 0;
  const std::uint32_t a = shuffle_xor(is_odd ? w[0] : w[1], 1), b = shuffle_xor(is_odd ? w[2] : w[3], 1);
  if (is_odd) {
    w[0] = a, w[2] = b;
  } else {
    w[1] = a, w[3] = b;
  }
  const std::uint32_t c = shuffle_xor(is_high ? w[0] : w[2], 2), d = shuffle_xor(is_high ? w[1] : w[3], 2);
  if (is_high) {
    w[0] = c, w[1] = d;
  } else {
    w[2] = c, w[3] = d;
  }
}

/// Two rows' 16 bytes a lane, for one half of a fragment each: what is loaded, and how it is multiplied. A Place holds
/// the lane's addresses; rows past the end read the last one, and their sums are dropped.
struct I4Rows {
  static constexpr int kInputs = 128;  ///< of four lanes

  struct Place {
    const unsigned char* words[2];
    const float* scales[2];
    int quarter, in_dim, group_shift;
    __device__ Place(const LinearQuantisedArgs& args, int upper_row, int its_quarter)
        : quarter(its_quarter), in_dim(args.call.in_dim), group_shift(args.group_size == 64 ? 6 : 5) {
      for (int half = 0; half < 2; ++half) {
        const std::int64_t row = min(upper_row + half * 8, args.call.out_dim - 1);
        words[half] = args.data + (row * in_dim + quarter * 32) / 2;
        scales[half] = args.scales + row * (in_dim >> group_shift);
      }
    }
  };
  struct Load {
    uint4 words[2];
    float scales[2];
  };
  __device__ static void load(Load& to, const Place& place, int input) {
    const int first = input + place.quarter * 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool is_inside = first < place.in_dim;
      to.words[half] =
          is_inside ? __ldg(reinterpret_cast<const uint4*>(place.words[half] + input / 2)) : make_uint4(0, 0, 0, 0);
      to.scales[half] = is_inside ? __ldg(place.scales[half] + (first >> place.group_shift)) : 0.0f;
    }
  }
  /// The place of a token's load i in the inputs.
  __device__ static int token_input(int input, int i, int quarter) { return input + i * 32 + quarter * 8; }

  /// Nibbles i and i + 4 of a word as bf16: 136 more than they mean, then exact.
  __device__ static std::uint32_t pair(std::uint32_t word, int i) {
    const std::uint32_t biased = ((word >> (4 * i)) & 0x000F000Fu) ^ 0x43084308u;
    std::uint32_t exact;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(exact) : "r"(biased), "r"(0x3F803F80u), "r"(0xC308C308u));
    return exact;
  }

  template <int kTokenTiles, class LoadToken>
  __device__ static void multiply(float (&sums)[kTokenTiles][4], const Load& from, int quarter,
                                  const LoadToken& load_token) {
    std::uint32_t upper[4] = {from.words[0].x, from.words[0].y, from.words[0].z, from.words[0].w};
    std::uint32_t lower[4] = {from.words[1].x, from.words[1].y, from.words[1].z, from.words[1].w};
    exchange_words(upper, quarter);
    exchange_words(lower, quarter);
    const int owner = static_cast<int>(threadIdx.x) % 32 / 4 * 4;
#pragma unroll
    for (int two = 0; two < 4; two += 2) {  // groups whose products go side by side
      std::uint32_t w[2][2][4];
      float scale[2][2];
#pragma unroll
      for (int g = 0; g < 2; ++g) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          w[g][i / 2][i % 2 * 2] = pair(upper[two + g], i);
          w[g][i / 2][i % 2 * 2 + 1] = pair(lower[two + g], i);
        }
        scale[g][0] = shuffle(from.scales[0], owner + two + g);
        scale[g][1] = shuffle(from.scales[1], owner + two + g);
      }
#pragma unroll
      for (int tile = 0; tile < kTokenTiles; ++tile) {
        std::uint32_t x[2][4];
        float d[2][4] = {};
#pragma unroll
        for (int g = 0; g < 2; ++g) pair_far(load_token(tile, two + g), x[g]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int g = 0; g < 2; ++g) multiply_16x8(d[g], w[g][half], x[g][2 * half], x[g][2 * half + 1]);
        }
#pragma unroll
        for (int g = 0; g < 2; ++g) {
          sums[tile][0] += scale[g][0] * d[g][0], sums[tile][1] += scale[g][0] * d[g][1];
          sums[tile][2] += scale[g][1] * d[g][2], sums[tile][3] += scale[g][1] * d[g][3];
        }
      }
    }
  }
  __device__ static float factor(const LinearQuantisedArgs&, int) { return 1.0f; }
};

struct I8Rows {
  static constexpr int kInputs = 64;

  struct Place {
    const unsigned char* words[2];
    int quarter, in_dim;
    __device__ Place(const LinearQuantisedArgs& args, int upper_row, int its_quarter)
        : quarter(its_quarter), in_dim(args.call.in_dim) {
      for (int half = 0; half < 2; ++half) {
        const std::int64_t row = min(upper_row + half * 8, args.call.out_dim - 1);
        words[half] = args.data + row * in_dim + quarter * 16;
      }
    }
  };
  struct Load {
    uint4 words[2];
  };
  __device__ static void load(Load& to, const Place& place, int input) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      to.words[half] = input + place.quarter * 16 < place.in_dim
                           ? __ldg(reinterpret_cast<const uint4*>(place.words[half] + input))
                           : make_uint4(0, 0, 0, 0);
    }
  }
  __device__ static int token_input(int input, int i, int quarter) { return input + quarter * 16 + i * 8; }

  template <int kTokenTiles, class LoadToken>
  __device__ static void multiply(float (&sums)[kTokenTiles][4], const Load& from, int, const LoadToken& load_token) {
    const std::uint32_t upper[4] = {from.words[0].x, from.words[0].y, from.words[0].z, from.words[0].w};
    const std::uint32_t lower[4] = {from.words[1].x, from.words[1].y, from.words[1].z, from.words[1].w};
    const auto pair = [](std::uint32_t biased, int i) {  // bytes 2 i and 2 i + 1, each with 128 more than it means
      const float low = __uint_as_float(__byte_perm(biased, 0x4B000000u, 0x7540 + 2 * i)) - 8388736.0f;
      const float high = __uint_as_float(__byte_perm(biased, 0x4B000000u, 0x7541 + 2 * i)) - 8388736.0f;
      return pack_bf16(low, high);
    };
#pragma unroll
    for (int two = 0; two < 2; ++two) {  // of eight inputs
      std::uint32_t w[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t above = upper[two * 2 + i] ^ 0x80808080u, below = lower[two * 2 + i] ^ 0x80808080u;
        w[i][0] = pair(above, 0), w[i][1] = pair(below, 0), w[i][2] = pair(above, 1), w[i][3] = pair(below, 1);
      }
#pragma unroll
      for (int tile = 0; tile < kTokenTiles; ++tile) {
        const uint4 x = load_token(tile, two);
        multiply_16x8(sums[tile], w[0], x.x, x.y);
        multiply_16x8(sums[tile], w[1], x.z, x.w);
      }
    }
  }
  __device__ static float factor(const LinearQuantisedArgs& args, int out) {
    return out < args.call.out_dim ? args.scales[out] : 0.0f;
  }
};

template <class Weights, int kTokenTiles, int kAhead>
__global__ void __launch_bounds__(kQuantisedWarps * 32) linear_quantised_decode_kernel(LinearQuantisedArgs args) {
  constexpr int kTokens = kTokenTiles * 8, kStep = kQuantisedWarps * Weights::kInputs;
  __shared__ float partial[kQuantisedWarps][kQuantisedRows][kTokens + 1];
  let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, quarter = lane % 4;
  const int first_out = static_cast<int>(blockIdx.x) * kQuantisedRows,
            first_token = static_cast<int>(blockIdx.y) * kTokens;
  const typename Weights::Place place(args, first_out + lane / 4, quarter);
  typename Weights::Load ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) Weights::load(ahead[i], place, warp * Weights::kInputs + i * kStep);
  wait_for_previous_kernel();

  const std::uint16_t* x[kTokenTiles];  // tokens past the end read the last one, and their sums are dropped
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    x[tile] = args.call.x + min(first_token + tile * 8 + lane / 4, args.call.token_count - 1) * args.call.x_stride;
  }
  float sums[kTokenTiles][4] = {};
  for (int base = warp * Weights::kInputs; base < args.call.in_dim; base += kAhead * kStep) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int input = base + i * kStep;
      if (input >= args.call.in_dim) break;
      Weights::template multiply<kTokenTiles>(sums, ahead[i], quarter, [&](int tile, int load) {
        const int at = Weights::token_input(input, load, quarter);
        return at < args.call.in_dim ? *reinterpret_cast<const uint4*>(x[tile] + at) : make_uint4(0, 0, 0, 0);
      });
      Weights::load(ahead[i], place, input + kAhead * kStep);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) partial[warp][lane / 4 + e / 2 * 8][tile * 8 + quarter * 2 + e % 2] = sums[tile][e];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kQuantisedRows * kTokens; i += kQuantisedWarps * 32) {
    const int out = i % kQuantisedRows, token = i / kQuantisedRows;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kQuantisedWarps; ++w) sum += partial[w][out][token];
    finish(args.call, first_token + token, first_out + out, sum * Weights::factor(args, first_out + out));
  }
}

/// Calls launch(kernel, tokens of a block) with the form for this many tokens.
template <class Weights, class Launch>
void choose_linear_quantised_decode(int tokens, const Launch& launch) {
  if (tokens <= 8) return launch(linear_quantised_decode_kernel<Weights, 1, 3>, 8);
  if (tokens <= 16) return launch(linear_quantised_decode_kernel<Weights, 2, 3>, 16);
  if (tokens <= 32) return launch(linear_quantised_decode_kernel<Weights, 4, 2>, 32);
  launch(linear_quantised_decode_kernel<Weights, 8, 2>, 64);
}

}  // namespace cairn::gpu
