// Vec: kWidth floats, with the operations that the loops of this folder need, for one instruction set. The baseline is
// plain C++ with a width of 1, so it is also the readable reference for the others.
//   load, store: f32, bf16 or f16 memory, n lanes (n = kWidth unless told; lanes past n read as 0 and are not written);
//   load also of whole vectors of int8
//   exp: 2 ulp over the normal range; below -104 it gives 0, above 88.73 infinity; a NaN stays
//   exp_normal: the same, but 0 below -87.33, where a result is no normal number
//   max(a, b), min(a, b): b where either is NaN
//   less, less_equal, equal: 1 or 0, which is what a NaN gives; select(c, a, b): a where c is not 0, else b
//   Mask: of below(a, b), alike(a, b) (equal), is_not_below(a, b) (also of NaN), is_nan(a) and
//   low_bit(a), the last bit of a float; choose(m, a, b): a where m holds, else b
//   with_sign(size, s): size, not negative, with the sign of s; flip_sign(a, s): a, negated where s is negative
//   exchange<half>(a): lane i is lane i ^ half of a, half a power of two below kWidth
//   store_two(p, a, b): two vectors of bf16, in order; stream_two: of bf16 or f32, past the caches
//   split_exponent(x, e): the m of x = m 2^e with m in [sqrt(1/2), sqrt(2)], for positive finite x
//   Wide: the lanes as f64
#pragma once
#include <cstdint>

#include "kernels/cpu/isa/table.h"
#include "kernels/math/bf16.h"

#if defined(QENG_ISA_avx512)
#include "kernels/cpu/isa/simd/simd_avx512.h"
#elif defined(QENG_ISA_avx2)
#include "kernels/cpu/isa/simd/simd_avx2.h"
#elif defined(QENG_ISA_neon)
#include "kernels/cpu/isa/simd/simd_neon.h"
#else
#include "kernels/cpu/isa/simd/simd_baseline.h"
#endif

namespace qeng::isa::QENG_ISA {

#if defined(QENG_ISA_avx2) || defined(QENG_ISA_neon)  // which have no masks for a part of a vector
template <class T>
inline Vec load(const T* p, int64_t n) {
  if (n >= kWidth) return load(p);
  T lanes[kWidth] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
template <class T>
inline void store(T* p, Vec v, int64_t n) {
  if (n >= kWidth) return store(p, v);
  T lanes[kWidth];
  store(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}
#endif

// e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln(2)/2; e^r = 1 + r + r^2 p(r), p minimax of degree 4 (error
// 3e-9).
inline Vec exp_within(Vec x) {  // of what clamp_exponent gives
  const Vec n = round(x * splat(1.44269504f));
  Vec r = fma(n, splat(-0.693359375f), x);  // ln 2 in two parts, the first with 10 bits, so that n times it is exact
  r = fma(n, splat(2.12194440e-4f), r);
  Vec p = fma(splat(0.00138144648f), r, splat(0.00836878062f));
  p = fma(p, r, splat(0.0416683943f));
  p = fma(p, r, splat(0.166665201f));
  p = fma(p, r, splat(0.499999934f));
  return scale_exponent(fma(p, r * r, r + splat(1.0f)), n);
}

inline Vec exp(Vec x) { return exp_within(clamp_exponent(x)); }

// For sums beside which such results are nothing. Those of hidden scores would take a processor thirty times as long as
// others.
inline Vec exp_normal(Vec x) {
  const Vec least = splat(-87.33f);
  return choose(below(x, least), splat(0.0f), exp_within(clamp_exponent(max(least, x))));
}

// 1 / (1 + e^-x), for which e^88 is as good as infinity
inline Vec sigmoid(Vec x) {
  return reciprocal(splat(1.0f) + exp_within(splat(0.0f) - min(splat(87.0f), max(splat(-88.0f), x))));
}

// body(i, lanes) over [0, n) in steps of kWidth, the last with fewer lanes.
template <class Body>
inline void for_lanes(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) body(i, static_cast<int64_t>(kWidth));
  if (i < n) body(i, n - i);
}

// Calls body with a value of the C++ type: for_type(type, [&](auto tag) { using T = decltype(tag); ... }).
template <class Body>
inline void for_type(Float type, Body body) {
  switch (type) {
    case Float::f32: return body(float{});
    case Float::bf16: return body(bf16{});
    case Float::f16: return body(f16{});
  }
}

}  // namespace qeng::isa::QENG_ISA
