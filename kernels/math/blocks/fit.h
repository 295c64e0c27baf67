// Least-squares fits that encoders share. x: the weights; u: what their squared errors weigh; codes are integers.
//   symmetric: x ~ s q, low <= q <= high        with a minimum: x ~ s q - m, 0 <= q <= high, m >= 0
// For fixed codes s (and m) have a closed form, for fixed s and m the codes are roundings; a fit starts from the best
// of a row of scales near (range of x) / (range of q), with codes rounded by each, and alternates from there. Scales of
// groups are codes themselves: `super_...` fits a block of groups so, with d and dmin rounded to halves. On the host
// only. (The idea of a row of starting scales is that of llama.cpp's make_qx_quants and make_qkx2_quants.)
#pragma once
#include "kernels/math/blocks/block.h"

namespace qeng::blocks {

// To the nearest integer, halves to even, for |x| < 2^22; some integer for any other, NaN too.
static inline int nearest(float x) { return static_cast<int>(bits_of(x + 12582912.0f) & 0x7fffffu) - 0x400000; }
static inline int clamped(int q, int low, int high) { return q < low ? low : q > high ? high : q; }
static inline float magnitude(float x) { return x < 0 ? -x : x; }

// u = importance * sqrt(mean(x^2) + x^2): of two weights with equal importance the larger error may be in the smaller.
static inline void error_weights(int n, const float* x, const float* importance, float* u) {
  float mean = 0;
  for (int k = 0; k < n; ++k) mean += x[k] * x[k];
  mean /= static_cast<float>(n);
  for (int k = 0; k < n; ++k) u[k] = (importance ? importance[k] : 1.0f) * __builtin_sqrtf(mean + x[k] * x[k]);
}

// ---------------------------------------------------------------- one scale

// The codes of x by a scale (all 0 if it is 0), and the weighted error they leave.
static inline float round_codes(int n, const float* x, const float* u, float s, float m, int low, int high,
                                int8_t* codes) {
  const float inverse = inverse_of(s);
  float error = 0;
  for (int k = 0; k < n; ++k) {
    const int q = clamped(nearest((x[k] + m) * inverse), low, high);
    codes[k] = static_cast<int8_t>(q);
    const float rest = s * static_cast<float>(q) - m - x[k];
    error += u[k] * rest * rest;
  }
  return error;
}

// The best scale for codes; 0 if they are all 0.
static inline float best_scale(int n, const float* x, const float* u, const int8_t* codes) {
  float xq = 0, qq = 0;
  for (int k = 0; k < n; ++k) {
    const float q = static_cast<float>(codes[k]);
    xq += u[k] * x[k] * q, qq += u[k] * q * q;
  }
  return qq > 0 ? xq / qq : 0.0f;
}

constexpr int kRounds = 3;  // of alternating: later ones change the error by less than 0.1 %

// s of x ~ s q. `low` is the longer side: the largest |x| gets about that code, and s its sign.
static inline float fit_scale(int n, const float* x, const float* u, int low, int high) {
  float extreme = 0;
  for (int k = 0; k < n; ++k)
    if (magnitude(x[k]) > magnitude(extreme)) extreme = x[k];
  if (extreme == 0) return 0;
  int8_t codes[32];
  float best = extreme / static_cast<float>(low), least = round_codes(n, x, u, best, 0, low, high, codes);
  const auto consider = [&](float s) {
    const float error = round_codes(n, x, u, s, 0, low, high, codes);
    if (error < least) least = error, best = s;
    return error;
  };
  for (int t = -9; t <= 9; ++t) {
    round_codes(n, x, u, extreme / (static_cast<float>(low) + 0.1f * static_cast<float>(t)), 0, low, high, codes);
    consider(best_scale(n, x, u, codes));
  }
  for (int round = 0; round < kRounds; ++round) {
    round_codes(n, x, u, best, 0, low, high, codes);
    consider(best_scale(n, x, u, codes));
  }
  return best;
}

struct ScaleMin {
  float s, m;
};

// The best scale and minimum for codes; m is held at 0 where it would be negative, s at 0.
static inline ScaleMin best_scale_min(int n, const float* x, const float* u, const int8_t* codes) {
  float w = 0, wx = 0, q1 = 0, q2 = 0, xq = 0;
  for (int k = 0; k < n; ++k) {
    const float q = static_cast<float>(codes[k]);
    w += u[k], wx += u[k] * x[k], q1 += u[k] * q, q2 += u[k] * q * q, xq += u[k] * x[k] * q;
  }
  const float determinant = w * q2 - q1 * q1;
  if (determinant > 0) {
    const ScaleMin best{(w * xq - wx * q1) / determinant, (q1 * xq - q2 * wx) / determinant};
    if (best.m >= 0) return best.s > 0 ? best : ScaleMin{0, best.m};
  }
  return {q2 > 0 && xq > 0 ? xq / q2 : 0.0f, 0};
}

// s and m of x ~ s q - m.
static inline ScaleMin fit_scale_min(int n, const float* x, const float* u, int high) {
  float low = 0, top = x[0];
  for (int k = 0; k < n; ++k) low = x[k] < low ? x[k] : low, top = x[k] > top ? x[k] : top;
  if (top <= low) return {0, -low};
  int8_t codes[32];
  ScaleMin best{(top - low) / static_cast<float>(high), -low};
  float least = round_codes(n, x, u, best.s, best.m, 0, high, codes);
  const auto consider = [&](ScaleMin each) {
    const float error = round_codes(n, x, u, each.s, each.m, 0, high, codes);
    if (error < least) least = error, best = each;
  };
  const float step = high < 8 ? 0.05f : 0.1f;  // with few codes each place of the scale counts
  for (float t = -1; t <= 1.0f; t += step) {
    round_codes(n, x, u, (top - low) / (static_cast<float>(high) + t), -low, 0, high, codes);
    consider(best_scale_min(n, x, u, codes));
  }
  for (int round = 0; round < kRounds; ++round) {
    round_codes(n, x, u, best.s, best.m, 0, high, codes);
    consider(best_scale_min(n, x, u, codes));
  }
  return best;
}

// ---------------------------------------------------------------- a block of groups

// A block of 256 weights in groups of n: w = d s_g q - dmin m_g. scales, mins and codes as the format stores them.
template <int n>
struct Super {
  static constexpr int kGroups = 256 / n;
  f16 d{0}, dmin{0};
  int scales[kGroups], mins[kGroups];
  int8_t codes[256];
};

// Symmetric: scales in [scale_low, scale_high] where the first is the longer side, codes in [low, high].
template <int n>
static inline void super_scales(const float* x, const float* importance, int scale_low, int scale_high, int low,
                                int high, Super<n>& out) {
  constexpr int kGroups = Super<n>::kGroups;
  float u[256], s[kGroups], extreme = 0;
  error_weights(256, x, importance, u);
  for (int g = 0; g < kGroups; ++g) {
    s[g] = fit_scale(n, x + g * n, u + g * n, low, high);
    if (magnitude(s[g]) > magnitude(extreme)) extreme = s[g];
  }
  float d = extreme / static_cast<float>(scale_low);
  const float inverse = inverse_of(d);
  for (int g = 0; g < kGroups; ++g) out.scales[g] = clamped(nearest(s[g] * inverse), scale_low, scale_high);
  for (int round = 0;; ++round) {
    d = to_f32(out.d = to_f16(d));
    float xq = 0, qq = 0;  // of d, all groups together
    for (int g = 0; g < kGroups; ++g) {
      const float *xs = x + g * n, *us = u + g * n;
      int8_t* codes = out.codes + g * n;
      int best = out.scales[g];
      float least = round_codes(n, xs, us, d * static_cast<float>(best), 0, low, high, codes);
      for (int each = out.scales[g] - 1; each <= out.scales[g] + 1; each += 2) {
        if (each < scale_low || each > scale_high) continue;
        const float error = round_codes(n, xs, us, d * static_cast<float>(each), 0, low, high, codes);
        if (error < least) least = error, best = each;
      }
      out.scales[g] = best;
      round_codes(n, xs, us, d * static_cast<float>(best), 0, low, high, codes);
      for (int k = 0; k < n; ++k) {
        const float q = static_cast<float>(best * codes[k]);
        xq += us[k] * xs[k] * q, qq += us[k] * q * q;
      }
    }
    if (round == kRounds || qq <= 0) return;
    d = xq / qq;
  }
}

// With minimums: scales and mins in [0, most], codes in [0, high].
template <int n>
static inline void super_scales_mins(const float* x, const float* importance, int most, int high, Super<n>& out) {
  constexpr int kGroups = Super<n>::kGroups;
  float u[256], top_s = 0, top_m = 0;
  ScaleMin fits[kGroups];
  error_weights(256, x, importance, u);
  for (int g = 0; g < kGroups; ++g) {
    fits[g] = fit_scale_min(n, x + g * n, u + g * n, high);
    top_s = fits[g].s > top_s ? fits[g].s : top_s, top_m = fits[g].m > top_m ? fits[g].m : top_m;
  }
  float d = top_s / static_cast<float>(most), dmin = top_m / static_cast<float>(most);
  for (int g = 0; g < kGroups; ++g) {
    out.scales[g] = d > 0 ? clamped(nearest(fits[g].s / d), 0, most) : 0;
    out.mins[g] = dmin > 0 ? clamped(nearest(fits[g].m / dmin), 0, most) : 0;
  }
  for (int round = 0;; ++round) {
    d = to_f32(out.d = to_f16(d)), dmin = to_f32(out.dmin = to_f16(dmin));
    float aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;  // x ~ d a - dmin b with a = s_g q, b = m_g, all groups together
    for (int g = 0; g < kGroups; ++g) {
      const float *xs = x + g * n, *us = u + g * n;
      int8_t* codes = out.codes + g * n;
      const int s0 = out.scales[g], m0 = out.mins[g];
      float least = -1;
      for (int s = s0 - 1; s <= s0 + 1; ++s)
        for (int m = m0 - 1; m <= m0 + 1; ++m) {
          if (s < 0 || s > most || m < 0 || m > most) continue;
          const float error =
              round_codes(n, xs, us, d * static_cast<float>(s), dmin * static_cast<float>(m), 0, high, codes);
          if (least < 0 || error < least) least = error, out.scales[g] = s, out.mins[g] = m;
        }
      const float s = static_cast<float>(out.scales[g]), m = static_cast<float>(out.mins[g]);
      round_codes(n, xs, us, d * s, dmin * m, 0, high, codes);
      for (int k = 0; k < n; ++k) {
        const float a = s * static_cast<float>(codes[k]);
        aa += us[k] * a * a, ab += us[k] * a * m, bb += us[k] * m * m, ax += us[k] * a * xs[k], bx += us[k] * m * xs[k];
      }
    }
    const float determinant = aa * bb - ab * ab;
    if (round == kRounds || determinant <= 0) return;
    const float better = (ax * bb - ab * bx) / determinant, better_min = (ab * ax - aa * bx) / determinant;
    if (better <= 0 || better_min < 0) return;
    d = better, dmin = better_min;
  }
}

}  // namespace qeng::blocks
