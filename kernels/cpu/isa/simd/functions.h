// Functions of a Vec, each within a few units of the last place over the whole range; infinities, zeros, subnormal
// numbers and NaN give what the C library gives. Polynomials are minimax in relative error.
#pragma once
#include "kernels/cpu/isa/simd/simd.h"

namespace qeng::isa::QENG_ISA {

constexpr float kInfinity = __builtin_inff();
constexpr float kTiny = 2.98023224e-8f;  // 2^-25: of a smaller x, x and x + x^2 / 2 are the same number

// For lanes that are out of the ordinary: the C library's function, one element after the other.
template <class F>
__attribute__((noinline, cold)) Vec each(F f, Vec a, Vec b) {
  float left[kWidth], right[kWidth];
  store(left, a), store(right, b);
  for (int i = 0; i < kWidth; ++i) left[i] = f(left[i], right[i]);
  return load(left);
}

// log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1], plus e ln 2: f - f^2 / 2 + f^3 p(f) with p of degree 7 (error
// 6e-9), and ln 2 in two parts, the first with 10 bits.
inline Vec log_of_parts(Vec f, Vec e) {
  Vec p = fma(splat(-0.0763220862f), f, splat(0.1276082993f));
  p = fma(p, f, splat(-0.1316064745f));
  p = fma(p, f, splat(0.1420188695f));
  p = fma(p, f, splat(-0.1662332565f));
  p = fma(p, f, splat(0.2000122070f));
  p = fma(p, f, splat(-0.2500082254f));
  p = fma(p, f, splat(0.3333333135f));
  const Vec square = f * f;
  const Vec tail = fma(e, splat(-2.12194440e-4f), fma(p * f, square, splat(-0.5f) * square));
  return fma(e, splat(0.693359375f), f + tail);
}
// What a logarithm of x gives, if it is `found` for positive finite x.
inline Vec log_with_limits(Vec x, Vec found) {
  const Vec none = choose(alike(x, splat(0.0f)), splat(-kInfinity), splat(__builtin_nanf("")));
  return choose(below(splat(0.0f), x), choose(below(x, splat(kInfinity)), found, x), choose(is_nan(x), x, none));
}
inline Vec log(Vec x) {
  Vec e;
  const Vec m = split_exponent(x, e);
  return log_with_limits(x, log_of_parts(m - splat(1.0f), e));
}
// 1 + x = u + rest, where rest is what u was rounded by, and counts as a part of its fraction.
inline Vec log1p(Vec x) {
  const Vec one = splat(1.0f), u = one + x;
  const Vec rest = choose(below(x, one), x - (u - one), one - (u - x));
  Vec e;
  const Vec m = split_exponent(u, e);
  const Vec found = log_with_limits(u, log_of_parts(m - one + scale_exponent(rest, splat(0.0f) - e), e));
  return choose(below(absolute(x), splat(kTiny)), x, found);
}

// 2^n (e^r - 1) + (2^n - 1) with x = n ln 2 + r, and e^r - 1 = r + r^2 p(r) with p of degree 4 (error 1e-8); 2^(n-1), as 2^n
// may be too large where the result is not.
inline Vec expm1(Vec any) {
  const Vec x = max(splat(-104.0f), min(splat(89.0f), any));
  const Vec n = round(x * splat(1.44269504f)), half = n - splat(1.0f);
  const Vec r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), x));
  Vec p = fma(splat(0.001388251926f), r, splat(0.008366519139f));
  p = fma(p, r, splat(0.04166719985f));
  p = fma(p, r, splat(0.1666654363f));
  p = fma(p, r, splat(0.4999999815f));
  const Vec whole = scale_exponent(splat(1.0f), half) - splat(0.5f);
  const Vec found = splat(2.0f) * (scale_exponent(fma(p, r * r, r), half) + whole);
  return choose(below(absolute(any), splat(kTiny)), any, found);
}

// Near 0 by a polynomial in x^2 (error 3e-9), elsewhere 1 - 2 / (1 + e^2x).
inline Vec tanh(Vec x) {
  const Vec size = absolute(x), z = x * x, one = splat(1.0f);
  Vec p = fma(splat(-0.0058951504f), z, splat(0.0207959637f));
  p = fma(p, z, splat(-0.0537838265f));
  p = fma(p, z, splat(0.1333192437f));
  p = fma(p, z, splat(-0.3333329856f));
  const Vec e = exp(splat(-2.0f) * min(splat(10.0f), size));  // 1 to the last bit beyond 10; a NaN stays
  return choose(below(size, splat(0.6f)), x * fma(p, z, one), with_sign((one - e) / (one + e), x));
}

