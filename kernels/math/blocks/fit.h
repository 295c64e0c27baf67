// Least-squares fits that encoders share. x: the weights; u: what their squared errors weigh; codes are integers.
//   symmetric: x ~ s q, low <= q <= high        with a minimum: x ~ s q - m, 0 <= q <= high, m >= 0
// For fixed codes s (and m) have a closed form, for fixed s and m the codes are roundings; a fit starts from the best
// of a row of scales near (range of x) / (range of q), with codes rounded by each, and alternates from there. Scales of
// groups are codes themselves: `super_...` fits a block of groups so, with d and dmin rounded to halves. On the host
// only. (The idea of a row of starting scales is that of llama.cpp's make_qx_quants and make_qkx2_quants.)
//
// F is float, for one group, or Lanes, for eight groups side by side, each of which gets what it would get alone.
#pragma once
#include "kernels/math/blocks/block.h"

// Of vectors wider than the registers, whose calls are all within a file. To the end of it, where templates are made.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace qeng::blocks {

constexpr int kLanes = 8;
using Lanes __attribute__((vector_size(kLanes * sizeof(float)))) = float;

// To the nearest integer, halves to even, for |x| < 2^22.
static inline int nearest(float x) { return static_cast<int>(bits_of(x + 12582912.0f) & 0x7fffffu) - 0x400000; }
static inline int clamped(int q, int low, int high) { return q < low ? low : q > high ? high : q; }
static inline float magnitude(float x) { return x < 0 ? -x : x; }

// The same in floats; `low` for a NaN.
template <class F>
static inline F nearest_between(F x, float low, float high) {
  const F q = (x + 12582912.0f) - 12582912.0f, least = F{} + low, most = F{} + high;
  const F raised = q > least ? q : least;
  return raised < most ? raised : most;
}
// inverse_of() of each.
template <class F>
static inline F inverses(F s) {
  return (s > 1e-30f) | (s < -1e-30f) ? 1.0f / s : F{};
}

// u = importance * sqrt(mean(x^2) + x^2): of two weights with equal importance the larger error may be in the smaller.
static inline void error_weights(int n, const float* x, const float* importance, float* u) {
  float mean = 0;
  for (int k = 0; k < n; ++k) mean += x[k] * x[k];
  mean /= static_cast<float>(n);
  for (int k = 0; k < n; ++k) u[k] = (importance ? importance[k] : 1.0f) * __builtin_sqrtf(mean + x[k] * x[k]);
}

// ---------------------------------------------------------------- one scale

// The codes of x by a scale (`low` or 0 if it is 0), and the weighted error they leave.
template <class F>
static inline F round_codes(int n, const F* x, const F* u, F s, F m, float low, float high, F* codes) {
  const F inverse = inverses(s);
  F error{};
  for (int k = 0; k < n; ++k) {
    codes[k] = nearest_between((x[k] + m) * inverse, low, high);
    const F rest = s * codes[k] - m - x[k];
    error += u[k] * rest * rest;
  }
  return error;
}

// The best scale for codes; 0 if they are all 0.
template <class F>
static inline F best_scale(int n, const F* x, const F* u, const F* codes) {
  F xq{}, qq{};
  for (int k = 0; k < n; ++k) xq += u[k] * x[k] * codes[k], qq += u[k] * codes[k] * codes[k];
  return qq > 0.0f ? xq / qq : F{};
}

constexpr int kRounds = 3;  // of alternating: later ones change the error by less than 0.1 %

// s of x ~ s q. `low` is the longer side: the largest |x| gets about that code, and s its sign.
template <class F>
static inline F fit_scale(int n, const F* x, const F* u, float low, float high) {
  F extreme{}, size{};
  for (int k = 0; k < n; ++k) {
    const F one = x[k] < 0.0f ? -x[k] : x[k];
    extreme = one > size ? x[k] : extreme, size = one > size ? one : size;
  }
  F codes[32], best = extreme / low, least = round_codes(n, x, u, best, F{}, low, high, codes);
  const auto consider = [&](F s) {
    const F error = round_codes(n, x, u, s, F{}, low, high, codes);
    best = error < least ? s : best, least = error < least ? error : least;
  };
  for (int t = -9; t <= 9; ++t) {
    round_codes(n, x, u, extreme / (low + 0.1f * static_cast<float>(t)), F{}, low, high, codes);
    consider(best_scale(n, x, u, codes));
  }
  for (int round = 0; round < kRounds; ++round) {
    round_codes(n, x, u, best, F{}, low, high, codes);
    consider(best_scale(n, x, u, codes));
  }
  return size > 0.0f ? best : F{};
}

