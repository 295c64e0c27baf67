// simd.h for any machine: one lane, plain C++ (which the compiler vectorizes where it can).
#pragma once

namespace qeng::isa::QENG_ISA {

using Vec = float;
constexpr int kWidth = 1;

inline Vec splat(float x) { return x; }
inline Vec load(const float* p) { return *p; }
inline Vec load(const bf16* p) { return to_f32(*p); }
inline Vec load(const f16* p) { return to_f32(*p); }
inline Vec load(const int8_t* p) { return *p; }
template <class T>
inline Vec load(const T* p, int64_t n) {
  return n > 0 ? load(p) : 0.0f;
}
inline void store(float* p, Vec v) { *p = v; }
inline void store(bf16* p, Vec v) { *p = to_bf16(v); }
inline void store(f16* p, Vec v) { *p = to_f16(v); }
inline void store_two(bf16* p, Vec a, Vec b) { store(p, a), store(p + 1, b); }
template <class T>
inline void stream_two(T* p, Vec a, Vec b) {
  store(p, a), store(p + 1, b);
}
template <class T>
inline void store(T* p, Vec v, int64_t n) {
  if (n > 0) store(p, v);
}
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec min(Vec a, Vec b) { return a < b ? a : b; }
inline Vec absolute(Vec a) { return __builtin_fabsf(a); }
inline Vec with_sign(Vec size, Vec sign) { return __builtin_copysignf(size, sign); }
inline Vec flip_sign(Vec a, Vec sign) { return float_of(bits_of(a) ^ (bits_of(sign) & 0x80000000u)); }
inline Vec sqrt(Vec a) { return __builtin_sqrtf(a); }
inline Vec less(Vec a, Vec b) { return a < b ? 1.0f : 0.0f; }
inline Vec less_equal(Vec a, Vec b) { return a <= b ? 1.0f : 0.0f; }
inline Vec equal(Vec a, Vec b) { return a == b ? 1.0f : 0.0f; }
inline Vec select(Vec c, Vec a, Vec b) { return c != 0 ? a : b; }
using Mask = bool;
inline Mask below(Vec a, Vec b) { return a < b; }
inline Mask alike(Vec a, Vec b) { return a == b; }
inline Mask is_nan(Vec a) { return a != a; }
inline Vec choose(Mask m, Vec a, Vec b) { return m ? a : b; }
inline Mask is_not_below(Vec a, Vec b) { return !(a < b); }
inline Mask low_bit(Vec a) { return bits_of(a) & 1; }
inline Vec second_bit_as_sign(Vec a) { return float_of(bits_of(a) << 30); }
inline Mask either(Mask a, Mask b) { return a || b; }
inline bool any(Mask m) { return m; }
inline Vec split_exponent(Vec x, Vec& exponent) {
  const bool subnormal = x < 1.17549435e-38f;
  const uint32_t root = 0x3f3504f3;  // sqrt(1/2)
  const uint32_t bits = bits_of(subnormal ? x * 8388608.0f : x) - root;
  exponent = static_cast<float>((static_cast<int32_t>(bits) >> 23) - (subnormal ? 23 : 0));
  return float_of((bits & 0x7fffff) + root);
}
template <int half>
inline Vec exchange(Vec a) {
  static_assert(half < kWidth);
  return a;
}
inline float sum(Vec a) { return a; }
inline float largest(Vec a) { return a; }

inline Vec round(Vec x) {  // to nearest even, for |x| < 2^22
  const float shift = 12582912.0f;
  return (x + shift) - shift;
}
inline Vec clamp_exponent(Vec x) { return x < -104.0f ? -104.0f : x > 104.0f ? 104.0f : x; }
inline Vec scale_exponent(Vec y, Vec n) {
  if (!(n == n)) return n;
  const int whole = static_cast<int>(n), half = whole >> 1;
  return y * float_of(static_cast<uint32_t>(half + 127) << 23) *
         float_of(static_cast<uint32_t>(whole - half + 127) << 23);
}
inline Vec reciprocal(Vec a) { return 1.0f / a; }

// x - n pi/2 for integral |n| <= 2^17, with pi/2 in two parts, the first with 33 bits.
inline Vec less_right_angles(Vec x, Vec n) {
  const double turns = static_cast<double>(n), rest = static_cast<double>(x) - turns * 0x1.921fb544p+0;
  return static_cast<float>(rest - turns * 0x1.0b4611a626331p-34);
}
// The lanes of a Vec as f64.
using Wide = double;
inline Wide widened(Vec a) { return static_cast<double>(a); }
inline Vec narrowed(Wide a) { return static_cast<float>(a); }
inline Wide splat_wide(double x) { return x; }
inline Wide fma(Wide a, Wide b, Wide c) { return a * b + c; }

// Lanes of 64 bits, for random words: bits 32 to 63 of an operand do not matter.
using Words = uint64_t;
inline Words splat_words(uint64_t x) { return x; }
inline Words load_words(const uint64_t* p) { return *p; }
inline void store_words(uint64_t* p, Words v) { *p = v; }
inline Words multiply_words(Words a, Words b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }  // 32 x 32 = 64 bits
inline Words high_words(Words a) { return a >> 32; }
inline Words join_words(Words low, Words high) { return high << 32 | (low & 0xffffffffu); }
constexpr int kWords = 1;

}  // namespace qeng::isa::QENG_ISA
