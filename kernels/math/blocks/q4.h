// Q4_0: w = d (q - 8).   Q4_1: w = d q + m.   q: 4 bits; byte j holds weight j low, weight j + 16 high.
#pragma once
#include "kernels/math/blocks/block.h"

namespace qeng::blocks {

struct Q4_0 {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = false;
  f16 d;
  uint8_t qs[16];
};
static_assert(sizeof(Q4_0) == 18);

struct Q4_1 {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = true;
  f16 d, m;
  uint8_t qs[16];
};
static_assert(sizeof(Q4_1) == 20);

// Nibble k of 32: the first 16 low, the others high.
QENG_HD int nibble(const uint8_t* qs, int k) { return k < 16 ? qs[k] & 15 : qs[k - 16] >> 4; }

QENG_HD int code(const Q4_0& b, int k) { return nibble(b.qs, k) - 8; }
QENG_HD float scale(const Q4_0& b, int) { return to_f32(b.d); }

QENG_HD int code(const Q4_1& b, int k) { return nibble(b.qs, k); }
QENG_HD float scale(const Q4_1& b, int) { return to_f32(b.d); }
QENG_HD float min(const Q4_1& b, int) { return -to_f32(b.m); }

}  // namespace qeng::blocks
