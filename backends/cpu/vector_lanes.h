// One vector of f32 and the few operations that kernels need, for the instruction set that the including file is
// compiled for.
//
// A kernel is written once, in a header "<stem>_kernels.inc.h", and compiled by <stem>_baseline.cpp, <stem>_avx2.cpp
// and <stem>_avx512.cpp, each of which defines CAIRN_ISA as its own namespace. Nothing in those three files may call
// inline functions of other headers (std::max, containers): the linker might keep the AVX copy for everyone.
#pragma once

#ifndef CAIRN_ISA
#error "define CAIRN_ISA (baseline, avx2, avx512) before vector_lanes.h"
#endif

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace cairn::cpu::CAIRN_ISA {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

using Lanes = __m512;
constexpr int kLanes = 16;
inline Lanes load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Lanes x) { _mm512_storeu_ps(p, x); }
inline Lanes broadcast(float x) { return _mm512_set1_ps(x); }
/// The first n of kLanes elements; the other lanes are 0.
inline Lanes load_first(const float* p, int n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}
inline void store_first(float* p, int n, Lanes x) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), x);
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
/// b where either is NaN.
inline Lanes max(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
inline Lanes min(Lanes a, Lanes b) { return _mm512_min_ps(a, b); }
inline Lanes sqrt(Lanes x) { return _mm512_sqrt_ps(x); }
/// x < y ? a : b, lane by lane.
inline Lanes select_less(Lanes x, Lanes y, Lanes a, Lanes b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b, a);
}
inline Lanes round_to_even(Lanes x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/// x * 2^n, n integral; right down to denormals and up to infinity.
inline Lanes scale_by_power(Lanes x, Lanes n) { return _mm512_scalef_ps(x, n); }
inline Lanes load_bf16(const std::uint16_t* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
inline Lanes load_f16(const std::uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Lanes load_i8(const std::int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

using Lanes = __m256;
constexpr int kLanes = 8;
inline Lanes load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Lanes x) { _mm256_storeu_ps(p, x); }
inline Lanes broadcast(float x) { return _mm256_set1_ps(x); }
inline __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Lanes load_first(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
inline void store_first(float* p, int n, Lanes x) { _mm256_maskstore_ps(p, first_lanes(n), x); }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
inline Lanes max(Lanes a, Lanes b) { return _mm256_max_ps(a, b); }
inline Lanes min(Lanes a, Lanes b) { return _mm256_min_ps(a, b); }
inline Lanes sqrt(Lanes x) { return _mm256_sqrt_ps(x); }
inline Lanes select_less(Lanes x, Lanes y, Lanes a, Lanes b) {
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_LT_OQ));
}
inline Lanes round_to_even(Lanes x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Lanes power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
/// For n in [-252, 254]: in two steps, so that the result may be denormal or infinite.
inline Lanes scale_by_power(Lanes x, Lanes n) {
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  return x * power_of_two(half) * power_of_two(_mm256_sub_epi32(whole, half));
}
inline Lanes load_bf16(const std::uint16_t* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline Lanes load_f16(const std::uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Lanes load_i8(const std::int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

#else

// Any machine: the compiler's own vectors of 16 bytes (SSE2, NEON), fused multiply-add written as two roundings.
typedef float Lanes __attribute__((vector_size(16)));
typedef std::int32_t LanesI32 __attribute__((vector_size(16)));
constexpr int kLanes = 4;
inline Lanes load(const float* p) {
  Lanes x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline void store(float* p, Lanes x) { std::memcpy(p, &x, sizeof x); }
inline Lanes broadcast(float x) { return Lanes{x, x, x, x}; }
inline Lanes load_first(const float* p, int n) {
  Lanes x = {0, 0, 0, 0};
  for (int i = 0; i < n && i < kLanes; ++i) x[i] = p[i];
  return x;
}
inline void store_first(float* p, int n, Lanes x) {
  for (int i = 0; i < n && i < kLanes; ++i) p[i] = x[i];
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return a * b + c; }
inline Lanes pick(LanesI32 mask, Lanes a, Lanes b) {
  LanesI32 x, y;
  std::memcpy(&x, &a, sizeof x);
  std::memcpy(&y, &b, sizeof y);
  const LanesI32 picked = (x & mask) | (y & ~mask);
  std::memcpy(&a, &picked, sizeof a);
  return a;
}
inline Lanes max(Lanes a, Lanes b) { return pick(LanesI32(a > b), a, b); }
inline Lanes min(Lanes a, Lanes b) { return pick(LanesI32(a < b), a, b); }
inline Lanes sqrt(Lanes x) {
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
}
inline Lanes select_less(Lanes x, Lanes y, Lanes a, Lanes b) { return pick(LanesI32(x < y), a, b); }
/// For |x| < 2^22.
inline Lanes round_to_even(Lanes x) {
  const Lanes shift = broadcast(12582912.0f);  // 1.5 * 2^23: the sum has no fraction bits
  return (x + shift) - shift;
}
inline Lanes power_of_two(LanesI32 n) {
  const LanesI32 bits = (n + 127) << 23;
  Lanes x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline Lanes scale_by_power(Lanes x, Lanes n) {
  n = pick(LanesI32(n == n), n, broadcast(0.0f));  // NaN has no integer; x is NaN then too
  const LanesI32 whole = __builtin_convertvector(n, LanesI32), half = whole >> 1;
  return x * power_of_two(half) * power_of_two(whole - half);
}
inline Lanes load_bf16(const std::uint16_t* p) {
  const LanesI32 bits = LanesI32{p[0], p[1], p[2], p[3]} << 16;
  Lanes x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16, magnitude = half & 0x7fff;
  std::uint32_t bits =
      (magnitude << 13) + (magnitude >= 0x7c00 ? 0x70000000u : 0x38000000u);  // rebias; infinity and NaN
  float x;
  std::memcpy(&x, &bits, sizeof x);
  if (magnitude < 0x400) x = static_cast<float>(magnitude) * 0x1p-24f;  // zero and denormals
  std::memcpy(&bits, &x, sizeof x);
  bits |= sign;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline Lanes load_f16(const std::uint16_t* p) {
  return Lanes{f16_to_f32(p[0]), f16_to_f32(p[1]), f16_to_f32(p[2]), f16_to_f32(p[3])};
}
inline Lanes load_i8(const std::int8_t* p) {
  return Lanes{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]), static_cast<float>(p[3])};
}

#endif

/// Sum and largest of the lanes, always in the same order: halves are folded onto each other.
inline float sum(Lanes x) {
  float lane[kLanes];
  store(lane, x);
  for (int width = kLanes / 2; width; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}
inline float largest(Lanes x) {
  float lane[kLanes];
  store(lane, x);
  for (int i = 1; i < kLanes; ++i) lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
  return lane[0];
}

/// Four sums at once, each as sum().
inline void sum4(Lanes a, Lanes b, Lanes c, Lanes d, float* out) {
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
  const auto fold_to_4 = [](Lanes x) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#else
    const __m256 half = x;
#endif
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  };
  const __m128 a4 = fold_to_4(a), b4 = fold_to_4(b), c4 = fold_to_4(c), d4 = fold_to_4(d);
  const __m128 ab = _mm_add_ps(_mm_movelh_ps(a4, b4), _mm_movehl_ps(b4, a4));
  const __m128 cd = _mm_add_ps(_mm_movelh_ps(c4, d4), _mm_movehl_ps(d4, c4));
  const __m128 even = _mm_shuffle_ps(ab, cd, _MM_SHUFFLE(2, 0, 2, 0)),
               odd = _mm_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 1, 3, 1));
  _mm_storeu_ps(out, _mm_add_ps(even, odd));
#else
  out[0] = sum(a);
  out[1] = sum(b);
  out[2] = sum(c);
  out[3] = sum(d);
#endif
}

/// Four rows of four sums, each as sum(); row r goes to out + r * stride.
inline void sum16(const Lanes (*x)[4], float* out, std::int64_t stride) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
  Lanes row[4];  // after the folds onto 8 and 4 lanes: 128-bit lane c holds the four partial sums of column c
  for (int r = 0; r < 4; ++r) {
    const Lanes ab = _mm512_shuffle_f32x4(x[r][0], x[r][1], 0x44) + _mm512_shuffle_f32x4(x[r][0], x[r][1], 0xee);
    const Lanes cd = _mm512_shuffle_f32x4(x[r][2], x[r][3], 0x44) + _mm512_shuffle_f32x4(x[r][2], x[r][3], 0xee);
    row[r] = _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xdd);
  }
  const auto fold_2 = [](Lanes a, Lanes b) {
    const __m512d p = _mm512_castps_pd(a), q = _mm512_castps_pd(b);
    return _mm512_castpd_ps(_mm512_unpacklo_pd(p, q)) + _mm512_castpd_ps(_mm512_unpackhi_pd(p, q));
  };
  const Lanes even = fold_2(row[0], row[1]), odd = fold_2(row[2], row[3]);
  const Lanes columns = _mm512_shuffle_ps(even, odd, 0x88) + _mm512_shuffle_ps(even, odd, 0xdd);
  const Lanes rows =
      _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), columns);
  _mm_storeu_ps(out, _mm512_castps512_ps128(rows));
  _mm_storeu_ps(out + stride, _mm512_extractf32x4_ps(rows, 1));
  _mm_storeu_ps(out + 2 * stride, _mm512_extractf32x4_ps(rows, 2));
  _mm_storeu_ps(out + 3 * stride, _mm512_extractf32x4_ps(rows, 3));
#else
  for (int r = 0; r < 4; ++r) sum4(x[r][0], x[r][1], x[r][2], x[r][3], out + r * stride);
#endif
}

/// e^x within 2 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, and a polynomial of degree 7 in r. 0 below -104, infinity
/// above 89.
inline Lanes exp(Lanes x) {
  x = max(broadcast(-105.0f), min(broadcast(90.0f), x));
  const Lanes n = round_to_even(x * broadcast(1.44269504f));
  Lanes r = fma(n, broadcast(-0.693145752f), x);  // ln 2 in two parts, the first with 9 zero bits at its end
  r = fma(n, broadcast(-1.42860677e-6f), r);
  Lanes p = broadcast(1.0f / 5040);
  p = fma(p, r, broadcast(1.0f / 720));
  p = fma(p, r, broadcast(1.0f / 120));
  p = fma(p, r, broadcast(1.0f / 24));
  p = fma(p, r, broadcast(1.0f / 6));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p * r, r, r);
  return scale_by_power(p + broadcast(1.0f), n);
}

inline Lanes sigmoid(Lanes x) { return broadcast(1.0f) / (broadcast(1.0f) + exp(broadcast(0.0f) - x)); }
inline Lanes silu(Lanes x) { return x / (broadcast(1.0f) + exp(broadcast(0.0f) - x)); }

/// log(1 + e^x) = max(x, 0) + log1p(e^-|x|), with log1p(u) = 2 atanh(u / (2 + u)); that argument is at most 1/3.
inline Lanes softplus(Lanes x) {
  const Lanes zero = broadcast(0.0f), u = exp(min(x, zero - x)), s = u / (u + broadcast(2.0f)), z = s * s;
  Lanes p = broadcast(1.0f / 17);
  p = fma(p, z, broadcast(1.0f / 15));
  p = fma(p, z, broadcast(1.0f / 13));
  p = fma(p, z, broadcast(1.0f / 11));
  p = fma(p, z, broadcast(1.0f / 9));
  p = fma(p, z, broadcast(1.0f / 7));
  p = fma(p, z, broadcast(1.0f / 5));
  p = fma(p, z, broadcast(1.0f / 3));
  p = fma(p, z, broadcast(1.0f));
  return max(zero, x) + (s + s) * p;
}

}  // namespace cairn::cpu::CAIRN_ISA
