// bytes.h for AVX2, and with QENG_VNNI for AVX-512 VNNI: 256 bits either way, as blocks are small.
#pragma once
#include <immintrin.h>

namespace qeng::isa::QENG_ISA {

using Bytes = __m256i;
using Shorts = __m256i;
using Ints = __m256i;
using Floats = __m256;
using Products = __m256i;

// ---- Bytes
inline Bytes load_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
// 16 bytes in both halves
inline Bytes load_twice(const void* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
// 16 bytes each
inline Bytes load_halves(const void* low, const void* high) {
  const __m128i first = _mm_loadu_si128(static_cast<const __m128i*>(low));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(first), _mm_loadu_si128(static_cast<const __m128i*>(high)), 1);
}
inline void store_bytes(void* p, Bytes a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
// 4 bytes, eight times
inline Bytes splat_four(const void* p) {
  int word;
  __builtin_memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}
// 8 bytes, four times
inline Bytes splat_eight(const void* p) {
  int64_t word;
  __builtin_memcpy(&word, p, 8);
  return _mm256_set1_epi64x(word);
}
inline Bytes words(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {  // 8 bytes each, low first
  return _mm256_set_epi64x(static_cast<int64_t>(d), static_cast<int64_t>(c), static_cast<int64_t>(b),
                           static_cast<int64_t>(a));
}
inline Bytes splat_byte(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
inline Bytes low_of_first_high_of_second(Bytes a, Bytes b) { return _mm256_blend_epi32(a, b, 0xf0); }
inline Bytes mix_low(Bytes a, Bytes b) { return _mm256_unpacklo_epi8(a, b); }  // a0 b0 a1 b1 .., of each 16 bytes
inline Bytes mix_high(Bytes a, Bytes b) { return _mm256_unpackhi_epi8(a, b); }
inline Bytes either(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
inline Bytes add_bytes(Bytes a, Bytes b) { return _mm256_add_epi8(a, b); }  // modulo 256
inline Bytes average(Bytes a, Bytes b) { return _mm256_avg_epu8(a, b); }    // (a + b + 1) / 2, without sign
// (a >> shift) & mask of each byte
template <int shift, int mask>
inline Bytes bits(Bytes a) {
  return _mm256_and_si256(shift ? _mm256_srli_epi16(a, shift) : a, splat_byte(mask));
}
// The same with a shift for each half; mask << high fits a byte.
template <int low, int high>
inline Bytes shift_halves(Bytes a) {
  return _mm256_srlv_epi32(a, _mm256_setr_epi32(low, low, low, low, high, high, high, high));
}
// Of each byte, in lane l of four or of eight: a >> l * step, with bits of its neighbours above.
template <int step>
inline Bytes shift_quarters(Bytes a) {
  return _mm256_srlv_epi64(a, _mm256_setr_epi64x(0, step, 2 * step, 3 * step));
}
template <int step>
inline Bytes shift_eighths(Bytes a) {
  return _mm256_srlv_epi32(a, _mm256_setr_epi32(0, step, 2 * step, 3 * step, 4 * step, 5 * step, 6 * step, 7 * step));
}
// a << n of each byte, which fits
template <int n>
inline Bytes shift_bits_left(Bytes a) {
  return _mm256_slli_epi16(a, n);
}
// Byte k is `value` where bit k of word is set, else 0.
inline Bytes spread_bits(uint32_t word, int value) {
  const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(word)), which);
  return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit), splat_byte(value));
}
// 1 + (a > limit) - (a < -limit) of each byte, with sign. (g++ makes two instructions of a comparison with the number
// next to these, which is further from zero.)
template <int limit>
inline Bytes third_of_range(Bytes a) {
  const __m256i below = _mm256_cmpgt_epi8(splat_byte(-limit), a), above = _mm256_cmpgt_epi8(a, splat_byte(limit));
  return _mm256_sub_epi8(_mm256_add_epi8(below, splat_byte(1)), above);  // true is -1
}
inline Bytes multiply_bytes(Bytes a, Bytes b) {  // modulo 256
  const __m256i high = _mm256_set1_epi16(static_cast<int16_t>(0xff00)), odd = _mm256_srli_epi16(b, 8);
  const __m256i even_product = _mm256_mullo_epi16(a, b),
                odd_product = _mm256_mullo_epi16(_mm256_and_si256(a, high), odd);
  return _mm256_or_si256(_mm256_andnot_si256(high, even_product), odd_product);
}
// table[a] of 16 bytes; a below 16
inline Bytes look_up(const uint64_t (&table)[2], Bytes a) { return _mm256_shuffle_epi8(load_twice(table), a); }

// ---- Products
inline Products no_products() { return _mm256_setzero_si256(); }
// products_of_pairs: in every lane, a factor times sums of the first two and of the last two of four elements, as
// add_products adds them; modulo 2^16. add_scaled: sum plus factors, in pairs of equal ones, times products of bytes,
// whose pairs fit 16 bits.
#if defined(QENG_VNNI)
inline Products add_products(Products p, Bytes unsigned_a, Bytes signed_b) {
  return _mm256_dpbusd_epi32(p, unsigned_a, signed_b);
}
inline Products add_byte_products(Products p, Bytes unsigned_a, Bytes signed_b) {
  return add_products(p, unsigned_a, signed_b);
}
inline Products products_of_pairs(const int16_t* pairs, int factor) {
  return _mm256_set1_epi32(factor * (pairs[0] + pairs[1]));
}
inline Ints widen(Products p) { return p; }
inline Ints widen(Products p, Shorts factors) {  // pairs of equal factors
  return _mm256_mullo_epi32(p, _mm256_srai_epi32(factors, 16));
}
inline Ints add_scaled(Ints sum, Bytes unsigned_a, Bytes signed_b, Shorts factors) {
  return _mm256_dpwssd_epi32(sum, _mm256_maddubs_epi16(unsigned_a, signed_b), factors);
}
#else
inline Products add_products(Products p, Bytes unsigned_a, Bytes signed_b) {
  return _mm256_add_epi16(p, _mm256_maddubs_epi16(unsigned_a, signed_b));
}
inline Products products_of_pairs(const int16_t* pairs, int factor) {
  return _mm256_mullo_epi16(splat_four(pairs), _mm256_set1_epi16(static_cast<int16_t>(factor)));
}
inline Ints widen(Products p) { return _mm256_madd_epi16(p, _mm256_set1_epi16(1)); }
inline Ints widen(Products p, Shorts factors) { return _mm256_madd_epi16(p, factors); }
inline Ints add_scaled(Ints sum, Bytes unsigned_a, Bytes signed_b, Shorts factors) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(unsigned_a, signed_b), factors));
}
#endif
inline Ints add_pairs(Ints sum, Shorts a, Shorts b) {  // products of pairs
#if defined(QENG_VNNI)
  return _mm256_dpwssd_epi32(sum, a, b);
#else
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
#endif
}
// a, made before what the code does next: g++ else moves so many loads up that sums in a loop leave their registers.
inline Products in_order(Products a) {
  asm volatile("" : "+v"(a));
  return a;
}
// |a| and b with the sign of a: their product is that of a and b. b is above -128.
inline Bytes size_of(Bytes a) { return _mm256_abs_epi8(a); }
inline Bytes with_sign_of(Bytes b, Bytes a) { return _mm256_sign_epi8(b, a); }

