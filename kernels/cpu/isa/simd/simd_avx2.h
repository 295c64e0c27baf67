// simd.h for AVX2 with FMA and F16C: 8 lanes.
#pragma once
#include <immintrin.h>

namespace qeng::isa::QENG_ISA {

using Vec = __m256;
constexpr int kWidth = 8;

inline Vec splat(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline Vec load(const bf16* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline Vec load(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Vec load(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
inline __m256i round_to_bf16(Vec v) {  // in 32 bits each
  const __m256i u = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i nearest = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(nearest, quiet, nan);
}
inline void store(bf16* p, Vec v) {
  const __m256i bits = round_to_bf16(v);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
inline __m256i round_two(Vec a, Vec b) {  // to bf16, in order
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(round_to_bf16(a), round_to_bf16(b)), 0xd8);
}
inline void store_two(bf16* p, Vec a, Vec b) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_two(a, b)); }
// The same past the caches, to 64-byte aligned memory.
inline void stream_two(bf16* p, Vec a, Vec b) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), round_two(a, b)); }
inline void stream_two(float* p, Vec a, Vec b) { _mm256_stream_ps(p, a), _mm256_stream_ps(p + kWidth, b); }
inline void store(f16* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec absolute(Vec a) { return _mm256_andnot_ps(splat(-0.0f), a); }
inline Vec with_sign(Vec size, Vec sign) { return _mm256_or_ps(size, _mm256_and_ps(sign, splat(-0.0f))); }
inline Vec flip_sign(Vec a, Vec sign) { return _mm256_xor_ps(a, _mm256_and_ps(sign, splat(-0.0f))); }
inline Vec sqrt(Vec a) { return _mm256_sqrt_ps(a); }
inline Vec less(Vec a, Vec b) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ), splat(1.0f)); }
inline Vec less_equal(Vec a, Vec b) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_LE_OQ), splat(1.0f)); }
inline Vec equal(Vec a, Vec b) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ), splat(1.0f)); }
inline Vec select(Vec c, Vec a, Vec b) {
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(c, _mm256_setzero_ps(), _CMP_NEQ_UQ));
}
using Mask = __m256;  // the sign of each lane
inline Mask below(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline Mask alike(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
inline Mask is_nan(Vec a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
inline Vec choose(Mask m, Vec a, Vec b) { return _mm256_blendv_ps(b, a, m); }
inline Mask is_not_below(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_NLT_UQ); }
inline Mask low_bit(Vec a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 31)); }
inline Vec second_bit_as_sign(Vec a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 30)); }
inline Mask either(Mask a, Mask b) { return _mm256_or_ps(a, b); }
inline bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
inline Vec split_exponent(Vec x, Vec& exponent) {
  const Mask subnormal = below(x, splat(1.17549435e-38f));
  const __m256i root = _mm256_set1_epi32(0x3f3504f3);  // sqrt(1/2)
  const __m256i bits = _mm256_sub_epi32(_mm256_castps_si256(choose(subnormal, x * splat(8388608.0f), x)), root);
  exponent = _mm256_cvtepi32_ps(_mm256_srai_epi32(bits, 23)) - _mm256_and_ps(subnormal, splat(23.0f));
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffff)), root));
}
template <int half>
inline Vec exchange(Vec a) {
  if constexpr (half == 1) return _mm256_permute_ps(a, 0xb1);
  if constexpr (half == 2) return _mm256_permute_ps(a, 0x4e);
  if constexpr (half == 4) return _mm256_permute2f128_ps(a, a, 1);
}
inline float sum(Vec a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float largest(Vec a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

inline Vec round(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec clamp_exponent(Vec x) { return _mm256_max_ps(splat(-104.0f), _mm256_min_ps(splat(104.0f), x)); }
// In two factors, so that neither leaves the normal range.
inline Vec scale_exponent(Vec y, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  return y * _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)) *
         _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
}
inline Vec reciprocal(Vec a) { return splat(1.0f) / a; }

// x - n pi/2 for integral |n| <= 2^17, with pi/2 in three parts: positive ones, for the sign of zero.
inline Vec less_right_angles(Vec x, Vec n) {
  const Vec rest = _mm256_fnmadd_ps(n, splat(0x1.921fb4p+0f), x);
  return _mm256_fnmadd_ps(n, splat(0x1.846988p-48f), _mm256_fnmadd_ps(n, splat(0x1.4442d0p-24f), rest));
}
// The lanes of a Vec as f64.
struct Wide {
  __m256d low, high;
};
inline Wide widened(Vec a) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(a)), _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1))};
}
inline Vec narrowed(Wide a) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(a.low)), _mm256_cvtpd_ps(a.high), 1);
}
inline Wide splat_wide(double x) { return {_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
inline Wide fma(Wide a, Wide b, Wide c) {
  return {_mm256_fmadd_pd(a.low, b.low, c.low), _mm256_fmadd_pd(a.high, b.high, c.high)};
}
inline Wide operator*(Wide a, Wide b) { return {a.low * b.low, a.high * b.high}; }
inline Wide operator-(Wide a, Wide b) { return {a.low - b.low, a.high - b.high}; }

// Lanes of 64 bits, for random words: bits 32 to 63 of an operand do not matter.
using Words = __m256i;
inline Words splat_words(uint64_t x) { return _mm256_set1_epi64x(static_cast<int64_t>(x)); }
inline Words load_words(const uint64_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store_words(uint64_t* p, Words v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
inline Words multiply_words(Words a, Words b) { return _mm256_mul_epu32(a, b); }  // 32 x 32 = 64 bits
inline Words high_words(Words a) { return _mm256_srli_epi64(a, 32); }
inline Words join_words(Words low, Words high) { return _mm256_blend_epi32(_mm256_slli_epi64(high, 32), low, 0x55); }
constexpr int kWords = 4;

}  // namespace qeng::isa::QENG_ISA
