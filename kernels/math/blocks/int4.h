// Int4: w = d (q - zero),  q: 4 bits, nibbles as in q4.h. Ours, for the weights of AWQ and GPTQ, whose groups are
// multiples of 32: a group's scale and zero point are repeated in its blocks. zero is at most 16 (GPTQ stores zero
// points minus one).
#pragma once
#include "kernels/math/blocks/q4.h"

namespace qeng::blocks {

struct Int4 {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = false;
  f16 d;
  uint8_t zero, unused;
  uint8_t qs[16];
};
static_assert(sizeof(Int4) == 20);

QENG_HD int code(const Int4& b, int k) { return nibble(b.qs, k) - b.zero; }
QENG_HD float scale(const Int4& b, int) { return to_f32(b.d); }

}  // namespace qeng::blocks