// x + x P(x^2) below 1 (error 1e-9), elsewhere 1 - e^g(|x|) with g = log(1 - erf) (error 2e-8 of the result).
inline Vec erf(Vec x) {
  const Vec size = absolute(x), z = x * x, t = min(splat(4.0f), size);
  Vec p = fma(splat(7.8539618e-05f), z, splat(-0.0008010226484f));
  p = fma(p, z, splat(0.005188331824f));
  p = fma(p, z, splat(-0.02685381444f));
  p = fma(p, z, splat(0.1128358522f));
  p = fma(p, z, splat(-0.3761262583f));
  p = fma(p, z, splat(0.128379166f));
  Vec g = fma(splat(-0.001150424129f), t, splat(0.01477813493f));
  g = fma(g, t, splat(-0.08863421757f));
  g = fma(g, t, splat(-0.6544888853f));
  g = fma(g, t, splat(-1.117438526f));
  g = fma(g, t, splat(-0.002671690536f));
  return choose(below(size, splat(1.0f)), fma(p, x, x), with_sign(splat(1.0f) - exp(g), x));
}

// x = n pi/2 + r; polynomials in r as in kernels/math/sincos.h. turn: 0 for sin, 1 for cos.
template <int turn>
Vec sin_or_cos(Vec x) {
  if (any(below(splat(131072.0f), absolute(x))))  // n has more than 17 bits
    return each([](float a, float) { return turn ? __builtin_cosf(a) : __builtin_sinf(a); }, x, x);
  const Vec shift = splat(12582912.0f);  // 1.5 2^23: the sum's last bits are those of n
  const Vec shifted = fma(x, splat(0.636619772f), shift), n = shifted - shift;
  const Vec r = less_right_angles(x, n), z = r * r;
  Vec s = fma(splat(-1.9516977773e-4f), z, splat(8.3321761340e-3f));
  s = fma(s, z, splat(-1.6666655242e-1f));
  s = r * fma(s, z, splat(1.0f));
  Vec c = fma(splat(2.4438091714e-5f), z, splat(-1.3887364184e-3f));
  c = fma(fma(c, z, splat(4.1666645556e-2f)), z * z, fma(splat(-0.5f), z, splat(1.0f)));
  const Vec quarter = shifted + splat(static_cast<float>(turn));
  return flip_sign(choose(low_bit(quarter), c, s), second_bit_as_sign(quarter));
}

// a^b = 2^(b log2 |a|), the exponent in f64: log2(1 + f) = f q(f) with q of degree 11 (error 1.5e-10), and
// 2^r = 1 + r p(r) with p of degree 5 (error 2e-9). A negative base has a value where b is whole, a negative one where b is odd.
inline Vec power(Vec a, Vec b) {
  const Vec size = absolute(a), zero = splat(0.0f), shift = splat(12582912.0f);
  const Vec strange = choose(below(zero, size), choose(below(size, splat(kInfinity)), zero, shift), shift);
  if (any(is_not_below(strange + absolute(b),
                       splat(4194304.0f))))  // as of it on b has no bit that the shift would show
    return each([](float base, float exponent) { return __builtin_powf(base, exponent); }, a, b);
  Vec e;
  const Wide f = widened(split_exponent(size, e) - splat(1.0f));
  Wide q = splat_wide(-0.08634481600710527);
  q = fma(q, f, splat_wide(0.15485673989614507));
  q = fma(q, f, splat_wide(-0.15698242553859967));
  q = fma(q, f, splat_wide(0.15900167580187302));
  q = fma(q, f, splat_wide(-0.17904695066672685));
  q = fma(q, f, splat_wide(0.2060962418022462));
  q = fma(q, f, splat_wide(-0.2405041736010563));
  q = fma(q, f, splat_wide(0.2885406440512748));
  q = fma(q, f, splat_wide(-0.3606728005655866));
  q = fma(q, f, splat_wide(0.480898320723388));
  q = fma(q, f, splat_wide(-0.7213475252130802));
  q = fma(q, f, splat_wide(1.4426950409393589));
  const Wide y = widened(b) * fma(q, f, widened(e));
  const Vec n = round(max(splat(-200.0f), min(splat(200.0f), narrowed(y))));  // 0 and infinity are within
  const Vec r = max(splat(-0.5f), min(splat(0.5f), narrowed(y - widened(n))));
  Vec p = fma(splat(0.0001535336061f), r, splat(0.001339887487f));
  p = fma(p, r, splat(0.009618437366f));
  p = fma(p, r, splat(0.0555033247f));
  p = fma(p, r, splat(0.2402264791f));
  p = fma(p, r, splat(0.6931472029f));
  const Vec found = scale_exponent(fma(p, r, splat(1.0f)), n);
  const Vec shifted = b + shift;
  const Vec turned = choose(low_bit(shifted), flip_sign(found, splat(-0.0f)), found);
  const Vec of_negative = choose(alike(shifted - shift, b), turned, splat(__builtin_nanf("")));
  return choose(below(a, zero), of_negative, found);
}

}  // namespace qeng::isa::QENG_ISA
