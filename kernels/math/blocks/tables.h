// Formats whose 4-bit codes name values of a table; nibbles as in q4.h.
// IQ4_NL: w = d v[q], v denser near zero.   MXFP4: w = 2^(e - 128) v[q], v twice the values of FP4 E2M1 (OCP
// Microscaling Formats 1.0, section 5.3.3; e is the shared exponent of E8M0).
#pragma once
#include "kernels/math/blocks/q4.h"

namespace qeng::blocks {

struct IQ4_NL {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = false;
  f16 d;
  uint8_t qs[16];
};
static_assert(sizeof(IQ4_NL) == 18);

struct MXFP4 {
  static constexpr int kElements = 32, kGroup = 32;
  static constexpr bool kHasMin = false;
  uint8_t e;
  uint8_t qs[16];
};
static_assert(sizeof(MXFP4) == 17);

// Value q of a table of 16 signed bytes, the first lowest.
QENG_HD int table_value(uint64_t first_eight, uint64_t others, int q) {
  return static_cast<int8_t>((q < 8 ? first_eight : others) >> (q % 8 * 8));
}
// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
constexpr uint64_t kIq4First = 0xf6eaddcfbfad9881u, kIq4Others = 0x7159453526190d01u;
// 0 1 2 3 4 6 8 12 and their negatives
constexpr uint64_t kFp4First = 0x0c08060403020100u, kFp4Others = 0xf4f8fafcfdfeff00u;
QENG_HD int iq4_value(int q) { return table_value(kIq4First, kIq4Others, q); }
QENG_HD int fp4_value(int q) { return table_value(kFp4First, kFp4Others, q); }

QENG_HD int code(const IQ4_NL& b, int k) { return iq4_value(nibble(b.qs, k)); }
QENG_HD float scale(const IQ4_NL& b, int) { return to_f32(b.d); }

QENG_HD int code(const MXFP4& b, int k) { return fp4_value(nibble(b.qs, k)); }
QENG_HD float scale(const MXFP4& b, int) {  // the two least are subnormal
  return float_of(b.e < 2 ? 0x00200000u << b.e : static_cast<uint32_t>(b.e - 1) << 23);
}

// The code whose value is nearest to v, the first of two. Values of IQ4_NL ascend, those of FP4's first codes too.
static inline int nearest_iq4(float v) {
  int q = 0;
  for (int step = 8; step > 0; step /= 2)
    if (v > 0.5f * static_cast<float>(iq4_value(q + step - 1) + iq4_value(q + step))) q += step;
  return q;
}
static inline int nearest_fp4(float v) {
  const float size = magnitude(v);
  int q = 0;
  while (q < 7 && size > 0.5f * static_cast<float>(fp4_value(q) + fp4_value(q + 1))) ++q;
  return v < 0 && q > 0 ? q + 8 : q;
}

// iq4_value(nearest_iq4()) of each.
static inline Lanes nearest_iq4_values(Lanes v) {
  Lanes nearest = Lanes{} + static_cast<float>(iq4_value(0));
  for (int q = 1; q < 16; ++q) {
    const float value = static_cast<float>(iq4_value(q)),
                between = 0.5f * static_cast<float>(iq4_value(q - 1) + iq4_value(q));
    nearest = v > between ? Lanes{} + value : nearest;
  }
  return nearest;
}

// d of x[32] ~ d v[q]; u: error_weights(). The best d for the codes of one of a row of scales.
static inline float fit_iq4(const float* x, const float* u) {
  const float extreme = extreme_of(32, x);
  float d = 0, most = -1;
  Lanes xs[32 / kLanes], us[32 / kLanes];
  for (int k = 0; k < 32; ++k) xs[k / kLanes][k % kLanes] = x[k], us[k / kLanes][k % kLanes] = u[k];
  // The best d for the codes of an inverse scale, if that beats what is known.
  const auto improve = [&](float inverse) {
    Lanes of_xv{}, of_vv{};
    for (int i = 0; i < 32 / kLanes; ++i) {
      const Lanes v = nearest_iq4_values(xs[i] * inverse);
      of_xv += us[i] * xs[i] * v, of_vv += us[i] * v * v;
    }
    const float xv = sum(of_xv), vv = sum(of_vv);
    if (vv > 0 && xv * xv > most * vv) most = xv * xv / vv, d = xv / vv;
  };
  for (int t = -7; t <= 7 && extreme != 0; ++t)
    improve((static_cast<float>(t) - 127.0f) / extreme), improve((static_cast<float>(t) + 113.0f) / extreme);
  for (int round = 0; round < kRounds && d != 0; ++round) improve(1.0f / d);
  return d;
}

static inline void encode(const float* x, const float* importance, IQ4_NL& b) {
  float u[32];
  error_weights(32, x, importance, u);
  b.d = to_f16(fit_iq4(x, u));
  const float stored = to_f32(b.d), inverse = inverse_of(stored);
  uint8_t codes[32];
  for (int k = 0; k < 32; ++k) codes[k] = static_cast<uint8_t>(nearest_iq4(x[k] * inverse));
  put_nibbles(codes, b.qs);
}

// The exponent that OCP gives, which saturates weights above 6 of its steps, or the one above it, whichever errs less.
static inline void encode(const float* x, const float* importance, MXFP4& b) {
  const float most = magnitude(extreme_of(32, x));
  const int exponent = static_cast<int>(bits_of(most) >> 23);  // biased; the scale 2^(e - 128) is an eighth of that
  const int first = most == 0 ? 0 : clamped(exponent - 2, 0, 254);
  float least = -1;
  for (int e = first; e <= (first < 254 ? first + 1 : first); ++e) {
    MXFP4 candidate;
    candidate.e = static_cast<uint8_t>(e);
    const float d = scale(candidate, 0);
    uint8_t codes[32];
    float error = 0;
    for (int k = 0; k < 32; ++k) {
      codes[k] = static_cast<uint8_t>(nearest_fp4(x[k] / d));
      const float rest = d * static_cast<float>(fp4_value(codes[k])) - x[k];
      error += (importance ? importance[k] : 1.0f) * rest * rest;
    }
    if (least >= 0 && !(error < least)) continue;
    least = error;
    put_nibbles(codes, candidate.qs);
    b = candidate;
  }
}

}  // namespace qeng::blocks
