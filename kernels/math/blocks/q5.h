// Q5_0: w = d (q - 16).   Q5_1: w = d q + m.   q: 5 bits, the low four as in q4.h, the fifth as bit k of qh.
#pragma once
#include "kernels/math/blocks/q4.h"

namespace qeng::blocks {

struct Q5_0 {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = false;
  f16 d;
  uint8_t qh[4], qs[16];
};
static_assert(sizeof(Q5_0) == 22);

struct Q5_1 {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = true;
  f16 d, m;
  uint8_t qh[4], qs[16];
};
static_assert(sizeof(Q5_1) == 24);

QENG_HD int five_bits(const uint8_t* qs, const uint8_t* qh, int k) {
  return nibble(qs, k) | (qh[k / 8] >> (k % 8) & 1) << 4;
}

QENG_HD int code(const Q5_0& b, int k) { return five_bits(b.qs, b.qh, k) - 16; }
QENG_HD float scale(const Q5_0& b, int) { return to_f32(b.d); }

QENG_HD int code(const Q5_1& b, int k) { return five_bits(b.qs, b.qh, k); }
QENG_HD float scale(const Q5_1& b, int) { return to_f32(b.d); }
QENG_HD float min(const Q5_1& b, int) { return -to_f32(b.m); }

static inline void put_fifth_bits(const uint8_t* codes, uint8_t* qh) {
  for (int j = 0; j < 4; ++j) qh[j] = 0;
  for (int k = 0; k < 32; ++k) qh[k / 8] = static_cast<uint8_t>(qh[k / 8] | (codes[k] >> 4) << (k % 8));
}

static inline void encode(const float* x, const float* importance, Q5_0& b) {
  uint8_t codes[32];
  b.d = encode_symmetric(x, importance, 16, codes);
  put_nibbles(codes, b.qs), put_fifth_bits(codes, b.qh);
}

static inline void encode(const float* x, const float* importance, Q5_1& b) {
  uint8_t codes[32];
  encode_with_min(x, importance, 31, b.d, b.m, codes);
  put_nibbles(codes, b.qs), put_fifth_bits(codes, b.qh);
}

}  // namespace qeng::blocks
