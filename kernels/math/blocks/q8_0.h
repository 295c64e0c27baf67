// Q8_0: w = d q,  q: 8 bits with sign. Also a format of the KV cache, so encoding too is for devices.
#pragma once
#include "kernels/math/blocks/block.h"

namespace qeng::blocks {

struct Q8_0 {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = false;
  f16 d;
  int8_t qs[32];
};
static_assert(sizeof(Q8_0) == 34);

QENG_HD int code(const Q8_0& b, int k) { return b.qs[k]; }
QENG_HD float scale(const Q8_0& b, int) { return to_f32(b.d); }

// To the nearest integer, halves away from zero; |x| < 2^23.
QENG_HD int round_away(float x) {
  const int whole = static_cast<int>(x);
  const float rest = x - static_cast<float>(whole);
  return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

// d = max|x| / 127, q = round(x / d): the code of the largest is 127. Importance does not matter: errors are even.
QENG_HD void encode(const float* x, const float*, Q8_0& b) {
  float most = 0;
  for (int k = 0; k < 32; ++k) {
    const float size = x[k] < 0 ? -x[k] : x[k];
    if (size > most) most = size;
  }
  const float d = most / 127.0f, inverse = inverse_of(d);
  b.d = to_f16(d);
  for (int k = 0; k < 32; ++k) b.qs[k] = static_cast<int8_t>(round_away(x[k] * inverse));
}

}  // namespace qeng::blocks
