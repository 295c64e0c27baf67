// Q4_0: w = d (q - 8).   Q4_1: w = d q + m.   q: 4 bits; byte j holds weight j low, weight j + 16 high.
#pragma once
#include "kernels/math/blocks/fit.h"

namespace qeng::blocks {

struct Q4_0 {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = false;
  f16 d;
  uint8_t qs[16];
};
static_assert(sizeof(Q4_0) == 18);

struct Q4_1 {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = true;
  f16 d, m;
  uint8_t qs[16];
};
static_assert(sizeof(Q4_1) == 20);

// Nibble k of 32: the first 16 low, the others high.
QENG_HD int nibble(const uint8_t* qs, int k) { return k < 16 ? qs[k] & 15 : qs[k - 16] >> 4; }

QENG_HD int code(const Q4_0& b, int k) { return nibble(b.qs, k) - 8; }
QENG_HD float scale(const Q4_0& b, int) { return to_f32(b.d); }

QENG_HD int code(const Q4_1& b, int k) { return nibble(b.qs, k); }
QENG_HD float scale(const Q4_1& b, int) { return to_f32(b.d); }
QENG_HD float min(const Q4_1& b, int) { return -to_f32(b.m); }

// The weight of the largest magnitude, with its sign; the first of several.
static inline float extreme_of(int n, const float* x) {
  float extreme = 0;
  for (int k = 0; k < n; ++k)
    if (magnitude(x[k]) > magnitude(extreme)) extreme = x[k];
  return extreme;
}

// Codes 0 .. 2 * half - 1 of x ~ d (q - half), one scale; codes as stored. Without importance d takes the extreme to 0.
static inline f16 encode_symmetric(const float* x, const float* importance, int half, uint8_t* codes) {
  float d;
  if (importance) {
    float u[32];
    error_weights(32, x, importance, u);
    d = to_f32(to_f16(fit_scale(32, x, u, static_cast<float>(-half), static_cast<float>(half - 1))));
  } else {
    d = extreme_of(32, x) / static_cast<float>(-half);
  }
  const float inverse = inverse_of(d);
  for (int k = 0; k < 32; ++k) {
    const int q = static_cast<int>(x[k] * inverse + (static_cast<float>(half) + 0.5f));  // not negative: rounds down
    codes[k] = static_cast<uint8_t>(clamped(q, 0, 2 * half - 1));
  }
  return to_f16(d);
}

constexpr float kMostHalf = 65504;

// Codes 0 .. high of x ~ d q + m. Without importance from the least to the largest weight.
static inline void encode_with_min(const float* x, const float* importance, int high, f16& d, f16& m, uint8_t* codes) {
  float low = x[0], top = x[0];
  for (int k = 0; k < 32; ++k) low = x[k] < low ? x[k] : low, top = x[k] > top ? x[k] : top;
  float s = (top - low) / static_cast<float>(high);
  if (importance) {
    float u[32];
    error_weights(32, x, importance, u);
    const ScaleMin<float> fit = fit_scale_min(32, x, u, static_cast<float>(high));
    const auto held = [](float value) { return value < kMostHalf ? value : kMostHalf; };  // few codes may want more
    s = to_f32(to_f16(held(fit.s))), low = to_f32(to_f16(-held(fit.m)));
  }
  d = to_f16(s), m = to_f16(low);
  const float inverse = inverse_of(s);
  for (int k = 0; k < 32; ++k)
    codes[k] = static_cast<uint8_t>(clamped(static_cast<int>((x[k] - low) * inverse + 0.5f), 0, high));
}

static inline void put_nibbles(const uint8_t* codes, uint8_t* qs) {
  for (int j = 0; j < 16; ++j) qs[j] = static_cast<uint8_t>((codes[j] & 15) | codes[j + 16] << 4);
}

static inline void encode(const float* x, const float* importance, Q4_0& b) {
  uint8_t codes[32];
  b.d = encode_symmetric(x, importance, 8, codes);
  put_nibbles(codes, b.qs);
}

static inline void encode(const float* x, const float* importance, Q4_1& b) {
  uint8_t codes[32];
  encode_with_min(x, importance, 15, b.d, b.m, codes);
  put_nibbles(codes, b.qs);
}

}  // namespace qeng::blocks
