// simd.h for NEON, which every aarch64 processor has: 8 lanes in two registers, so that sums have the order of AVX2's.
#pragma once
#include <arm_neon.h>

namespace qeng::isa::QENG_ISA {

struct Vec {
  float32x4_t low, high;
};
constexpr int kWidth = 8;

inline Vec operator+(Vec a, Vec b) { return {a.low + b.low, a.high + b.high}; }
inline Vec operator-(Vec a, Vec b) { return {a.low - b.low, a.high - b.high}; }
inline Vec operator*(Vec a, Vec b) { return {a.low * b.low, a.high * b.high}; }
inline Vec operator/(Vec a, Vec b) { return {a.low / b.low, a.high / b.high}; }

inline Vec splat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline Vec load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline float32x4_t from_bf16(uint16x4_t bits) { return vreinterpretq_f32_u32(vshll_n_u16(bits, 16)); }
inline Vec load(const bf16* p) {
  const uint16x8_t bits = vld1q_u16(&p->bits);
  return {from_bf16(vget_low_u16(bits)), from_bf16(vget_high_u16(bits))};
}
inline Vec load(const f16* p) {
  const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(&p->bits));
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
}
inline Vec load(const int8_t* p) {
  const int16x8_t wide = vmovl_s8(vld1_s8(p));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))};
}

inline void store(float* p, Vec v) { vst1q_f32(p, v.low), vst1q_f32(p + 4, v.high); }
inline uint32x4_t rounded_to_bf16(float32x4_t v) {  // in the upper halves
  const uint32x4_t u = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t nearest = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
  return vbslq_u32(vceqq_f32(v, v), nearest, vorrq_u32(u, vdupq_n_u32(0x400000)));  // a NaN stays one
}
inline void store(bf16* p, Vec v) {
  vst1q_u16(&p->bits,
            vuzp2q_u16(vreinterpretq_u16_u32(rounded_to_bf16(v.low)), vreinterpretq_u16_u32(rounded_to_bf16(v.high))));
}
inline void store(f16* p, Vec v) {
  vst1q_u16(&p->bits, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(v.low), v.high)));
}
inline void store_two(bf16* p, Vec a, Vec b) { store(p, a), store(p + kWidth, b); }
template <class T>
inline void stream_two(T* p, Vec a, Vec b) {  // there is no such instruction
  store(p, a), store(p + kWidth, b);
}

struct Mask {
  uint32x4_t low, high;
};
inline Mask bits_in_lanes(Vec a) { return {vreinterpretq_u32_f32(a.low), vreinterpretq_u32_f32(a.high)}; }
inline Vec floats_of(Mask a) { return {vreinterpretq_f32_u32(a.low), vreinterpretq_f32_u32(a.high)}; }
inline Vec choose(Mask m, Vec a, Vec b) { return {vbslq_f32(m.low, a.low, b.low), vbslq_f32(m.high, a.high, b.high)}; }
inline Mask below(Vec a, Vec b) { return {vcltq_f32(a.low, b.low), vcltq_f32(a.high, b.high)}; }
inline Mask alike(Vec a, Vec b) { return {vceqq_f32(a.low, b.low), vceqq_f32(a.high, b.high)}; }
inline Mask without(Mask a) { return {vmvnq_u32(a.low), vmvnq_u32(a.high)}; }
inline Mask is_nan(Vec a) { return without(alike(a, a)); }
inline Mask is_not_below(Vec a, Vec b) { return without(below(a, b)); }
inline Mask either(Mask a, Mask b) { return {vorrq_u32(a.low, b.low), vorrq_u32(a.high, b.high)}; }
inline bool any(Mask m) { return vmaxvq_u32(vorrq_u32(m.low, m.high)) != 0; }
inline Mask low_bit(Vec a) {
  const Mask bits = bits_in_lanes(a);
  return {vtstq_u32(bits.low, vdupq_n_u32(1)), vtstq_u32(bits.high, vdupq_n_u32(1))};
}
inline Vec second_bit_as_sign(Vec a) {
  const Mask bits = bits_in_lanes(a);
  return floats_of({vshlq_n_u32(bits.low, 30), vshlq_n_u32(bits.high, 30)});
}
inline Vec less(Vec a, Vec b) { return choose(below(a, b), splat(1.0f), splat(0.0f)); }
inline Vec less_equal(Vec a, Vec b) {
  return choose({vcleq_f32(a.low, b.low), vcleq_f32(a.high, b.high)}, splat(1.0f), splat(0.0f));
}
inline Vec equal(Vec a, Vec b) { return choose(alike(a, b), splat(1.0f), splat(0.0f)); }
inline Vec select(Vec c, Vec a, Vec b) { return choose(alike(c, splat(0.0f)), b, a); }

