// simd.h for AVX-512 F, BW, DQ and VL: 16 lanes.
#pragma once
#include <immintrin.h>

namespace qeng::isa::QENG_ISA {

using Vec = __m512;
constexpr int kWidth = 16;

inline __mmask16 first_lanes(int64_t n) {
  return n >= kWidth ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << (n > 0 ? n : 0)) - 1u);
}
inline Vec from_bf16(__m256i bits) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)); }
inline __m256i round_to_bf16(Vec v) {
  const __m512i u = _mm512_castps_si512(v), high = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(nearest, nan, high, _mm512_set1_epi32(0x40)));
}

// Two vectors in order. The upper halves are u, and u + 0x7fff + its bit 16, or for a NaN u with bit 22.
inline __m512i upper_rounded(Vec v) {
  const __m512i u = _mm512_castps_si512(v), one = _mm512_set1_epi32(1);
  const __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000)),
                  nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i half = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
  return _mm512_mask_or_epi32(_mm512_mask_add_epi32(half, odd, half, one), nan, u, _mm512_set1_epi32(0x400000));
}
alignas(64) constexpr uint16_t kUpperHalves[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                   33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
inline void store_two(bf16* p, Vec a, Vec b) {
  const __m512i upper = _mm512_load_si512(kUpperHalves);
  _mm512_storeu_si512(p, _mm512_permutex2var_epi16(upper_rounded(a), upper, upper_rounded(b)));
}
// The same past the caches, to 64-byte aligned memory.
inline void stream_two(bf16* p, Vec a, Vec b) {
  const __m512i upper = _mm512_load_si512(kUpperHalves);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p),
                      _mm512_permutex2var_epi16(upper_rounded(a), upper, upper_rounded(b)));
}
inline void stream_two(float* p, Vec a, Vec b) { _mm512_stream_ps(p, a), _mm512_stream_ps(p + kWidth, b); }

