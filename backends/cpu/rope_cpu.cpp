// rope: the angles of a token in double, once for all heads; then a vectorised turn.
#include <cmath>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/row_kernels.h"
#include "backends/interface/scratch_layout.h"

namespace cairn::cpu {
namespace {

constexpr std::int32_t kPieceTokens = 16;

/// Frequencies, then cosines and sines of every token: [T, rotary_dim / 2].
struct RopeScratch {
  double* frequency;
  float *cosines, *sines;
};

RopeScratch carve(const RopeArgs& a, ScratchLayout& layout) {
  const std::size_t half = static_cast<std::size_t>(a.rotary_dim) / 2,
                    tokens = static_cast<std::size_t>(a.batch.token_count);
  return {layout.take<double>(half), layout.take<float>(half * tokens), layout.take<float>(half * tokens)};
}

std::size_t rope_scratch_bytes(const RopeArgs& a) {
  ScratchLayout layout(nullptr);
  carve(a, layout);
  return layout.size_bytes();
}

void turn_token(const RopeArgs& a, const RopeScratch& s, const RowKernels& kernels, std::int32_t b, std::int32_t t) {
  const std::int32_t half = a.rotary_dim / 2;
  const auto position = static_cast<double>(a.starts[b] + (t - a.batch.offsets_host[b]));
  float *cosines = s.cosines + static_cast<std::int64_t>(t) * half,
        *sines = s.sines + static_cast<std::int64_t>(t) * half;
  for (std::int32_t i = 0; i < half; ++i) {
    const double angle = position * s.frequency[i];
    cosines[i] = static_cast<float>(std::cos(angle));
    sines[i] = static_cast<float>(std::sin(angle));
  }
  kernels.rotate(a, row(a.x, t), cosines, sines);
}

void rope_run(BackendQueue* queue, const RopeArgs& a, void* memory) {
  Device& device = device_of(queue);
  ScratchLayout layout(memory);
  const RopeScratch s = carve(a, layout);
  for (std::int32_t i = 0; i < a.rotary_dim / 2; ++i) {
    s.frequency[i] = std::pow(static_cast<double>(a.theta), -2.0 * i / a.rotary_dim);
  }
  const RowKernels& kernels = row_kernels(device.isa);
  device.pool.parallel_ranges(a.batch.token_count, kPieceTokens, [&](std::int64_t begin, std::int64_t end) {
    std::int32_t b = 0;
    for (auto t = static_cast<std::int32_t>(begin); t < end; ++t) {
      while (t >= a.batch.offsets_host[b + 1]) ++b;
      turn_token(a, s, kernels, b, t);
    }
  });
}

}  // namespace

void override_rope(OpTable& ops) {
  ops.rope.scratch_bytes = rope_scratch_bytes;
  ops.rope.run = rope_run;
}

}  // namespace cairn::cpu
