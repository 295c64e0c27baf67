// Formats whose 4-bit codes name values of a table; nibbles as in q4.h.
// IQ4_NL: w = d v[q], v denser near zero.   MXFP4: w = 2^(e - 128) v[q], v twice the values of FP4 E2M1 (OCP
// Microscaling Formats 1.0, section 5.3.3; e is the shared exponent of E8M0).
#pragma once
#include "kernels/math/blocks/q4.h"

namespace qeng::blocks {

struct IQ4_NL {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = false;
  f16 d;
  uint8_t qs[16];
};
static_assert(sizeof(IQ4_NL) == 18);

struct MXFP4 {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = false;
  uint8_t e;
  uint8_t qs[16];
};
static_assert(sizeof(MXFP4) == 17);

// Value q of a table of 16 signed bytes, the first lowest.
QENG_HD int table_value(uint64_t first_eight, uint64_t others, int q) {
  return static_cast<int8_t>((q < 8 ? first_eight : others) >> (q % 8 * 8));
}
// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
QENG_HD int iq4_value(int q) { return table_value(0xf6eaddcfbfad9881u, 0x7159453526190d01u, q); }
// 0 1 2 3 4 6 8 12 and their negatives
QENG_HD int fp4_value(int q) { return table_value(0x0c08060403020100u, 0xf4f8fafcfdfeff00u, q); }

QENG_HD int code(const IQ4_NL& b, int k) { return iq4_value(nibble(b.qs, k)); }
QENG_HD float scale(const IQ4_NL& b, int) { return to_f32(b.d); }

QENG_HD int code(const MXFP4& b, int k) { return fp4_value(nibble(b.qs, k)); }
QENG_HD float scale(const MXFP4& b, int) {  // the two least are subnormal
  return float_of(b.e < 2 ? 0x00200000u << b.e : static_cast<uint32_t>(b.e - 1) << 23);
}

}  // namespace qeng::blocks
