// Every form of the bf16 decode kernel (backends/cuda/linear_decode_sm80.cuh) on the block emulator, against sums in double:
// its matrix products have a scalar twin, its loads are ordinary ones.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "backends/gpu/platform/gpu_platform.h"

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint4 __ldg(const uint4* from) { return *from; }

#include "backends/cuda/linear_decode_sm80.cuh"

namespace {

using namespace cairn;
using namespace cairn::gpu;

std::vector<std::uint16_t> random_bf16(std::size_t count, std::uint32_t seed) {
  std::vector<std::uint16_t> values(count);
  for (std::uint16_t& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = to_bf16((static_cast<float>(seed >> 8) / (1 << 24) - 0.5f) * 0.5f).bits;
  }
  return values;
}

double value_of(std::uint16_t bits) { return load_element(Bf16{bits}); }

struct Problem {
  int tokens, outputs, inputs;
  bool has_bias, accumulate, out_is_f32;
};

struct Rows16 {
  std::vector<std::uint16_t> x, weight;
  std::vector<float> bias, before;
  int stride;
};

Rows16 make_rows(const Problem& p) {
  Rows16 rows;
  rows.stride = p.inputs + 8;
  rows.x = random_bf16(static_cast<std::size_t>(64) * rows.stride, 1);
  rows.weight = random_bf16(static_cast<std::size_t>(p.outputs) * p.inputs, 2);
  for (int i = 0; i < p.outputs; ++i) rows.bias.push_back(static_cast<float>(i % 7) / 4 - 1);
  for (int i = 0; i < 64 * p.outputs; ++i) rows.before.push_back(static_cast<float>(i % 11) / 8 - 0.5f);
  return rows;
}

std::vector<float> run_decode(const Problem& p, const Rows16& rows) {
  std::vector<float> wide(rows.before.begin(), rows.before.begin() + static_cast<std::ptrdiff_t>(p.tokens) * p.outputs);
  std::vector<std::uint16_t> narrow;
  for (float& value : wide) {
    narrow.push_back(to_bf16(value).bits);
    if (!p.accumulate) value = NAN, narrow.back() = 0x7FFF;
  }
  LinearBf16Args args{};
  args.x = rows.x.data();
  args.weight = rows.weight.data();
  args.bias = p.has_bias ? rows.bias.data() : nullptr;
  args.out = p.out_is_f32 ? static_cast<void*>(wide.data()) : narrow.data();
  args.x_stride = rows.stride, args.out_stride = p.outputs;
  args.token_count = p.tokens, args.out_dim = p.outputs, args.in_dim = p.inputs;
  args.accumulate = p.accumulate, args.out_is_f32 = p.out_is_f32;
  choose_linear_decode(args, [&](auto kernel, int threads, int tokens, int outputs) {
    const auto blocks = [](int count, int each) { return static_cast<unsigned>((count + each - 1) / each); };
    emulate(dim3(blocks(p.outputs, outputs), blocks(p.tokens, tokens)), dim3(static_cast<unsigned>(threads)), 0,
            [&] { kernel(args); });
  });
  if (p.out_is_f32) return wide;
  std::vector<float> out;
  for (const std::uint16_t bits : narrow) out.push_back(static_cast<float>(value_of(bits)));
  return out;
}

void check_outputs(const Problem& p, const Rows16& rows, const std::vector<float>& got) {
  double worst = 0;
  for (int t = 0; t < p.tokens; ++t) {
    for (int o = 0; o < p.outputs; o += p.outputs > 1000 ? 97 : 1) {
      double want = p.has_bias ? rows.bias[static_cast<std::size_t>(o)] : 0;
      if (p.accumulate) want += rows.before[static_cast<std::size_t>(t) * p.outputs + o];
      for (int i = 0; i < p.inputs; ++i) {
        want += value_of(rows.x[static_cast<std::size_t>(t) * rows.stride + i]) *
                value_of(rows.weight[static_cast<std::size_t>(o) * p.inputs + i]);
      }
      const double error = std::fabs(got[static_cast<std::size_t>(t) * p.outputs + o] - want);
      worst = std::isfinite(error) ? std::fmax(worst, error / (1 + std::fabs(want))) : INFINITY;
    }
  }
  CHECK(worst <= (p.out_is_f32 ? 2e-6 : 4e-3));  // f32 sums of some thousand products; one rounding to bf16
}

TEST_CASE("linear decode: every form against double, and the same bits for a token in any batch") {
  for (const int outputs : {41, 6150}) {  // 8 warps, 16 warps
    const int inputs = outputs == 41 ? 2056 : 136;
    for (const bool is_plain : {true, false}) {
      std::vector<float> alone;
      for (const int tokens : {1, 8, 11, 20, 40}) {
        CAPTURE(outputs);
        CAPTURE(tokens);
        const Problem p{tokens, outputs, inputs, !is_plain, !is_plain, is_plain};
        const Rows16 rows = make_rows(p);
        const std::vector<float> got = run_decode(p, rows);
        check_outputs(p, rows, got);
        if (tokens == 1) alone = got;
        CHECK(std::equal(alone.begin(), alone.end(), got.begin()));
      }
    }
  }
}

}  // namespace