inline Vec splat(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec load(const bf16* p) { return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Vec load(const f16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Vec load(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// A count that the compiler knows to be kWidth costs no mask.
inline Vec load(const float* p, int64_t n) { return n >= kWidth ? load(p) : _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline Vec load(const bf16* p, int64_t n) {
  return n >= kWidth ? load(p) : from_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
inline Vec load(const f16* p, int64_t n) {
  return n >= kWidth ? load(p) : _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}

inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline void store(bf16* p, Vec v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_to_bf16(v)); }
inline void store(f16* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline void store(float* p, Vec v, int64_t n) {
  n >= kWidth ? store(p, v) : _mm512_mask_storeu_ps(p, first_lanes(n), v);
}
inline void store(bf16* p, Vec v, int64_t n) {
  n >= kWidth ? store(p, v) : _mm256_mask_storeu_epi16(p, first_lanes(n), round_to_bf16(v));
}
inline void store(f16* p, Vec v, int64_t n) {
  n >= kWidth ? store(p, v)
              : _mm256_mask_storeu_epi16(p, first_lanes(n), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec absolute(Vec a) { return _mm512_andnot_ps(splat(-0.0f), a); }
inline Vec with_sign(Vec size, Vec sign) { return _mm512_or_ps(size, _mm512_and_ps(sign, splat(-0.0f))); }
inline Vec flip_sign(Vec a, Vec sign) { return _mm512_xor_ps(a, _mm512_and_ps(sign, splat(-0.0f))); }
inline Vec sqrt(Vec a) { return _mm512_sqrt_ps(a); }
inline Vec less(Vec a, Vec b) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), splat(1.0f)); }
inline Vec less_equal(Vec a, Vec b) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_LE_OQ), splat(1.0f)); }
inline Vec equal(Vec a, Vec b) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), splat(1.0f)); }
inline Vec select(Vec c, Vec a, Vec b) {
  return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(c, _mm512_setzero_ps(), _CMP_NEQ_UQ), a);
}
using Mask = __mmask16;
inline Mask below(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline Mask alike(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Mask is_nan(Vec a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
inline Vec choose(Mask m, Vec a, Vec b) { return _mm512_mask_mov_ps(b, m, a); }
inline Mask is_not_below(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
inline Mask low_bit(Vec a) { return _mm512_test_epi32_mask(_mm512_castps_si512(a), _mm512_set1_epi32(1)); }
inline Vec second_bit_as_sign(Vec a) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 30)); }
inline Mask either(Mask a, Mask b) { return static_cast<Mask>(a | b); }
inline bool any(Mask m) { return m != 0; }
inline Vec split_exponent(Vec x, Vec& exponent) {
  const Vec found = _mm512_maskz_getexp_ps(static_cast<__mmask16>(0xffff), x);  // GCC 12 warns of the plain form
  const Vec m = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
  const Mask large = below(splat(1.41421356f), m);
  exponent = _mm512_mask_add_ps(found, large, found, splat(1.0f));
  return _mm512_mask_mul_ps(m, large, m, splat(0.5f));
}
template <int half>
inline Vec exchange(Vec a) {
  if constexpr (half == 1) return _mm512_permute_ps(a, 0xb1);
  if constexpr (half == 2) return _mm512_permute_ps(a, 0x4e);
  if constexpr (half == 4) return _mm512_shuffle_f32x4(a, a, 0xb1);
  if constexpr (half == 8) return _mm512_shuffle_f32x4(a, a, 0x4e);
}
inline float sum(Vec a) { return _mm512_reduce_add_ps(a); }
inline float largest(Vec a) { return _mm512_reduce_max_ps(a); }

inline Vec round(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// x where e^x is neither 0 nor infinity, else the nearest end; a NaN stays.
inline Vec clamp_exponent(Vec x) { return _mm512_max_ps(splat(-104.0f), _mm512_min_ps(splat(104.0f), x)); }
// y * 2^n for integral n: 0 below the range, infinity above it.
inline Vec scale_exponent(Vec y, Vec n) { return _mm512_scalef_ps(y, n); }
// 1 / a for normal a: a 14-bit estimate and a step of Newton's.
inline Vec reciprocal(Vec a) {
  const Vec estimate = _mm512_rcp14_ps(a);
  return estimate * _mm512_fnmadd_ps(a, estimate, splat(2.0f));
}

// x - n pi/2 for integral |n| <= 2^17, with pi/2 in three parts: positive ones, for the sign of zero.
inline Vec less_right_angles(Vec x, Vec n) {
  const Vec rest = _mm512_fnmadd_ps(n, splat(0x1.921fb4p+0f), x);
  return _mm512_fnmadd_ps(n, splat(0x1.846988p-48f), _mm512_fnmadd_ps(n, splat(0x1.4442d0p-24f), rest));
}
// The lanes of a Vec as f64.
struct Wide {
  __m512d low, high;
};
inline Wide widened(Vec a) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(a)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1))};
}
inline Vec narrowed(Wide a) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(a.low)), _mm512_cvtpd_ps(a.high), 1);
}
inline Wide splat_wide(double x) { return {_mm512_set1_pd(x), _mm512_set1_pd(x)}; }
inline Wide fma(Wide a, Wide b, Wide c) {
  return {_mm512_fmadd_pd(a.low, b.low, c.low), _mm512_fmadd_pd(a.high, b.high, c.high)};
}
inline Wide operator*(Wide a, Wide b) { return {a.low * b.low, a.high * b.high}; }
inline Wide operator-(Wide a, Wide b) { return {a.low - b.low, a.high - b.high}; }

// Lanes of 64 bits, for random words: bits 32 to 63 of an operand do not matter.
using Words = __m512i;
inline Words splat_words(uint64_t x) { return _mm512_set1_epi64(static_cast<int64_t>(x)); }
inline Words load_words(const uint64_t* p) { return _mm512_loadu_si512(p); }
inline void store_words(uint64_t* p, Words v) { _mm512_storeu_si512(p, v); }
inline Words multiply_words(Words a, Words b) { return _mm512_mul_epu32(a, b); }  // 32 x 32 = 64 bits
inline Words high_words(Words a) { return _mm512_srli_epi64(a, 32); }
inline Words join_words(Words low, Words high) {
  return _mm512_mask_mov_epi32(_mm512_slli_epi64(high, 32), 0x5555, low);
}
constexpr int kWords = 8;

}  // namespace qeng::isa::QENG_ISA
