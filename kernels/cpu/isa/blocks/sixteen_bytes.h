// Sixteen codes of weights on the way to floats (block_decode.cpp): Bytes, 16 of them in a register.
//   low, high       the lower and the upper four bits of each byte; crumbs<shift>: two bits from there on; four_up: times 16
//   both, either, less, alike   a and b, a or b, a - b, all bits of a byte where a is b
//   picked          byte i is byte index[i] of the table
//   sixteen_crumbs  two bits one after the other, of four bytes
//   for_codes       body(first, lanes) for the floats of whole vectors of codes, which have a sign
//   put_signs, put_ternary   the 32 weights of a block of one_bit or ternary
//   Trits           the digits of base 3 of 16 bytes, the first digits first: a byte is 256 times a fraction
#pragma once
#include "kernels/cpu/isa/simd/simd.h"

#if defined(QENG_ISA_avx2) || defined(QENG_ISA_avx512)

namespace qeng::isa::QENG_ISA {
namespace {

using Bytes = __m128i;

inline Bytes bytes_at(const void* p) { return _mm_loadu_si128(static_cast<const Bytes*>(p)); }
inline Bytes all(int x) { return _mm_set1_epi8(static_cast<char>(x)); }
inline Bytes words(uint64_t low, uint64_t high) {
  return _mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low));
}
inline Bytes low(Bytes x) { return _mm_and_si128(x, all(15)); }
inline Bytes high(Bytes x) { return _mm_and_si128(_mm_srli_epi16(x, 4), all(15)); }
template <int shift>
inline Bytes crumbs(Bytes x) {
  return _mm_and_si128(_mm_srli_epi16(x, shift), all(3));
}
inline Bytes four_up(Bytes x) { return _mm_slli_epi16(x, 4); }  // of bytes below 16
inline Bytes both(Bytes a, Bytes b) { return _mm_and_si128(a, b); }
inline Bytes either(Bytes a, Bytes b) { return _mm_or_si128(a, b); }
inline Bytes less(Bytes a, Bytes b) { return _mm_sub_epi8(a, b); }
inline Bytes alike(Bytes a, Bytes b) { return _mm_cmpeq_epi8(a, b); }
inline Bytes picked(Bytes table, Bytes index) { return _mm_shuffle_epi8(table, index); }
inline Bytes sixteen_crumbs(const uint8_t* qs) {
  const Bytes spread =
      _mm_shuffle_epi8(_mm_loadu_si32(qs), _mm_set_epi8(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0));
  const Bytes odd = _mm_set1_epi32(static_cast<int>(0xff00ff00u)),
              second = _mm_set1_epi32(static_cast<int>(0xffff0000u));
  const Bytes shifted = _mm_blendv_epi8(spread, _mm_srli_epi16(spread, 4), second);
  return _mm_and_si128(_mm_blendv_epi8(shifted, _mm_srli_epi16(shifted, 2), odd), all(3));
}

inline Vec eight_or_sixteen(Bytes codes) {
#if defined(QENG_ISA_avx512)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
#else
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
#endif
}
template <class Body>
inline void for_codes(Bytes codes, Body body) {
  body(0, eight_or_sixteen(codes));
  if constexpr (kWidth == 8) body(8, eight_or_sixteen(_mm_srli_si128(codes, 8)));
}

// Lane i: the value of bits of `word` from shift + step * i on, by the lowest ones alone, which is how table repeats.
inline Vec look_up(Vec table, uint32_t word, int shift, int step) {
#if defined(QENG_ISA_avx512)
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i shifts = _mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(step)), _mm512_set1_epi32(shift));
  return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi32(static_cast<int>(word)), shifts), table);
#else
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i shifts = _mm256_add_epi32(_mm256_mullo_epi32(lane, _mm256_set1_epi32(step)), _mm256_set1_epi32(shift));
  return _mm256_permutevar8x32_ps(table, _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(word)), shifts));
#endif
}
inline uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  __builtin_memcpy(&word, p, 4);
  return word;
}
inline void put_signs(const uint8_t* qs, float* out) {
  alignas(64) constexpr float kValues[16] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
  for (int i = 0; i < 32; i += kWidth) store(out + i, look_up(load(kValues), word_at(qs), i, 1));
}
inline void put_ternary(const uint8_t* qs, float* out) {
  alignas(64) constexpr float kValues[16] = {0, 1, -1, 0, 0, 1, -1, 0, 0, 1, -1, 0, 0, 1, -1, 0};
  for (int i = 0; i < 32; i += kWidth) store(out + i, look_up(load(kValues), word_at(qs + i / 16 * 4), i % 16 * 2, 2));
}