inline Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)}; }
inline Vec max(Vec a, Vec b) { return choose(below(b, a), a, b); }
inline Vec min(Vec a, Vec b) { return choose(below(a, b), a, b); }
inline Vec absolute(Vec a) { return {vabsq_f32(a.low), vabsq_f32(a.high)}; }
inline Vec with_sign(Vec size, Vec sign) {
  const uint32x4_t bit = vdupq_n_u32(0x80000000u);
  return choose({bit, bit}, sign, size);
}
inline Vec flip_sign(Vec a, Vec sign) {
  const uint32x4_t bit = vdupq_n_u32(0x80000000u);
  const Mask bits = bits_in_lanes(a), flips = bits_in_lanes(sign);
  return floats_of({veorq_u32(bits.low, vandq_u32(flips.low, bit)), veorq_u32(bits.high, vandq_u32(flips.high, bit))});
}
inline Vec sqrt(Vec a) { return {vsqrtq_f32(a.low), vsqrtq_f32(a.high)}; }
inline Vec split_exponent(Vec x, Vec& exponent) {
  const Mask subnormal = below(x, splat(1.17549435e-38f));
  const Mask bits = bits_in_lanes(choose(subnormal, x * splat(8388608.0f), x));
  const uint32x4_t root = vdupq_n_u32(0x3f3504f3), fraction = vdupq_n_u32(0x7fffff);  // root: sqrt(1/2)
  const uint32x4_t low = vsubq_u32(bits.low, root), high = vsubq_u32(bits.high, root);
  exponent = Vec{vcvtq_f32_s32(vshrq_n_s32(vreinterpretq_s32_u32(low), 23)),
                 vcvtq_f32_s32(vshrq_n_s32(vreinterpretq_s32_u32(high), 23))} -
             choose(subnormal, splat(23.0f), splat(0.0f));
  return floats_of({vaddq_u32(vandq_u32(low, fraction), root), vaddq_u32(vandq_u32(high, fraction), root)});
}
template <int half>
inline Vec exchange(Vec a) {
  if constexpr (half == 1) return {vrev64q_f32(a.low), vrev64q_f32(a.high)};
  if constexpr (half == 2) return {vextq_f32(a.low, a.low, 2), vextq_f32(a.high, a.high, 2)};
  if constexpr (half == 4) return {a.high, a.low};
}
inline float sum(Vec a) {
  const float32x4_t x = a.low + a.high;
  return vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)));
}
inline float largest(Vec a) {
  const auto larger = [](float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(y, x), x, y); };
  const float32x4_t x = larger(a.low, a.high), two = larger(x, vextq_f32(x, x, 2));
  return vgetq_lane_f32(larger(two, vrev64q_f32(two)), 0);
}

inline Vec round(Vec x) { return {vrndnq_f32(x.low), vrndnq_f32(x.high)}; }
inline Vec clamp_exponent(Vec x) { return max(splat(-104.0f), min(splat(104.0f), x)); }
// In two factors, so that neither leaves the normal range.
inline float32x4_t scale_exponent(float32x4_t y, float32x4_t n) {
  const int32x4_t whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1), rest = vsubq_s32(whole, half);
  const int32x4_t bias = vdupq_n_s32(127);
  return y * vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23)) *
         vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
}
inline Vec scale_exponent(Vec y, Vec n) { return {scale_exponent(y.low, n.low), scale_exponent(y.high, n.high)}; }
inline Vec reciprocal(Vec a) { return splat(1.0f) / a; }

// x - n pi/2 for integral |n| <= 2^17, with pi/2 in three parts: positive ones, for the sign of zero.
inline float32x4_t less_right_angles(float32x4_t x, float32x4_t n) {
  const float32x4_t rest = vfmsq_f32(x, n, vdupq_n_f32(0x1.921fb4p+0f));
  return vfmsq_f32(vfmsq_f32(rest, n, vdupq_n_f32(0x1.4442d0p-24f)), n, vdupq_n_f32(0x1.846988p-48f));
}
inline Vec less_right_angles(Vec x, Vec n) {
  return {less_right_angles(x.low, n.low), less_right_angles(x.high, n.high)};
}
// The lanes of a Vec as f64.
struct Wide {
  float64x2_t v[4];
};
inline Wide widened(Vec a) {
  return {vcvt_f64_f32(vget_low_f32(a.low)), vcvt_high_f64_f32(a.low), vcvt_f64_f32(vget_low_f32(a.high)),
          vcvt_high_f64_f32(a.high)};
}
inline Vec narrowed(Wide a) {
  return {vcvt_high_f32_f64(vcvt_f32_f64(a.v[0]), a.v[1]), vcvt_high_f32_f64(vcvt_f32_f64(a.v[2]), a.v[3])};
}
template <class F>
inline Wide each_two(F f) {
  return {f(0), f(1), f(2), f(3)};
}
inline Wide splat_wide(double x) {
  return each_two([=](int) { return vdupq_n_f64(x); });
}
inline Wide fma(Wide a, Wide b, Wide c) {
  return each_two([&](int i) { return vfmaq_f64(c.v[i], a.v[i], b.v[i]); });
}
inline Wide operator*(Wide a, Wide b) {
  return each_two([&](int i) { return a.v[i] * b.v[i]; });
}
inline Wide operator-(Wide a, Wide b) {
  return each_two([&](int i) { return a.v[i] - b.v[i]; });
}

// Lanes of 64 bits, for random words: bits 32 to 63 of an operand do not matter.
using Words = uint64x2_t;
inline Words splat_words(uint64_t x) { return vdupq_n_u64(x); }
inline Words load_words(const uint64_t* p) { return vld1q_u64(p); }
inline void store_words(uint64_t* p, Words v) { vst1q_u64(p, v); }
inline Words multiply_words(Words a, Words b) { return vmull_u32(vmovn_u64(a), vmovn_u64(b)); }  // 32 x 32 = 64 bits
inline Words high_words(Words a) { return vshrq_n_u64(a, 32); }
inline Words join_words(Words low, Words high) { return vsliq_n_u64(low, high, 32); }
constexpr int kWords = 2;

}  // namespace qeng::isa::QENG_ISA