// ---- Shorts
inline Shorts load_shorts(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline Shorts splat_pair(const int16_t* p) { return splat_four(p); }
inline void store_shorts(void* p, Shorts a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
// 16 bytes in the order of their groups, as Shorts: (byte >> shift) & mask, or with sign
inline __m128i by_halves(const void* p) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  return _mm_shuffle_epi8(_mm_loadu_si128(static_cast<const __m128i*>(p)), order);
}
template <int shift, int mask>
inline Shorts unsigned_groups_of_16(const void* p) {
  return _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(by_halves(p), shift), _mm_set1_epi8(mask)));
}
inline Shorts signed_groups_of_16(const void* p) { return _mm256_cvtepi8_epi16(by_halves(p)); }
// 8 bytes of groups of 32 as Shorts
inline Shorts groups_of_32(uint64_t groups) {
  return _mm256_cvtepu8_epi16(_mm_set1_epi64x(static_cast<int64_t>(groups)));
}
inline Shorts signed_groups_of_32(uint64_t groups) {
  return _mm256_cvtepi8_epi16(_mm_set1_epi64x(static_cast<int64_t>(groups)));
}
// Entry i of each half, for all lanes of the half: the factors of the i-th Bytes.
template <int i>
inline Shorts factors_of(Shorts a) {
  return _mm256_shuffle_epi8(a, _mm256_set1_epi16(static_cast<int16_t>(2 * i + 256 * (2 * i + 1))));
}
// Bytes with sign 8 p .. 8 p + 7 of 32, each as two equal entries.
template <int p>
inline Shorts twice_each(const int8_t* bytes) {
  constexpr int at = p % 2 * 8;
  const auto high = [](int i) { return 256 * i + 128; };  // byte i as the high half of an entry
  const __m256i order = _mm256_setr_epi16(
      static_cast<int16_t>(high(at)), static_cast<int16_t>(high(at)), static_cast<int16_t>(high(at + 1)),
      static_cast<int16_t>(high(at + 1)), static_cast<int16_t>(high(at + 2)), static_cast<int16_t>(high(at + 2)),
      static_cast<int16_t>(high(at + 3)), static_cast<int16_t>(high(at + 3)), static_cast<int16_t>(high(at + 4)),
      static_cast<int16_t>(high(at + 4)), static_cast<int16_t>(high(at + 5)), static_cast<int16_t>(high(at + 5)),
      static_cast<int16_t>(high(at + 6)), static_cast<int16_t>(high(at + 6)), static_cast<int16_t>(high(at + 7)),
      static_cast<int16_t>(high(at + 7)));
  return _mm256_srai_epi16(_mm256_shuffle_epi8(load_twice(bytes + p / 2 * 16), order), 8);
}
// Sums of neighbours, with sign: entry i of codes 2 i and 2 i + 1.
inline Shorts sums_of_pairs(Bytes a) { return _mm256_maddubs_epi16(splat_byte(1), a); }
inline Ints multiply_pairs(Shorts a, Shorts b) { return _mm256_madd_epi16(a, b); }

