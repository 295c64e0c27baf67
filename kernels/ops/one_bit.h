// Operations: one-bit training. Conventions: kernels/ops.h.
#pragma once
#include "kernels/ops/access.h"

namespace qeng {

// The gradient of rows first .. first + n of a weight, in directions and steps alone. G = dy^T x is computed in tiles
// of rows that are dropped again, so that no more of it than 4 MB (a GPU: 32 MB) ever exists. With
// r[i] = sqrt(mean_j G[i, j]^2) and H = G - hyper[1] r[i] W,
// which takes some of the evidence against a weight's sign away and adds as much for it:
//   ternary:  pulses[i, j] = -sign(H[i, j]) where |H[i, j]| > hyper[0] r[i], else 0
//   u8:       pulses[i, j] = -sign(H[i, j]) floor(hyper[0] |H[i, j]| / r[i] + u), at most 127 in size, two's
//   complement;
//             u in [0, 1) is Philox's for element i * k + j (kernels/math/philox.h)
// A row whose sum of squares is not finite gives no pulses. A pulse is the way that descent wants the weight to go.
// hyper[1] is the reference value of a cumulative sum test (Page 1954, Continuous inspection schemes), in deviations of
// G: counters of pulses tell a drift of G's mean from noise the better, the nearer it is to half the drift that
// matters.
// dy: [rows, first + n or more] float   x: [rows, k] of dy's dtype   weights: [n, k] one_bit, W = -1 or +1
// pulses: [n, k] ternary or u8   hyper: [4] f32 = {strength, friction, gamma, threshold}, read when the op runs
// rng: [2] i64 = {seed, step}, likewise. Rules and what they did: the one-bit recipes' README.
struct PulseGrad {
  static constexpr const char* name = "pulse_grad";
  View dy, x, weights, pulses, hyper, rng;
  int64_t first = 0;
  uint32_t subsequence = 0;  // tells the weights of a model apart
  template <class F>
  void views(F f) {
    f("dy", dy, Access::read), f("x", x, Access::read), f("weights", weights, Access::read),
        f("pulses", pulses, Access::write);
    f("hyper", hyper, Access::read), f("rng", rng, Access::read);
  }
};

// Pulses move the state of one-bit weights, which flip when it is against them (kernels/math/inertia.h). By its dtype:
//   one_bit [planes, n, k]: counters of 0 .. 2^planes - 1 in bit planes, +1 a set bit, planes 1 to 4; ternary pulses.
//             A pulse along the weight counts up to the top, one against it counts down; at 0 it flips the weight and
//             refills
//   u8 [n, k]: counters of 0 .. 255 likewise, of u8 pulses of several steps; or with `bop` int8 momenta, in steps of
//             0.8 / 127 of the gradient's rms, of u8 pulses in sixteenths of it: m = (1 - g) m + g p, rounded up with
//             the probability of what is cut off (Philox, as in PulseGrad), and the weight flips where m * weight < -t;
//             g = hyper[2], t = hyper[3]
// pulses: [n, k]   weights: [n, k] one_bit   counts: [2] i64 += {pulses that are not 0, flips}   hyper: PulseGrad's
struct Inertia {
  static constexpr const char* name = "inertia";
  View pulses, weights, state, counts, hyper, rng;
  bool bop = false;
  uint32_t subsequence = 0;
  int64_t flops() const { return (bop ? 5 : 1) * weights.elements(); }
  template <class F>
  void views(F f) {
    f("pulses", pulses, Access::read), f("weights", weights, Access::update), f("state", state, Access::update);
    f("counts", counts, Access::update), f("hyper", hyper, Access::read), f("rng", rng, Access::read);
  }
};

// counts[level] += how many counters stand there: popcounts of the state that Inertia has
// state: one_bit [planes, n, k] of 1 to 4 planes, levels 0 .. 2^planes - 1; or u8 [n, k], where 16 levels are one:
// counts[0] is of 0 .. 15   counts: [16] i64
struct CountLevels {
  static constexpr const char* name = "count_levels";
  View state, counts;
  int64_t flops() const { return state.elements(); }
  template <class F>
  void views(F f) {
    f("state", state, Access::read), f("counts", counts, Access::update);
  }
};

// y = the sign of x, +1 for zero     x: [..., k] f32   y: that shape, one_bit
struct PackSigns {
  static constexpr const char* name = "pack_signs";
  View x, y;
  int64_t flops() const { return x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("y", y, Access::write);
  }
};

// y = x clipped to [-1, 1]; with levels > 0 rounded to a multiple of 1 / levels, up with the probability of its
// distance from the lower one (Philox, as in PulseGrad): the weights of training without a latent copy (Zhao et al.
// 2024, arXiv 2412.04787).
// x, y: f32, in place allowed   levels: at most 127
struct ClipToGrid {
  static constexpr const char* name = "clip_to_grid";
  View x, y, rng;
  int levels = 0;
  uint32_t subsequence = 0;
  int64_t flops() const { return (levels ? 4 : 2) * x.elements(); }
  template <class F>
  void views(F f) {
    f("x", x, Access::read), f("y", y, Access::write), f("rng", rng, Access::read);
  }
};

// clang-format off
#define QENG_ONE_BIT_OPERATIONS(OP) OP(PulseGrad) OP(Inertia) OP(CountLevels) OP(PackSigns) OP(ClipToGrid)
// clang-format on

}  // namespace qeng