template <class F>
struct ScaleMin {
  F s, m;
};

// The best scale and minimum for codes; m is held at 0 where it would be negative, s at 0.
template <class F>
static inline ScaleMin<F> best_scale_min(int n, const F* x, const F* u, const F* codes) {
  F w{}, wx{}, q1{}, q2{}, xq{};
  for (int k = 0; k < n; ++k) {
    const F q = codes[k];
    w += u[k], wx += u[k] * x[k], q1 += u[k] * q, q2 += u[k] * q * q, xq += u[k] * x[k] * q;
  }
  const F determinant = w * q2 - q1 * q1, zero{};
  const F s = (w * xq - wx * q1) / determinant, m = (q1 * xq - q2 * wx) / determinant;
  const F alone = (q2 > 0.0f) & (xq > 0.0f) ? xq / q2 : zero;
  const auto both = (determinant > 0.0f) & (m >= 0.0f);
  return {both ? (s > 0.0f ? s : zero) : alone, both ? m : zero};
}

// s and m of x ~ s q - m.
template <class F>
static inline ScaleMin<F> fit_scale_min(int n, const F* x, const F* u, float high) {
  F low{}, top = x[0];
  for (int k = 0; k < n; ++k) low = x[k] < low ? x[k] : low, top = x[k] > top ? x[k] : top;
  F codes[32];
  ScaleMin<F> best{(top - low) / high, -low};
  F least = round_codes(n, x, u, best.s, best.m, 0, high, codes);
  const auto consider = [&](const ScaleMin<F>& each) {
    const F error = round_codes(n, x, u, each.s, each.m, 0, high, codes);
    const auto better = error < least;
    best = {better ? each.s : best.s, better ? each.m : best.m}, least = better ? error : least;
  };
  const float step = high < 8 ? 0.05f : 0.1f;  // with few codes each place of the scale counts
  for (float t = -1; t <= 1.0f; t += step) {
    round_codes(n, x, u, (top - low) / (high + t), -low, 0, high, codes);
    consider(best_scale_min(n, x, u, codes));
  }
  for (int round = 0; round < kRounds; ++round) {
    round_codes(n, x, u, best.s, best.m, 0, high, codes);
    consider(best_scale_min(n, x, u, codes));
  }
  return {top <= low ? F{} : best.s, top <= low ? -low : best.m};
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

// The weights of a block and what their errors weigh, eight groups side by side, and what becomes of them.
template <int n>
struct Groups {
  struct Set {
    Lanes x[n], u[n], codes[n], s, m;
  } sets[256 / n / kLanes];
};
template <int n>
static inline void put_side_by_side(const float* x, const float* importance, Groups<n>& block) {
  float u[256];
  error_weights(256, x, importance, u);
  for (int g = 0; g < 256 / n; ++g)
    for (int k = 0; k < n; ++k) {
      auto& set = block.sets[g / kLanes];
      set.x[k][g % kLanes] = x[g * n + k], set.u[k][g % kLanes] = u[g * n + k];
    }
}
template <int n>
static inline void put_in_order(const Groups<n>& block, Super<n>& out) {
  for (int g = 0; g < 256 / n; ++g) {
    const auto& set = block.sets[g / kLanes];
    out.scales[g] = static_cast<int>(set.s[g % kLanes]), out.mins[g] = static_cast<int>(set.m[g % kLanes]);
    for (int k = 0; k < n; ++k) out.codes[g * n + k] = static_cast<int8_t>(set.codes[k][g % kLanes]);
  }
}
static inline float sum(Lanes values) {
  float all = 0;
  for (int i = 0; i < kLanes; ++i) all += values[i];
  return all;
}

// Symmetric: scales in [scale_low, scale_high] where the first is the longer side, codes in [low, high].
template <int n>
static inline void super_scales(const float* x, const float* importance, float scale_low, float scale_high, float low,
                                float high, Super<n>& out) {
  Groups<n> block;
  put_side_by_side(x, importance, block);
  float extreme = 0;
  for (auto& set : block.sets) {
    set.s = fit_scale(n, set.x, set.u, low, high), set.m = Lanes{};
    for (int i = 0; i < kLanes; ++i)
      if (magnitude(set.s[i]) > magnitude(extreme)) extreme = set.s[i];
  }
  float d = extreme / scale_low;
  for (auto& set : block.sets) set.s = nearest_between(set.s * inverse_of(d), scale_low, scale_high);
  for (int round = 0;; ++round) {
    d = to_f32(out.d = to_f16(d));
    float xq = 0, qq = 0;  // of d, all groups together
    for (auto& set : block.sets) {
      const auto error_by = [&](Lanes s) { return round_codes(n, set.x, set.u, d * s, Lanes{}, low, high, set.codes); };
      Lanes best = set.s, least = error_by(best), products{}, squares{};
      for (int step = -1; step <= 1; step += 2) {
        const Lanes each = set.s + static_cast<float>(step), error = error_by(each);
        const auto better = (each >= scale_low) & (each <= scale_high) & (error < least);
        best = better ? each : best, least = better ? error : least;
      }
      error_by(set.s = best);
      for (int k = 0; k < n; ++k) {
        const Lanes q = best * set.codes[k];
        products += set.u[k] * set.x[k] * q, squares += set.u[k] * q * q;
      }
      xq += sum(products), qq += sum(squares);
    }
    if (round == kRounds || !(qq > 0)) return put_in_order(block, out);
    d = xq / qq;
  }
}

// With minimums: scales and mins in [0, most], codes in [0, high].
template <int n>
static inline void super_scales_mins(const float* x, const float* importance, float most, float high, Super<n>& out) {
  Groups<n> block;
  put_side_by_side(x, importance, block);
  float top_s = 0, top_m = 0;
  for (auto& set : block.sets) {
    const ScaleMin<Lanes> fit = fit_scale_min(n, set.x, set.u, high);
    set.s = fit.s, set.m = fit.m;
    for (int i = 0; i < kLanes; ++i)
      top_s = fit.s[i] > top_s ? fit.s[i] : top_s, top_m = fit.m[i] > top_m ? fit.m[i] : top_m;
  }
  float d = top_s / most, dmin = top_m / most;
  for (auto& set : block.sets) {
    set.s = d > 0 ? nearest_between(set.s / d, 0, most) : Lanes{};
    set.m = dmin > 0 ? nearest_between(set.m / dmin, 0, most) : Lanes{};
  }
  for (int round = 0;; ++round) {
    d = to_f32(out.d = to_f16(d)), dmin = to_f32(out.dmin = to_f16(dmin));
    float aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;  // w ~ d a - dmin b with a = s_g q, b = m_g, all groups together
    for (auto& set : block.sets) {
      const auto error_by = [&](Lanes s, Lanes m) {
        return round_codes(n, set.x, set.u, d * s, dmin * m, 0, high, set.codes);
      };
      Lanes best_s = set.s, best_m = set.m, least = Lanes{} - 1.0f;
      for (int s_step = -1; s_step <= 1; ++s_step)
        for (int m_step = -1; m_step <= 1; ++m_step) {
          const Lanes s = set.s + static_cast<float>(s_step), m = set.m + static_cast<float>(m_step);
          const Lanes error = error_by(s, m);
          const auto inside = (s >= 0.0f) & (s <= most) & (m >= 0.0f) & (m <= most);
          const auto better = inside & ((least < 0.0f) | (error < least));
          best_s = better ? s : best_s, best_m = better ? m : best_m, least = better ? error : least;
        }
      error_by(set.s = best_s, set.m = best_m);
      Lanes of_aa{}, of_ab{}, of_bb{}, of_ax{}, of_bx{};
      for (int k = 0; k < n; ++k) {
        const Lanes a = best_s * set.codes[k], u = set.u[k], w = set.x[k];
        of_aa += u * a * a, of_ab += u * a * best_m, of_bb += u * best_m * best_m, of_ax += u * a * w,
            of_bx += u * best_m * w;
      }
      aa += sum(of_aa), ab += sum(of_ab), bb += sum(of_bb), ax += sum(of_ax), bx += sum(of_bx);
    }
    const float determinant = aa * bb - ab * ab;
    if (round == kRounds || !(determinant > 0)) return put_in_order(block, out);
    const float better = (ax * bb - ab * bx) / determinant, better_min = (ab * ax - aa * bx) / determinant;
    if (better <= 0 || better_min < 0) return put_in_order(block, out);
    d = better, dmin = better_min;
  }
}

}  // namespace qeng::blocks
