// The fragments and products of backends/gpu/platform/gpu_matrix.h on the block emulator, against plain sums.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <vector>

#include "backends/gpu/platform/gpu_matrix.h"

namespace {

using namespace cairn::gpu;

struct ProductArgs {
  const std::uint16_t *a, *a_transposed, *b, *b_transposed;  ///< [16, 16] each: b is [summed, column]
  float* out;                                                ///< [4, 16, 16]: one for each pair of loads
  int* turns;                                                ///< [threads]
};

/// Four products, and shuffles that only the first warp makes: others must not be held up, nor let go, by them.
__global__ void product_kernel(ProductArgs args) {
  auto* shared = reinterpret_cast<std::uint16_t*>(dynamic_shared());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kMatrixLanes;
  const std::uint16_t* const from[] = {args.a, args.a_transposed, args.b, args.b_transposed};
  for (int i = thread; i < 4 * 32; i += static_cast<int>(blockDim.x)) {
    copy_16_async(shared + i * 8, from[i / 32] + i % 32 * 8, true);
  }
  commit_copies();
  wait_for_copies<0>();
  int turns = 0;
  if (thread < warp_size()) {
    for (int i = 0; i < 5; ++i) turns = shuffle(turns, 0) + 1;
  }
  __syncthreads();
  args.turns[thread] = turns;
  if (thread >= 2 * kMatrixLanes) return;
  const auto tile = [&](int which) { return [=](int row, int column) { return shared + which * 256 + row * 16 + column; }; };
  std::uint32_t left[2][4], right[2][4];
  load_left(left[0], tile(0));
  load_left_transposed(left[1], tile(1));
  load_right(right[0], tile(3));
  load_right_transposed(right[1], tile(2));
  for (int which = thread / kMatrixLanes * 2; which < thread / kMatrixLanes * 2 + 2; ++which) {
    for (int half = 0; half < 2; ++half) {
      float d[4] = {};
      multiply_16x8(d, left[which / 2], right[which % 2][2 * half], right[which % 2][2 * half + 1]);
      for (int i = 0; i < 4; ++i) {
        args.out[which * 256 + (lane / 4 + i / 2 * 8) * 16 + half * 8 + lane % 4 * 2 + i % 2] = d[i];
      }
    }
  }
}

TEST_CASE("matrix products of 32 lanes") {
  std::vector<std::uint16_t> a(256), a_transposed(256), b(256), b_transposed(256);
  std::vector<float> out(4 * 256, NAN), want(256, 0.0f);
  std::vector<int> turns(128);
  const auto value = [](std::uint16_t bits) { return bits_to_float(static_cast<std::uint32_t>(bits) << 16); };
  for (std::uint32_t i = 0; i < 256; ++i) {
    a[i] = static_cast<std::uint16_t>(pack_bf16(static_cast<float>(i * 37 % 101) - 50, 0));
    b[i] = static_cast<std::uint16_t>(pack_bf16(static_cast<float>(i * 53 % 97) / 16 - 3, 0));
    a_transposed[i % 16 * 16 + i / 16] = a[i];
    b_transposed[i % 16 * 16 + i / 16] = b[i];
  }
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 16; ++column) {
      for (std::size_t k = 0; k < 16; ++k) want[row * 16 + column] += value(a[row * 16 + k]) * value(b[k * 16 + column]);
    }
  }
  emulate(dim3(1), dim3(128), 4 * 512, [&] {
    product_kernel({a.data(), a_transposed.data(), b.data(), b_transposed.data(), out.data(), turns.data()});
  });
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(out[i] == doctest::Approx(want[i % 256]).epsilon(1e-6));
  for (std::size_t i = 0; i < turns.size(); ++i) CHECK(turns[i] == (static_cast<int>(i) < warp_size() ? 5 : 0));
}

TEST_CASE("bf16 pairs round to nearest, ties to even, and keep NaN") {
  CHECK(pack_bf16(1.0f, -2.0f) == 0xC0003F80u);
  CHECK(pack_bf16(bits_to_float(0x3F808000u), bits_to_float(0x3F818000u)) == 0x3F823F80u);
  const std::uint32_t pair = pack_bf16(bits_to_float(0x7FFFFFFFu), INFINITY);
  CHECK(std::isnan(low_bf16(pair)));
  CHECK(high_bf16(pair) == INFINITY);
}

}  // namespace
