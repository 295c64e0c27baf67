// Q4_K, Q5_K: w = d s_g q - dmin m_g, groups of 32;  s and m: 6 bits, q: 4 or 5 bits. Each 32 bytes of qs hold a pair
// of groups, the first in the low nibbles; the fifth bit of weight k is bit k / 32 of qh[k % 32]. Six bits in 12 bytes:
// s of groups 0..3 in the low six bits of bytes 0..3, m in bytes 4..7; of groups 4..7 the low four bits in the nibbles
// of bytes 8..11 (s low, m high) and the high two at the top of the bytes before.
#pragma once
#include "kernels/math/blocks/fit.h"

namespace qeng::blocks {

struct Q4_K {
  static constexpr int kElements = 256, kGroup = 32;
  static constexpr bool kHasMin = true;
  f16 d, dmin;
  uint8_t scales[12], qs[128];
};
static_assert(sizeof(Q4_K) == 144);

struct Q5_K {
  static constexpr int kElements = 256, kGroup = 32;
  static constexpr bool kHasMin = true;
  f16 d, dmin;
  uint8_t scales[12], qh[32], qs[128];
};
static_assert(sizeof(Q5_K) == 176);

QENG_HD int group_scale(const uint8_t* scales, int g) {
  return g < 4 ? scales[g] & 63 : (scales[g + 4] & 15) | scales[g - 4] >> 6 << 4;
}
QENG_HD int group_min(const uint8_t* scales, int g) {
  return g < 4 ? scales[g + 4] & 63 : scales[g + 4] >> 4 | scales[g] >> 6 << 4;
}
// Nibble k of 256, as pairs of groups of 32.
QENG_HD int paired_nibble(const uint8_t* qs, int k) { return qs[k / 64 * 32 + k % 32] >> (k % 64 / 32 * 4) & 15; }

QENG_HD int code(const Q4_K& b, int k) { return paired_nibble(b.qs, k); }
QENG_HD float scale(const Q4_K& b, int g) { return to_f32(b.d) * static_cast<float>(group_scale(b.scales, g)); }
QENG_HD float min(const Q4_K& b, int g) { return to_f32(b.dmin) * static_cast<float>(group_min(b.scales, g)); }

QENG_HD int code(const Q5_K& b, int k) { return paired_nibble(b.qs, k) | (b.qh[k % 32] >> (k / 32) & 1) << 4; }
QENG_HD float scale(const Q5_K& b, int g) { return to_f32(b.d) * static_cast<float>(group_scale(b.scales, g)); }
QENG_HD float min(const Q5_K& b, int g) { return to_f32(b.dmin) * static_cast<float>(group_min(b.scales, g)); }

static inline void put_group_scales(const Super<32>& fit, uint8_t* bytes) {
  for (int g = 0; g < 4; ++g) {
    const int s = fit.scales[g + 4], m = fit.mins[g + 4];
    bytes[g] = static_cast<uint8_t>(fit.scales[g] | s >> 4 << 6);
    bytes[g + 4] = static_cast<uint8_t>(fit.mins[g] | m >> 4 << 6);
    bytes[g + 8] = static_cast<uint8_t>((s & 15) | (m & 15) << 4);
  }
}
static inline void put_paired_nibbles(const int8_t* codes, uint8_t* qs) {
  for (int j = 0; j < 128; ++j) {
    const int k = j / 32 * 64 + j % 32;
    qs[j] = static_cast<uint8_t>((codes[k] & 15) | (codes[k + 32] & 15) << 4);
  }
}

static inline void encode(const float* x, const float* importance, Q4_K& b) {
  Super<32> fit;
  super_scales_mins(x, importance, 63, 15, fit);
  b.d = fit.d, b.dmin = fit.dmin;
  put_group_scales(fit, b.scales), put_paired_nibbles(fit.codes, b.qs);
}

static inline void encode(const float* x, const float* importance, Q5_K& b) {
  Super<32> fit;
  super_scales_mins(x, importance, 63, 31, fit);
  b.d = fit.d, b.dmin = fit.dmin;
  put_group_scales(fit, b.scales), put_paired_nibbles(fit.codes, b.qs);
  for (uint8_t& byte : b.qh) byte = 0;
  for (int k = 0; k < 256; ++k) b.qh[k % 32] = static_cast<uint8_t>(b.qh[k % 32] | fit.codes[k] >> 4 << (k / 32));
}

}  // namespace qeng::blocks
