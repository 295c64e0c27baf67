// simd.h for any machine: one lane, plain C++ (which the compiler vectorizes where it can).
#pragma once

namespace qeng::isa::QENG_ISA {

using Vec = float;
constexpr int kWidth = 1;

inline Vec splat(float x) { return x; }
inline Vec load(const float* p) { return *p; }
inline Vec load(const bf16* p) { return to_f32(*p); }
inline Vec load(const f16* p) { return to_f32(*p); }
template <class T>
inline Vec load(const T* p, int64_t n) {
  return n > 0 ? load(p) : 0.0f;
}
inline void store(float* p, Vec v) { *p = v; }
inline void store(bf16* p, Vec v) { *p = to_bf16(v); }
inline void store(f16* p, Vec v) { *p = to_f16(v); }
template <class T>
inline void store(T* p, Vec v, int64_t n) {
  if (n > 0) store(p, v);
}
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec sqrt(Vec a) { return __builtin_sqrtf(a); }
inline float sum(Vec a) { return a; }
inline float largest(Vec a) { return a; }

inline Vec round(Vec x) {  // to nearest even, for |x| < 2^22
  const float shift = 12582912.0f;
  volatile float shifted = x + shift;
  return shifted - shift;
}
// y * 2^n for integral n, where 2^n may be out of the normal range
inline Vec scale_exponent(Vec y, Vec n, Vec x) {
  if (x < -87.33654f) return 0.0f;
  if (x > 88.72284f) return float_of(0x7f800000u);
  if (!(x == x)) return x;
  const int whole = static_cast<int>(n), half = whole / 2;
  return y * float_of(static_cast<uint32_t>(half + 127) << 23) *
         float_of(static_cast<uint32_t>(whole - half + 127) << 23);
}

}  // namespace qeng::isa::QENG_ISA
