// Eight neighbouring weights of a row as four words of bf16 pairs, from bf16, i8 or i4. Integers are exact in bf16: the
// scale of i8 is a factor of a row's sum; that of i4 is one of the sum over its group of 32 or 64 inputs.
#pragma once

#include "backends/gpu/platform/gpu_matrix.h"
#include "backends/interface/tensor_view.h"

namespace cairn::gpu {

template <int kCount>
struct alignas(4 * kCount) Words {
  std::uint32_t word[kCount];
};

/// 2^23 + 128 + x for a signed byte, 2^23 + 8 + x for a signed nibble: as f32 bits, then the offset is taken off.
__device__ inline float signed_byte(std::uint32_t byte) {
  return bits_to_float(0x4B000000u | (byte ^ 0x80u)) - 8388736.0f;
}
__device__ inline float signed_nibble(std::uint32_t nibble) {
  return bits_to_float(0x4B000000u | (nibble ^ 8u)) - 8388616.0f;
}

struct Bf16Eights {
  using Raw = Words<4>;
  static constexpr DType kType = DType::kBF16;
  static constexpr int kRawBytes = 16;
  __device__ static Words<4> unpack(const Raw& raw) { return raw; }
};
struct I8Eights {
  using Raw = Words<2>;
  static constexpr DType kType = DType::kI8;
  static constexpr int kRawBytes = 8;
  __device__ static Words<4> unpack(const Raw& raw) {
    Words<4> pairs;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t two = raw.word[i / 2] >> (i % 2 * 16);
      pairs.word[i] = pack_bf16(signed_byte(two & 0xFFu), signed_byte(two >> 8 & 0xFFu));
    }
    return pairs;
  }
};
struct I4Eights {
  using Raw = Words<1>;
  static constexpr DType kType = DType::kI4;
  static constexpr int kRawBytes = 4;
  __device__ static Words<4> unpack(const Raw& raw) {
    Words<4> pairs;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t two = raw.word[0] >> (i * 8);
      pairs.word[i] = pack_bf16(signed_nibble(two & 15u), signed_nibble(two >> 4 & 15u));
    }
    return pairs;
  }
};
/// Eight weights of i4 with their scale, rounded to bf16.
__device__ inline Words<4> unpack_scaled(const Words<1>& raw, float scale) {
  Words<4> pairs;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t two = raw.word[0] >> (i * 8);
    pairs.word[i] = pack_bf16(scale * signed_nibble(two & 15u), scale * signed_nibble(two >> 4 & 15u));
  }
  return pairs;
}

/// Calls run with the reader of this type of weights.
template <class Run>
void with_weight_eights(DType type, const Run& run) {
  if (type == DType::kBF16) return run(Bf16Eights{});
  if (type == DType::kI8) return run(I8Eights{});
  run(I4Eights{});
}

}  // namespace cairn::gpu
