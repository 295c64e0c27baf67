// Q2_K: w = d s_g q - dmin m_g, groups of 16;  q: 2 bits, s and m: 4 bits each.
// Weight k lies in half k / 128, where byte k % 32 holds four weights 32 apart, the first lowest.
#pragma once
#include "kernels/math/blocks/block.h"

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

}  // namespace qeng::blocks
