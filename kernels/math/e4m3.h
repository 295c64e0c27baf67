// Floats of 8 bits, E4M3 of the OCP's "8-bit Floating Point Specification" (2023; Micikevicius et al. 2022, arXiv
// 2209.05433): a sign, 4 bits of exponent with bias 7, 3 of mantissa; up to 448, in steps of 2^-9 below 2^-6; no infinity,
// 0x7f and 0xff are NaN. Rounding is to nearest, ties to even.
#pragma once
#include "kernels/math/bf16.h"

namespace qeng {

// What is beyond 448 becomes 448; a NaN becomes 0x7f.
QENG_HD uint8_t to_e4m3(float x) {
  const uint32_t u = bits_of(x), magnitude = u & 0x7fffffffu, sign = u >> 24 & 0x80u;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude >= 0x43e80000u) return static_cast<uint8_t>(sign | 0x7e);  // 464 and more
  if (magnitude < 0x3c800000u)  // below 2^-6: adding 2^14 leaves x / 2^-9, rounded, in the low bits
    return static_cast<uint8_t>(sign | (bits_of(float_of(magnitude) + 16384.0f) - 0x46800000u));
  return static_cast<uint8_t>(sign | ((magnitude - 0x3c000000u + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20));
}

QENG_HD float from_e4m3(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return float_of(0x7fc00000u);
  const float magnitude = float_of(static_cast<uint32_t>(code & 0x7f) << 20) * 0x1p120f;  // subnormal ones too
  return code & 0x80 ? -magnitude : magnitude;
}

// The least power of two, of those whose inverse is one too, by which numbers up to `most` >= 0 fit: most / scale <= 448.
// 2^-126 where most is 0; NaN where it is not finite. most: the bits of a float.
QENG_HD float e4m3_scale(uint32_t most) {
  if (most >= 0x7f800000u) return float_of(0x7fc00000u);
  const int exponent = static_cast<int>(most >> 23) - 8 + ((most & 0x7fffffu) > 0x600000u ? 1 : 0);
  return float_of(static_cast<uint32_t>(exponent < 1 ? 1 : exponent) << 23);
}
// Of a scale that e4m3_scale gave: exact.
QENG_HD float e4m3_inverse(float scale) {
  const uint32_t bits = bits_of(scale);
  return bits >= 0x7f800000u ? scale : float_of((254u << 23) - bits);
}

}  // namespace qeng
