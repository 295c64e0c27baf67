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

// 256 codes of six bits, without sign.
static inline void put_codes(const uint8_t* codes, Q6_K& b) {
  for (int j = 0; j < 128; ++j) {
    const uint8_t* first = codes + j / 64 * 128 + j % 64;
    b.ql[j] = static_cast<uint8_t>((first[0] & 15) | (first[64] & 15) << 4);
  }
  for (int j = 0; j < 64; ++j) {
    const uint8_t* first = codes + j / 32 * 128 + j % 32;
    b.qh[j] = static_cast<uint8_t>(first[0] >> 4 | first[32] >> 4 << 2 | first[64] >> 4 << 4 | first[96] >> 4 << 6);
  }
}

static inline void encode(const float* x, const float* importance, Q6_K& b) {
  Super<16> fit;
  super_scales(x, importance, -128, 127, -32, 31, fit);
  b.d = fit.d;
  for (int g = 0; g < 16; ++g) b.scales[g] = static_cast<int8_t>(fit.scales[g]);
  uint8_t codes[256];
  for (int k = 0; k < 256; ++k) codes[k] = static_cast<uint8_t>(fit.codes[k] + 32);
  put_codes(codes, b);
}

}  // namespace qeng::blocks