struct Trits {
  __m256i wide;  // a byte times 3^n, mod 256
  explicit Trits(const uint8_t* qs) : wide(_mm256_cvtepu8_epi16(bytes_at(qs))) {}
  Bytes next() {
    const __m256i thrice = _mm256_add_epi16(_mm256_add_epi16(wide, wide), wide), digits = _mm256_srli_epi16(thrice, 8);
    wide = _mm256_and_si256(thrice, _mm256_set1_epi16(255));
    return _mm_packus_epi16(_mm256_castsi256_si128(digits), _mm256_extracti128_si256(digits, 1));
  }
};

}  // namespace
}  // namespace qeng::isa::QENG_ISA

#elif defined(QENG_ISA_neon)

namespace qeng::isa::QENG_ISA {
namespace {

using Bytes = uint8x16_t;

inline Bytes bytes_at(const void* p) { return vld1q_u8(static_cast<const uint8_t*>(p)); }
inline Bytes all(int x) { return vdupq_n_u8(static_cast<uint8_t>(x)); }
inline Bytes words(uint64_t low, uint64_t high) { return vcombine_u8(vcreate_u8(low), vcreate_u8(high)); }
inline Bytes low(Bytes x) { return vandq_u8(x, all(15)); }
inline Bytes high(Bytes x) { return vshrq_n_u8(x, 4); }
template <int shift>
inline Bytes crumbs(Bytes x) {
  if constexpr (shift > 0) x = vshrq_n_u8(x, shift);
  return vandq_u8(x, all(3));
}
inline Bytes four_up(Bytes x) { return vshlq_n_u8(x, 4); }
inline Bytes both(Bytes a, Bytes b) { return vandq_u8(a, b); }
inline Bytes either(Bytes a, Bytes b) { return vorrq_u8(a, b); }
inline Bytes less(Bytes a, Bytes b) { return vsubq_u8(a, b); }
inline Bytes alike(Bytes a, Bytes b) { return vceqq_u8(a, b); }
inline Bytes picked(Bytes table, Bytes index) { return vqtbl1q_u8(table, index); }
inline Bytes sixteen_crumbs(const uint8_t* qs) {
  uint32_t word;
  __builtin_memcpy(&word, qs, 4);
  const Bytes spread = picked(vreinterpretq_u8_u32(vdupq_n_u32(word)), words(0x0101010100000000, 0x0303030302020202));
  const int8x16_t down = vreinterpretq_s8_u32(vdupq_n_u32(0xfafcfe00));  // 0, -2, -4, -6
  return vandq_u8(vshlq_u8(spread, down), all(3));
}

template <class Body>
inline void for_codes(Bytes codes, Body body) {
  const auto eight = [](int16x8_t x) {
    return Vec{vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))), vcvtq_f32_s32(vmovl_high_s16(x))};
  };
  const int8x16_t with_sign = vreinterpretq_s8_u8(codes);
  body(0, eight(vmovl_s8(vget_low_s8(with_sign)))), body(8, eight(vmovl_high_s8(with_sign)));
}

inline void put_whole(Bytes codes, float* out) {
  for_codes(codes, [=](int i, Vec q) { store(out + i, q); });
}
inline void put_signs(const uint8_t* qs, float* out) {
  const Bytes bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  for (int i = 0; i < 4; i += 2) {
    const Bytes bytes = vcombine_u8(vdup_n_u8(qs[i]), vdup_n_u8(qs[i + 1]));
    put_whole(less(both(vtstq_u8(bytes, bit), all(2)), all(1)), out + 8 * i);
  }
}
inline void put_ternary(const uint8_t* qs, float* out) {
  const Bytes values = words(0x00ff0100, 0);
  for (int i = 0; i < 8; i += 4) put_whole(picked(values, sixteen_crumbs(qs + i)), out + 4 * i);
}

struct Trits {
  Bytes left;
  explicit Trits(const uint8_t* qs) : left(bytes_at(qs)) {}
  Bytes next() {
    const uint8x16_t three = all(3);
    const Bytes low = vreinterpretq_u8_u16(vmull_u8(vget_low_u8(left), vget_low_u8(three))),
                high = vreinterpretq_u8_u16(vmull_high_u8(left, three));
    left = vuzp1q_u8(low, high);
    return vuzp2q_u8(low, high);
  }
};

}  // namespace
}  // namespace qeng::isa::QENG_ISA

#endif
