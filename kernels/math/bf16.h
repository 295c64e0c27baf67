// bfloat16 and IEEE half as storage: 16 bits, converted to f32 to compute. Rounding is to nearest, ties to even; a NaN
// stays a (quiet) NaN.
#pragma once
#include <cstdint>

#include "kernels/math/host_device.h"

namespace qeng {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

QENG_HD uint32_t bits_of(float x) {
  union {
    float f;
    uint32_t u;
  } both = {x};
  return both.u;
}
QENG_HD float float_of(uint32_t bits) {
  union {
    uint32_t u;
    float f;
  } both = {bits};
  return both.f;
}

QENG_HD float to_f32(bf16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
QENG_HD float to_f32(float x) { return x; }

QENG_HD float to_f32(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16, exponent = (x.bits >> 10) & 31u,
                 fraction = x.bits & 1023u;
  if (exponent == 31) return float_of(sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0u));
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in f32
    const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-08f;
    return sign ? -magnitude : magnitude;
  }
  return float_of(sign | ((exponent + 112) << 23) | (fraction << 13));
}

QENG_HD bf16 to_bf16(float x) {
  const uint32_t u = bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

QENG_HD f16 to_f16(float x) {
  const uint32_t u = bits_of(x), magnitude = u & 0x7fffffffu;
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal. Adding 0.5 leaves x / 2^-24, rounded, in the low bits
    return {static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u))};
  }
  return {static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13))};
}

// put(p, x): *p = x rounded to the type p points to.
QENG_HD void put(float* p, float x) { *p = x; }
QENG_HD void put(bf16* p, float x) { *p = to_bf16(x); }
QENG_HD void put(f16* p, float x) { *p = to_f16(x); }

}  // namespace qeng
