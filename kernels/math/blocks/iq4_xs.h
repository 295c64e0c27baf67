// IQ4_XS: w = d (s_g - 32) v[q], groups of 32, v and nibbles of a group as in IQ4_NL (tables.h);  s: 6 bits: the low
// four of group g in nibble g of scales_l, the high two in bits 2 g of scales_h.
#pragma once
#include "kernels/math/blocks/tables.h"

namespace qeng::blocks {

struct IQ4_XS {
  static constexpr int kElements = 256, kGroup = 32;
  static constexpr bool kHasMin = false;
  f16 d;
  uint16_t scales_h;
  uint8_t scales_l[4], qs[128];
};
static_assert(sizeof(IQ4_XS) == 136);

QENG_HD int group_code(const IQ4_XS& b, int g) {
  return ((b.scales_l[g / 2] >> (g % 2 * 4) & 15) | (b.scales_h >> (2 * g) & 3) << 4) - 32;
}
QENG_HD int code(const IQ4_XS& b, int k) { return iq4_value(nibble(b.qs + k / 32 * 16, k % 32)); }
QENG_HD float scale(const IQ4_XS& b, int g) { return to_f32(b.d) * static_cast<float>(group_code(b, g)); }

// Scales of groups as IQ4_NL fits them; d takes the largest to -32. The codes are then those of the rounded scales, and
// each scale's neighbours are tried too.
static inline void encode(const float* x, const float* importance, IQ4_XS& b) {
  float u[256], scales[8], extreme = 0;
  for (int g = 0; g < 8; ++g) {
    error_weights(32, x + 32 * g, importance ? importance + 32 * g : nullptr, u + 32 * g);
    scales[g] = fit_iq4(x + 32 * g, u + 32 * g);
    if (magnitude(scales[g]) > magnitude(extreme)) extreme = scales[g];
  }
  b = {};
  b.d = to_f16(extreme / -32.0f);
  const float d = to_f32(b.d), inverse = inverse_of(d);
  for (int g = 0; g < 8; ++g) {
    float least = -1;
    int best = 0;
    const int around = nearest(scales[g] * inverse);
    for (int s = clamped(around - 1, -32, 31); s <= clamped(around + 1, -32, 31); ++s) {
      const float of_group = d * static_cast<float>(s), per = inverse_of(of_group);
      uint8_t codes[32];
      float error = 0;
      for (int k = 0; k < 32; ++k) {
        codes[k] = static_cast<uint8_t>(nearest_iq4(x[32 * g + k] * per));
        const float rest = of_group * static_cast<float>(iq4_value(codes[k])) - x[32 * g + k];
        error += u[32 * g + k] * rest * rest;
      }
      if (least >= 0 && !(error < least)) continue;
      least = error, best = s;
      put_nibbles(codes, b.qs + 16 * g);
    }
    b.scales_l[g / 2] = static_cast<uint8_t>(b.scales_l[g / 2] | ((best + 32) & 15) << (g % 2 * 4));
    b.scales_h = static_cast<uint16_t>(b.scales_h | (best + 32) >> 4 << (2 * g));
  }
}

}  // namespace qeng::blocks
