// Q2_K: w = d s_g q - dmin m_g, groups of 16;  q: 2 bits, s and m: 4 bits each.
// Weight k lies in half k / 128, where byte k % 32 holds four weights 32 apart, the first lowest.
#pragma once
#include "kernels/math/blocks/fit.h"

namespace qeng::blocks {

struct Q2_K {
  static constexpr int kElements = 256, kGroup = 16;
  static constexpr bool kHasMin = true;
  uint8_t scales[16];  // s low, m high
  uint8_t qs[64];
  f16 d, dmin;
};
static_assert(sizeof(Q2_K) == 84);

// Two bits k of 256 in that order, which Q3_K, Q6_K (its high bits) and TQ2_0 share.
QENG_HD int two_bits(const uint8_t* qs, int k) { return qs[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3; }

QENG_HD int code(const Q2_K& b, int k) { return two_bits(b.qs, k); }
QENG_HD float scale(const Q2_K& b, int g) { return to_f32(b.d) * static_cast<float>(b.scales[g] & 15); }
QENG_HD float min(const Q2_K& b, int g) { return to_f32(b.dmin) * static_cast<float>(b.scales[g] >> 4); }

// The low two bits of 256 codes; code + offset is not negative.
static inline void put_two_bits(const int8_t* codes, int offset, int shift, uint8_t* qs) {
  for (int j = 0; j < 64; ++j) qs[j] = 0;
  for (int k = 0; k < 256; ++k) {
    uint8_t& byte = qs[k / 128 * 32 + k % 32];
    byte = static_cast<uint8_t>(byte | ((codes[k] + offset) >> shift & 3) << (k % 128 / 32 * 2));
  }
}

static inline void encode(const float* x, const float* importance, Q2_K& b) {
  Super<16> fit;
  super_scales_mins(x, importance, 15, 3, fit);
  b.d = fit.d, b.dmin = fit.dmin;
  for (int g = 0; g < 16; ++g) b.scales[g] = static_cast<uint8_t>(fit.scales[g] | fit.mins[g] << 4);
  put_two_bits(fit.codes, 0, 0, b.qs);
}

}  // namespace qeng::blocks
