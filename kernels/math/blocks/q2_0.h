// Q2_0, PQ2_0: w = d (q - 1),  q: 2 bits, the first weight in the low bits; groups of 64 and of 128.
// Q1_0: w = d or -d: bit k set is +d, the first weight in the low bit.
// (Early Prism files call PQ2_0 Q2_0 too; readers tell them apart by the tensor's bytes.)
#pragma once
#include "kernels/math/blocks/block.h"

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

}  // namespace qeng::blocks
