// bytes.h for NEON, and with QENG_DOTPROD for its dot products of bytes: two registers each.
#pragma once
#include <arm_neon.h>

namespace qeng::isa::QENG_ISA {

struct Bytes {
  uint8x16_t low, high;
};
struct Shorts {
  int16x8_t low, high;
};
struct Ints {
  int32x4_t low, high;
};
struct Floats {
  float32x4_t low, high;
};
using Products = Ints;

inline int8x16_t with_sign(uint8x16_t a) { return vreinterpretq_s8_u8(a); }
inline uint8x16_t without_sign(int8x16_t a) { return vreinterpretq_u8_s8(a); }

// ---- Bytes
inline Bytes load_halves(const void* low, const void* high) {
  return {vld1q_u8(static_cast<const uint8_t*>(low)), vld1q_u8(static_cast<const uint8_t*>(high))};
}
inline Bytes load_bytes(const void* p) { return load_halves(p, static_cast<const uint8_t*>(p) + 16); }
inline Bytes load_twice(const void* p) { return load_halves(p, p); }
inline void store_bytes(void* p, Bytes a) {
  vst1q_u8(static_cast<uint8_t*>(p), a.low), vst1q_u8(static_cast<uint8_t*>(p) + 16, a.high);
}
inline Bytes words(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  return {vcombine_u8(vcreate_u8(a), vcreate_u8(b)), vcombine_u8(vcreate_u8(c), vcreate_u8(d))};
}
inline Bytes splat_eight(const void* p) {
  uint64_t word;
  __builtin_memcpy(&word, p, 8);
  return words(word, word, word, word);
}
inline Bytes splat_four(const void* p) {
  uint32_t word;
  __builtin_memcpy(&word, p, 4);
  const uint8x16_t all = vreinterpretq_u8_u32(vdupq_n_u32(word));
  return {all, all};
}
inline Bytes splat_byte(int x) {
  const uint8x16_t all = vdupq_n_u8(static_cast<uint8_t>(x));
  return {all, all};
}
inline Bytes low_of_first_high_of_second(Bytes a, Bytes b) { return {a.low, b.high}; }
inline Bytes mix_low(Bytes a, Bytes b) { return {vzip1q_u8(a.low, b.low), vzip1q_u8(a.high, b.high)}; }
inline Bytes mix_high(Bytes a, Bytes b) { return {vzip2q_u8(a.low, b.low), vzip2q_u8(a.high, b.high)}; }
inline Bytes either(Bytes a, Bytes b) { return {vorrq_u8(a.low, b.low), vorrq_u8(a.high, b.high)}; }
inline Bytes add_bytes(Bytes a, Bytes b) { return {vaddq_u8(a.low, b.low), vaddq_u8(a.high, b.high)}; }
inline Bytes average(Bytes a, Bytes b) { return {vrhaddq_u8(a.low, b.low), vrhaddq_u8(a.high, b.high)}; }
template <int shift, int mask>
inline Bytes bits(Bytes a) {
  const auto part = [](uint8x16_t x) {
    if constexpr (shift > 0) x = vshrq_n_u8(x, shift);
    return vandq_u8(x, vdupq_n_u8(mask));
  };
  return {part(a.low), part(a.high)};
}
inline Bytes shift_down(Bytes a, Bytes counts) {  // a >> count of each byte
  return {vshlq_u8(a.low, vnegq_s8(with_sign(counts.low))), vshlq_u8(a.high, vnegq_s8(with_sign(counts.high)))};
}
template <int low, int high>
inline Bytes shift_halves(Bytes a) {
  return shift_down(a, low_of_first_high_of_second(splat_byte(low), splat_byte(high)));
}
constexpr uint64_t kOnes = 0x0101010101010101;  // a byte each
template <int step>
inline Bytes shift_quarters(Bytes a) {
  return shift_down(a, words(0, step * kOnes, 2 * step * kOnes, 3 * step * kOnes));
}
template <int step>
inline Bytes shift_eighths(Bytes a) {
  constexpr uint64_t first = (kOnes << 32) * step, two = 2 * step * kOnes;
  return shift_down(a, words(first, first + two, first + 2 * two, first + 3 * two));
}
template <int n>
inline Bytes shift_bits_left(Bytes a) {
  return {vshlq_n_u8(a.low, n), vshlq_n_u8(a.high, n)};
}
inline Bytes spread_bits(uint32_t word, int value) {
  const Bytes which = words(0, kOnes, 2 * kOnes, 3 * kOnes), all = splat_byte(value);
  const uint8x16_t bytes = vreinterpretq_u8_u32(vdupq_n_u32(word));
  const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
  return {vandq_u8(vtstq_u8(vqtbl1q_u8(bytes, which.low), bit), all.low),
          vandq_u8(vtstq_u8(vqtbl1q_u8(bytes, which.high), bit), all.high)};
}
template <int limit>
inline Bytes third_of_range(Bytes a) {
  const auto third = [](int8x16_t x) {
    const uint8x16_t above = vcgtq_s8(x, vdupq_n_s8(limit)), below = vcltq_s8(x, vdupq_n_s8(-limit));
    return vsubq_u8(vaddq_u8(below, vdupq_n_u8(1)), above);  // true is -1
  };
  return {third(with_sign(a.low)), third(with_sign(a.high))};
}
inline Bytes multiply_bytes(Bytes a, Bytes b) { return {vmulq_u8(a.low, b.low), vmulq_u8(a.high, b.high)}; }
inline Bytes look_up(const uint64_t (&table)[2], Bytes a) {
  const uint8x16_t entries = vcombine_u8(vcreate_u8(table[0]), vcreate_u8(table[1]));
  return {vqtbl1q_u8(entries, a.low), vqtbl1q_u8(entries, a.high)};
}

// ---- Products of bytes with sign. Codes without one are below 128, so they are such bytes too; size_of and with_sign_of
// leave signs where they are.
inline Products no_products() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
inline int32x4_t add_products(int32x4_t sum, int8x16_t a, int8x16_t b) {
#if defined(QENG_DOTPROD)
  return vdotq_s32(sum, a, b);
#else
  const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
  return vpadalq_s16(sum, vpaddq_s16(low, high));  // two products fit 16 bits: -128 meets no other
#endif
}
inline Products add_products(Products p, Bytes unsigned_a, Bytes signed_b) {
  return {add_products(p.low, with_sign(unsigned_a.low), with_sign(signed_b.low)),
          add_products(p.high, with_sign(unsigned_a.high), with_sign(signed_b.high))};
}
#if defined(QENG_I8MM)
inline Products add_byte_products(Products p, Bytes unsigned_a, Bytes signed_b) {  // of all 256 bytes without sign
  return {vusdotq_s32(p.low, unsigned_a.low, with_sign(signed_b.low)),
          vusdotq_s32(p.high, unsigned_a.high, with_sign(signed_b.high))};
}
#endif
inline Bytes size_of(Bytes a) { return a; }
inline Bytes with_sign_of(Bytes b, Bytes) { return b; }
inline Products products_of_pairs(const int16_t* pairs, int factor) {
  const int32x4_t all = vdupq_n_s32(factor * (pairs[0] + pairs[1]));
  return {all, all};
}
inline Ints widen(Products p) { return p; }
inline Ints add_scaled(Ints sum, Products p, Shorts factors) {  // pairs of equal factors
  const auto factor = [](int16x8_t pairs) { return vshrq_n_s32(vreinterpretq_s32_s16(pairs), 16); };
  return {vmlaq_s32(sum.low, p.low, factor(factors.low)), vmlaq_s32(sum.high, p.high, factor(factors.high))};
}
inline Ints widen(Products p, Shorts factors) { return add_scaled(no_products(), p, factors); }
inline Ints add_scaled(Ints sum, Bytes unsigned_a, Bytes signed_b, Shorts factors) {
  return add_scaled(sum, add_products(no_products(), unsigned_a, signed_b), factors);
}
inline Products in_order(Products a) {  // as bytes_avx2.h says
  asm volatile("" : "+w"(a.low), "+w"(a.high));
  return a;
}

// ---- Shorts
inline Shorts load_shorts(const void* p) {
  const Bytes a = load_bytes(p);
  return {vreinterpretq_s16_u8(a.low), vreinterpretq_s16_u8(a.high)};
}
inline Shorts splat_pair(const int16_t* p) {
  const Bytes a = splat_four(p);
  return {vreinterpretq_s16_u8(a.low), vreinterpretq_s16_u8(a.high)};
}
inline void store_shorts(void* p, Shorts a) {
  store_bytes(p, {vreinterpretq_u8_s16(a.low), vreinterpretq_u8_s16(a.high)});
}
inline int16x8_t wide(uint8x8_t a) { return vreinterpretq_s16_u16(vmovl_u8(a)); }
template <int shift, int mask>
inline Shorts unsigned_groups_of_16(const void* p) {
  const uint8x8x2_t groups = vld2_u8(static_cast<const uint8_t*>(p));
  const auto part = [](uint8x8_t x) {
    if constexpr (shift > 0) x = vshr_n_u8(x, shift);
    return wide(vand_u8(x, vdup_n_u8(mask)));
  };
  return {part(groups.val[0]), part(groups.val[1])};
}
inline Shorts signed_groups_of_16(const void* p) {
  const int8x8x2_t groups = vld2_s8(static_cast<const int8_t*>(p));
  return {vmovl_s8(groups.val[0]), vmovl_s8(groups.val[1])};
}
inline Shorts groups_of_32(uint64_t groups) {
  const int16x8_t all = wide(vcreate_u8(groups));
  return {all, all};
}
inline Shorts signed_groups_of_32(uint64_t groups) {
  const int16x8_t all = vmovl_s8(vcreate_s8(groups));
  return {all, all};
}
template <int i>
inline Shorts factors_of(Shorts a) {
  return {vdupq_laneq_s16(a.low, i), vdupq_laneq_s16(a.high, i)};
}
template <int p>
inline Shorts twice_each(const int8_t* bytes) {
  const int16x8_t each = vmovl_s8(vld1_s8(bytes + 8 * p));
  return {vzip1q_s16(each, each), vzip2q_s16(each, each)};
}
inline Shorts sums_of_pairs(Bytes a) { return {vpaddlq_s8(with_sign(a.low)), vpaddlq_s8(with_sign(a.high))}; }
inline int32x4_t multiply_pairs(int16x8_t a, int16x8_t b) {
  return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
}
inline Ints multiply_pairs(Shorts a, Shorts b) {
  return {multiply_pairs(a.low, b.low), multiply_pairs(a.high, b.high)};
}

// ---- Ints
inline Ints splat_int(int x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
inline Ints load_ints(const int32_t* p) { return {vld1q_s32(p), vld1q_s32(p + 4)}; }
inline void store_ints(int32_t* p, Ints a) { vst1q_s32(p, a.low), vst1q_s32(p + 4, a.high); }
inline Ints add(Ints a, Ints b) { return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }
inline Ints add_pairs(Ints sum, Shorts a, Shorts b) { return add(sum, multiply_pairs(a, b)); }
inline Ints subtract(Ints a, Ints b) { return {vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)}; }
inline Ints multiply_ints(Ints a, Ints b) { return {vmulq_s32(a.low, b.low), vmulq_s32(a.high, b.high)}; }
template <int n>
inline Ints shift_left(Ints a) {
  return {vshlq_n_s32(a.low, n), vshlq_n_s32(a.high, n)};
}
template <int n>
inline Ints shift_right(Ints a) {
  return {vshrq_n_s32(a.low, n), vshrq_n_s32(a.high, n)};
}
inline Ints largest(Ints a, Ints b) { return {vmaxq_s32(a.low, b.low), vmaxq_s32(a.high, b.high)}; }
inline int sum(Ints a) { return vaddvq_s32(vaddq_s32(a.low, a.high)); }
// Lane r: what pairs(a, b), neighbours of a and then of b, makes of all lanes of rows[r], whose halves are joined.
template <class Joined, class Pairs>
inline Ints of_rows(const Ints (&rows)[8], Joined joined, Pairs pairs) {
  int32x4_t all[8];
  for (int r = 0; r < 8; ++r) all[r] = joined(rows[r].low, rows[r].high);
  return {pairs(pairs(all[0], all[1]), pairs(all[2], all[3])), pairs(pairs(all[4], all[5]), pairs(all[6], all[7]))};
}
inline Ints totals(const Ints (&rows)[8]) {
  return of_rows(
      rows, [](int32x4_t a, int32x4_t b) { return vaddq_s32(a, b); },
      [](int32x4_t a, int32x4_t b) { return vpaddq_s32(a, b); });
}
inline Ints largest_of(const Ints (&rows)[8]) {
  return of_rows(
      rows, [](int32x4_t a, int32x4_t b) { return vmaxq_s32(a, b); },
      [](int32x4_t a, int32x4_t b) { return vpmaxq_s32(a, b); });
}
// Of eight vectors whose neighbours add up to groups 0 and 1: lane r is that of vector r.
template <class Of>
inline void pair_totals(Of of, Ints& first, Ints& second) {
  int32x4_t sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = vpaddq_s32(of(2 * i), of(2 * i + 1));
  first = {vuzp1q_s32(sums[0], sums[1]), vuzp1q_s32(sums[2], sums[3])};
  second = {vuzp2q_s32(sums[0], sums[1]), vuzp2q_s32(sums[2], sums[3])};
}
template <GroupLanes kind>
inline void totals(const Ints (&rows)[8], Ints (&groups)[groups_of(kind)]) {
  const auto whole = [&](int r) { return vaddq_s32(rows[r].low, rows[r].high); };
  if constexpr (kind == GroupLanes::one_group) {
    groups[0] = totals(rows);
  } else if constexpr (kind == GroupLanes::pairs_of_four) {
    const auto low = [&](int r) { return rows[r].low; }, high = [&](int r) { return rows[r].high; };
    pair_totals(low, groups[0], groups[1]), pair_totals(high, groups[2], groups[3]);
  } else if constexpr (kind == GroupLanes::pairs_of_two) {
    pair_totals(whole, groups[0], groups[1]);
  } else {
    const auto column = [](int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d, int32x4_t(&to)[4]) {
      const int64x2_t even[2] = {vreinterpretq_s64_s32(vtrn1q_s32(a, b)), vreinterpretq_s64_s32(vtrn1q_s32(c, d))};
      const int64x2_t odd[2] = {vreinterpretq_s64_s32(vtrn2q_s32(a, b)), vreinterpretq_s64_s32(vtrn2q_s32(c, d))};
      to[0] = vreinterpretq_s32_s64(vtrn1q_s64(even[0], even[1]));
      to[1] = vreinterpretq_s32_s64(vtrn1q_s64(odd[0], odd[1]));
      to[2] = vreinterpretq_s32_s64(vtrn2q_s64(even[0], even[1]));
      to[3] = vreinterpretq_s32_s64(vtrn2q_s64(odd[0], odd[1]));
    };
    int32x4_t low[4], high[4];
    column(whole(0), whole(1), whole(2), whole(3), low), column(whole(4), whole(5), whole(6), whole(7), high);
    for (int g = 0; g < 4; ++g) groups[g] = {low[g], high[g]};
  }
}
inline Ints sum_of_bytes(Bytes a) {
  const Shorts pairs = sums_of_pairs(a);
  return {vpaddlq_s16(pairs.low), vpaddlq_s16(pairs.high)};
}

// ---- Floats
inline Floats splat_float(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline Floats load_floats(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store_floats(float* p, Floats a) { vst1q_f32(p, a.low), vst1q_f32(p + 4, a.high); }
inline Floats to_floats(Ints a) { return {vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)}; }
inline Floats from_f16(uint16x8_t bits) {
  const float16x8_t halves = vreinterpretq_f16_u16(bits);
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
}
inline Floats load_f16(const f16* p) { return from_f16(vld1q_u16(&p->bits)); }
template <class F>
inline Floats gather(F of) {
  if constexpr (sizeof(of(0)) == sizeof(float)) {
    return {float32x4_t{of(0), of(1), of(2), of(3)}, float32x4_t{of(4), of(5), of(6), of(7)}};
  } else {
    const auto bits = [&](int r) { return of(r).bits; };
    return from_f16(uint16x8_t{bits(0), bits(1), bits(2), bits(3), bits(4), bits(5), bits(6), bits(7)});
  }
}
inline float to_float(f16 x) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x.bits))), 0); }
inline Floats multiply(Floats a, Floats b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline Floats multiply_add(Floats a, Floats b, Floats c) {
  return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
inline Floats subtract_product(Floats a, Floats b, Floats c) {
  return {vfmsq_f32(c.low, a.low, b.low), vfmsq_f32(c.high, a.high, b.high)};
}
inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }
inline Ints size_bits(const float* p) {
  const Floats a = load_floats(p);
  return {vreinterpretq_s32_f32(vabsq_f32(a.low)), vreinterpretq_s32_f32(vabsq_f32(a.high))};
}
inline Shorts to_shorts(const float* p, float factor) {
  const auto half = [=](const float* from) {
    const Floats a = multiply(load_floats(from), splat_float(factor));
    return vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a.low)), vqmovn_s32(vcvtnq_s32_f32(a.high)));
  };
  return {half(p), half(p + 8)};
}
inline Shorts multiply_round(Shorts a, int factor) {
  const auto by = static_cast<int16_t>(factor);
  return {vqrdmulhq_n_s16(a.low, by), vqrdmulhq_n_s16(a.high, by)};
}
inline Bytes to_bytes(Shorts a, Shorts b) {
  const auto half = [](Shorts x) { return without_sign(vcombine_s8(vqmovn_s16(x.low), vqmovn_s16(x.high))); };
  return {half(a), half(b)};
}

}  // namespace qeng::isa::QENG_ISA
