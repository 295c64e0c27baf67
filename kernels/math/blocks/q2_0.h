// Q2_0, PQ2_0: w = d (q - 1),  q: 2 bits, the first weight in the low bits; groups of 64 and of 128.
// Q1_0: w = d or -d: bit k set is +d, the first weight in the low bit.
// (Early Prism files call PQ2_0 Q2_0 too; readers tell them apart by the tensor's bytes.)
#pragma once
#include "kernels/math/blocks/q8_0.h"

namespace qeng::blocks {

struct Q2_0 {
  static constexpr int kElements = 64, kGroup = 64;
  static constexpr bool kHasMin = false;
  f16 d;
  uint8_t qs[16];
};
static_assert(sizeof(Q2_0) == 18);

struct PQ2_0 {
  static constexpr int kElements = 128, kGroup = 128;
  static constexpr bool kHasMin = false;
  f16 d;
  uint8_t qs[32];
};
static_assert(sizeof(PQ2_0) == 34);

struct Q1_0 {
  static constexpr int kElements = 128, kGroup = 128;
  static constexpr bool kHasMin = false;
  f16 d;
  uint8_t qs[16];
};
static_assert(sizeof(Q1_0) == 18);

QENG_HD int code(const Q2_0& b, int k) { return (b.qs[k / 4] >> (k % 4 * 2) & 3) - 1; }
QENG_HD float scale(const Q2_0& b, int) { return to_f32(b.d); }

QENG_HD int code(const PQ2_0& b, int k) { return (b.qs[k / 4] >> (k % 4 * 2) & 3) - 1; }
QENG_HD float scale(const PQ2_0& b, int) { return to_f32(b.d); }

QENG_HD int code(const Q1_0& b, int k) { return (b.qs[k / 8] >> (k % 8) & 1) * 2 - 1; }
QENG_HD float scale(const Q1_0& b, int) { return to_f32(b.d); }

// Ternary codes 0 1 2 of weights -d 0 d, d = max|x|: exact where the weights are ternary. Importance does not matter.
static inline f16 encode_ternary(int n, const float* x, uint8_t* codes) {
  float most = 0;
  for (int k = 0; k < n; ++k) {
    const float size = x[k] < 0 ? -x[k] : x[k];
    if (size > most) most = size;
  }
  const float inverse = inverse_of(most);
  for (int k = 0; k < n; ++k) codes[k] = static_cast<uint8_t>(round_away(x[k] * inverse) + 1);
  return to_f16(most);
}
static inline void put_crumbs(int n, const uint8_t* codes, uint8_t* qs) {
  for (int j = 0; j < n / 4; ++j)
    qs[j] = static_cast<uint8_t>(codes[4 * j] | codes[4 * j + 1] << 2 | codes[4 * j + 2] << 4 | codes[4 * j + 3] << 6);
}

static inline void encode(const float* x, const float*, Q2_0& b) {
  uint8_t codes[64];
  b.d = encode_ternary(64, x, codes);
  put_crumbs(64, codes, b.qs);
}

static inline void encode(const float* x, const float*, PQ2_0& b) {
  uint8_t codes[128];
  b.d = encode_ternary(128, x, codes);
  put_crumbs(128, codes, b.qs);
}

// d = mean|x|, the best for signs alone (with importance, the mean it weighs).
static inline void encode(const float* x, const float* importance, Q1_0& b) {
  float sum = 0, weight = 0;
  for (int k = 0; k < 128; ++k) {
    const float u = importance ? importance[k] : 1.0f;
    sum += u * (x[k] < 0 ? -x[k] : x[k]), weight += u;
  }
  b.d = to_f16(weight > 0 ? sum / weight : 0.0f);
  for (uint8_t& byte : b.qs) byte = 0;
  for (int k = 0; k < 128; ++k) b.qs[k / 8] = static_cast<uint8_t>(b.qs[k / 8] | (x[k] >= 0) << (k % 8));
}

}  // namespace qeng::blocks
