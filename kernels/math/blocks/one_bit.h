// OneBit: w = 1 or -1: 32 weights a 32-bit word, bit k set is +1, the first weight in the lowest bit.
// Ternary: w = 0, 1 or -1: 16 weights a 32-bit word, two bits each, 00 is 0, 01 is +1, 10 is -1, the first weight in
// the lowest bits; 11 is not written, and reads as 0. A block is two words. Neither has a scale: a matrix of them has
// one for each row, kept beside it. The words are those of the Qsbits design.
#pragma once
#include "kernels/math/blocks/block.h"

namespace qeng::blocks {

struct OneBit {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = false;
  uint8_t qs[4];
};
static_assert(sizeof(OneBit) == 4);

struct Ternary {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = false;
  uint8_t qs[8];
};
static_assert(sizeof(Ternary) == 8);

QENG_HD int code(const OneBit& b, int k) { return (b.qs[k / 8] >> (k % 8) & 1) * 2 - 1; }
QENG_HD float scale(const OneBit&, int) { return 1.0f; }

QENG_HD int code(const Ternary& b, int k) {
  const int pair = b.qs[k / 4] >> (k % 4 * 2);
  return (pair & 1) - (pair >> 1 & 1);
}
QENG_HD float scale(const Ternary&, int) { return 1.0f; }

// The sign; of zero, +1.
static inline void encode(const float* x, const float*, OneBit& b) {
  for (uint8_t& byte : b.qs) byte = 0;
  for (int k = 0; k < 32; ++k) b.qs[k / 8] = static_cast<uint8_t>(b.qs[k / 8] | (x[k] >= 0) << (k % 8));
}

// The nearest of -1, 0, 1; halves to zero.
static inline void encode(const float* x, const float*, Ternary& b) {
  for (uint8_t& byte : b.qs) byte = 0;
  for (int k = 0; k < 32; ++k) {
    const int pair = x[k] > 0.5f ? 1 : x[k] < -0.5f ? 2 : 0;
    b.qs[k / 4] = static_cast<uint8_t>(b.qs[k / 4] | pair << (k % 4 * 2));
  }
}

}  // namespace qeng::blocks
