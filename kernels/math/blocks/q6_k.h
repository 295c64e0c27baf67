// Q6_K: w = d s_g (q - 32), groups of 16;  s: 8 bits with sign, q: 6 bits. In each half of 128 weights byte k % 64 of
// ql holds the low four bits of weights k and k + 64; the high two bits are in qh as in q2_k.h.
#pragma once
#include "kernels/math/blocks/q2_k.h"

namespace qeng::blocks {

struct Q6_K {
  static constexpr int kElements = 256, kGroup = 16;
  static constexpr bool kHasMin = false;
  uint8_t ql[128], qh[64];
  int8_t scales[16];
  f16 d;
};
static_assert(sizeof(Q6_K) == 210);

QENG_HD int code(const Q6_K& b, int k) {
  const int low = b.ql[k / 128 * 64 + k % 64] >> (k % 128 / 64 * 4) & 15;
  return (low | two_bits(b.qh, k) << 4) - 32;
}
QENG_HD float scale(const Q6_K& b, int g) { return to_f32(b.d) * static_cast<float>(b.scales[g]); }

}  // namespace qeng::blocks