// ---- Ints
inline Ints splat_int(int x) { return _mm256_set1_epi32(x); }
inline Ints load_ints(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store_ints(int32_t* p, Ints a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }
inline Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints subtract(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
inline Ints multiply_ints(Ints a, Ints b) { return _mm256_mullo_epi32(a, b); }
template <int n>
inline Ints shift_left(Ints a) {
  return _mm256_slli_epi32(a, n);
}
template <int n>
inline Ints shift_right(Ints a) {  // with sign
  return _mm256_srai_epi32(a, n);
}
inline Ints largest(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
// Lane r: the sum of all lanes of rows[r]
inline Ints totals(const Ints (&rows)[8]) {
  const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(rows[0], rows[1]), _mm256_hadd_epi32(rows[2], rows[3]));
  const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(rows[4], rows[5]), _mm256_hadd_epi32(rows[6], rows[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}
// Lane r: the largest of all lanes of rows[r]
inline Ints largest_of(const Ints (&rows)[8]) {
  Ints pairs[4], fours[2];  // in lanes 0 and 2 of each half of pairs[i] row 2 i, in 1 and 3 the next
  for (int i = 0; i < 4; ++i)
    pairs[i] = largest(_mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]),
                       _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]));
  for (int i = 0; i < 2; ++i)
    fours[i] = largest(_mm256_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                       _mm256_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
  return largest(_mm256_permute2x128_si256(fours[0], fours[1], 0x20),
                 _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
}
// In each half, every other lane of a, from the given one on, and then of b
template <int first>
inline Ints every_other(Ints a, Ints b) {
  return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), first ? 0xdd : 0x88));
}
// Lane r of groups[g]: the sum of the lanes of rows[r] that are of group g
template <GroupLanes kind>
inline void totals(const Ints (&rows)[8], Ints (&groups)[groups_of(kind)]) {
  if constexpr (kind == GroupLanes::one_group) {
    groups[0] = totals(rows);
  } else if constexpr (kind == GroupLanes::pairs_of_four) {
    const Ints a = _mm256_hadd_epi32(rows[0], rows[1]), b = _mm256_hadd_epi32(rows[2], rows[3]);
    const Ints c = _mm256_hadd_epi32(rows[4], rows[5]), d = _mm256_hadd_epi32(rows[6], rows[7]);
    const Ints low[2] = {every_other<0>(a, b), every_other<1>(a, b)},
               high[2] = {every_other<0>(c, d), every_other<1>(c, d)};
    for (int g = 0; g < 2; ++g) {
      groups[g] = _mm256_permute2x128_si256(low[g], high[g], 0x20);
      groups[2 + g] = _mm256_permute2x128_si256(low[g], high[g], 0x31);
    }
  } else {
    Ints sums[4];  // of rows r and r + 4
    for (int r = 0; r < 4; ++r)
      sums[r] = add(_mm256_permute2x128_si256(rows[r], rows[r + 4], 0x20),
                    _mm256_permute2x128_si256(rows[r], rows[r + 4], 0x31));
    if constexpr (kind == GroupLanes::pairs_of_two) {
      const Ints a = _mm256_hadd_epi32(sums[0], sums[1]), b = _mm256_hadd_epi32(sums[2], sums[3]);
      groups[0] = every_other<0>(a, b), groups[1] = every_other<1>(a, b);
    } else {
      const Ints a = _mm256_unpacklo_epi32(sums[0], sums[1]), b = _mm256_unpackhi_epi32(sums[0], sums[1]);
      const Ints c = _mm256_unpacklo_epi32(sums[2], sums[3]), d = _mm256_unpackhi_epi32(sums[2], sums[3]);
      groups[0] = _mm256_unpacklo_epi64(a, c), groups[1] = _mm256_unpackhi_epi64(a, c);
      groups[2] = _mm256_unpacklo_epi64(b, d), groups[3] = _mm256_unpackhi_epi64(b, d);
    }
  }
}
inline int sum(Ints a) {
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
inline Ints sum_of_bytes(Bytes a) {  // with sign, in groups of four
  return _mm256_madd_epi16(_mm256_maddubs_epi16(splat_byte(1), a), _mm256_set1_epi16(1));
}

// ---- Floats
inline Floats splat_float(float x) { return _mm256_set1_ps(x); }
inline Floats load_floats(const float* p) { return _mm256_loadu_ps(p); }
inline void store_floats(float* p, Floats a) { _mm256_storeu_ps(p, a); }
inline Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
// Lane r is of(r), an f16 or a float. Not by way of an array: a vector cannot be read back right after its parts.
template <class F>
inline Floats gather(F of) {
  if constexpr (sizeof(of(0)) == sizeof(float)) {
    return _mm256_setr_ps(of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7));
  } else {
    const auto bits = [&](int r) { return static_cast<short>(of(r).bits); };
    return _mm256_cvtph_ps(_mm_setr_epi16(bits(0), bits(1), bits(2), bits(3), bits(4), bits(5), bits(6), bits(7)));
  }
}
inline Floats load_f16(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats subtract_product(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
inline float to_float(f16 x) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x.bits))); }
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }  // to the second level
// Bits of |x|, whose order as integers is that of the numbers, with NaNs above all.
inline Ints size_bits(const float* p) {
  return _mm256_and_si256(_mm256_castps_si256(load_floats(p)), _mm256_set1_epi32(0x7fffffff));
}
// 16 floats times factor to the nearest integers, which fit, in the order of packed halves.
inline Shorts to_shorts(const float* p, float factor) {
  const auto half = [=](int i) { return _mm256_cvtps_epi32(multiply(load_floats(p + 8 * i), splat_float(factor))); };
  return _mm256_packs_epi32(half(0), half(1));
}
// (a factor + 2^14) / 2^15, downwards
inline Shorts multiply_round(Shorts a, int factor) {
  return _mm256_mulhrs_epi16(a, _mm256_set1_epi16(static_cast<int16_t>(factor)));
}
// Two of to_shorts' as bytes, which they fit, in the order of the floats.
inline Bytes to_bytes(Shorts a, Shorts b) {
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

}  // namespace qeng::isa::QENG_ISA
