// Q3_K: w = d (s_g - 32) (q - 4), groups of 16;  q: 3 bits, the low two as in q2_k.h, the third as bit k / 32 of
// hmask[k % 32]; s: 6 bits: the low four of group g in nibble g (q4.h's order, of 8 bytes), the high two as bits 2 (g /
// 4) of byte 8 + g % 4.
#pragma once
#include "kernels/math/blocks/q2_k.h"

namespace qeng::blocks {

struct Q3_K {
  static constexpr int kElements = 256, kGroup = 16;
  static constexpr bool kHasMin = false;
  uint8_t hmask[32], qs[64], scales[12];
  f16 d;
};
static_assert(sizeof(Q3_K) == 110);

QENG_HD int group_code(const Q3_K& b, int g) {
  const int low = g < 8 ? b.scales[g] & 15 : b.scales[g - 8] >> 4, high = b.scales[8 + g % 4] >> (g / 4 * 2) & 3;
  return (low | high << 4) - 32;
}
QENG_HD int code(const Q3_K& b, int k) { return two_bits(b.qs, k) + (b.hmask[k % 32] >> (k / 32) & 1) * 4 - 4; }
QENG_HD float scale(const Q3_K& b, int g) { return to_f32(b.d) * static_cast<float>(group_code(b, g)); }

static inline void encode(const float* x, const float* importance, Q3_K& b) {
  Super<16> fit;
  super_scales(x, importance, -32, 31, -4, 3, fit);
  b.d = fit.d;
  for (uint8_t& byte : b.scales) byte = 0;
  for (int g = 0; g < 16; ++g) {
    const int s = fit.scales[g] + 32;
    b.scales[g % 8] = static_cast<uint8_t>(b.scales[g % 8] | (s & 15) << (g / 8 * 4));
    b.scales[8 + g % 4] = static_cast<uint8_t>(b.scales[8 + g % 4] | s >> 4 << (g / 4 * 2));
  }
  for (uint8_t& byte : b.hmask) byte = 0;
  for (int k = 0; k < 256; ++k)
    b.hmask[k % 32] = static_cast<uint8_t>(b.hmask[k % 32] | (fit.codes[k] >= 0) << (k / 32));
  put_two_bits(fit.codes, 4, 0, b.qs);
}

}  // namespace qeng::blocks
