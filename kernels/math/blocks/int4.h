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

// From the least weight to the largest, and narrower ranges of that, whichever errs least.
static inline void encode(const float* x, const float* importance, Int4& b) {
  float u[32], low = 0, top = 0, least = -1;
  error_weights(32, x, importance, u);
  for (int k = 0; k < 32; ++k) low = x[k] < low ? x[k] : low, top = x[k] > top ? x[k] : top;
  b = {};
  if (top == low) return;  // all 0
  for (int t = 0; t <= 8; ++t) {
    const f16 d = to_f16((top - low) / 15.0f * (1.0f - 0.04f * static_cast<float>(t)));
    const float s = to_f32(d);
    if (s == 0) continue;
    const int around = nearest(-low / s);
    for (int zero = clamped(around - 1, 0, 15); zero <= clamped(around + 1, 0, 15); ++zero) {
      float codes[32];
      const float least_code = static_cast<float>(-zero);
      const float error = round_codes(32, x, u, s, 0.0f, least_code, least_code + 15, codes);
      if (least >= 0 && !(error < least)) continue;
      least = error, b.d = d, b.zero = static_cast<uint8_t>(zero);
      uint8_t stored[32];
      for (int k = 0; k < 32; ++k) stored[k] = static_cast<uint8_t>(static_cast<int>(codes[k]) + zero);
      put_nibbles(stored, b.qs);
    }
  }
}

}  // namespace qeng::blocks
