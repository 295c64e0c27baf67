// How pulses of a gradient move the state of one-bit weights (PulseGrad and Inertia in kernels/ops.h): the functions
// that every backend shares, and the test's reference does not. Sums and products are rounded one by one, never fused.
#pragma once
#include <cstdint>

#include "kernels/math/blocks/block.h"
#include "kernels/math/host_device.h"

namespace qeng {

// ---- ternary words: a pair of bits for each of 32 weights, 01 is +1, 10 is -1

// Bit k to bit 2 k, and back.
QENG_HD uint64_t spread_pairs(uint32_t bits) {
  uint64_t x = bits;
  x = (x | x << 16) & 0x0000ffff0000ffffull;
  x = (x | x << 8) & 0x00ff00ff00ff00ffull;
  x = (x | x << 4) & 0x0f0f0f0f0f0f0f0full;
  x = (x | x << 2) & 0x3333333333333333ull;
  return (x | x << 1) & 0x5555555555555555ull;
}
QENG_HD uint32_t gather_pairs(uint64_t x) {
  x &= 0x5555555555555555ull;
  x = (x | x >> 1) & 0x3333333333333333ull;
  x = (x | x >> 2) & 0x0f0f0f0f0f0f0f0full;
  x = (x | x >> 4) & 0x00ff00ff00ff00ffull;
  x = (x | x >> 8) & 0x0000ffff0000ffffull;
  return static_cast<uint32_t>(x | x >> 16);
}
QENG_HD uint64_t ternary_word(uint32_t plus, uint32_t minus) { return spread_pairs(plus) | spread_pairs(minus) << 1; }

// ---- a gradient's pulses

// What |g| has to exceed for a pulse, and the pulses' size in steps of |g|, of a row with that mean square.
QENG_HD float rms_of(double mean_square) {
#ifdef __CUDA_ARCH__
  return static_cast<float>(sqrt(mean_square));
#else
  return static_cast<float>(__builtin_sqrt(mean_square));
#endif
}
QENG_HD float pulse_limit(float z, double mean_square) { return z * rms_of(mean_square); }
// The gradient of a weight, moved by friction times the row's rms the way of those that want the sign it has.
QENG_HD float with_friction(float g, float friction, float rms, bool weight) {
  return blocks::times_plus(weight ? -friction : friction, rms, g);
}
QENG_HD float pulse_factor(float k, double mean_square) {
  const float rms = rms_of(mean_square);
  return rms > 0 ? k / rms : 0.0f;
}
// The pulse -sign(g) n of n = floor(factor |g| + u) steps, at most 127; none where that is not a number.
QENG_HD int pulse_steps(float g, float factor, float u) {
  const float size = blocks::times_plus(g < 0 ? -g : g, factor, u);
  if (!(size >= 1.0f)) return 0;
  const int steps = size >= 127.0f ? 127 : static_cast<int>(size);
  return g > 0 ? -steps : steps;
}

// ---- counters

struct PulseMasks {
  uint32_t agree, contrary;
};
// Pulses that want the sign a weight has, and the other one. A pair 11 is no pulse.
QENG_HD PulseMasks pulse_masks(uint64_t pulses, uint32_t weights) {
  const uint32_t up = gather_pairs(pulses), down = gather_pairs(pulses >> 1), plus = up & ~down, minus = down & ~up;
  return {(plus & weights) | (minus & ~weights), (plus & ~weights) | (minus & weights)};
}

// One step of 32 counters of 0 .. 2^planes - 1, bit k of health[p] being bit p of counter k: agreement counts up to the
// top, a contrary pulse counts down; at 0 it flips the weight and refills the counter. Returns the flips.
template <int planes>
QENG_HD uint32_t step_counters(uint32_t (&health)[planes], PulseMasks pulses) {
  uint32_t empty = ~0u, full = ~0u;
  for (int p = 0; p < planes; ++p) empty &= ~health[p], full &= health[p];
  const uint32_t flips = pulses.contrary & empty;
  uint32_t up = pulses.agree & ~full, down = pulses.contrary & ~empty;
  for (int p = 0; p < planes; ++p) {
    const uint32_t was = health[p];
    health[p] = (was ^ up ^ down) | flips;
    up &= was, down &= ~was;
  }
  return flips;
}

// The same for a counter of 0 .. 255 and pulses of several steps. Returns whether the weight flips.
QENG_HD bool step_counter(uint8_t& health, int pulse, bool weight) {
  const int steps = pulse < 0 ? -pulse : pulse;
  if (pulse == 0) return false;
  if ((pulse > 0) == weight) {
    health = static_cast<uint8_t>(health + steps > 255 ? 255 : health + steps);
    return false;
  }
  const bool flips = steps > health;
  health = static_cast<uint8_t>(flips ? 255 : health - steps);
  return flips;
}

// Which of 32 counters may stand at a level, by a plane of theirs and that bit of the level.
QENG_HD uint32_t plane_at_level(uint32_t plane, bool bit) { return bit ? plane : ~plane; }

// Of what fits an int.
QENG_HD int floor_of(float x) {
  const int whole = static_cast<int>(x);
  return x < static_cast<float>(whole) ? whole - 1 : whole;
}

// Bop (Helwegen et al. 2019, arXiv 1906.02107) with its momentum in int8, in steps of kBopStep of the gradient's rms; a
// pulse is in sixteenths of it. The momentum points where descent wants the weight, is rounded by u, and stays when the
// weight flips, which it does when the momentum is against it by more than the threshold.
constexpr float kBopStep = 0.8f / 127;
QENG_HD bool step_momentum(int8_t& momentum, int pulse, bool weight, float gamma, float threshold, float u) {
  const float before = (1.0f - gamma) * static_cast<float>(momentum);
  const float after = blocks::times_plus(gamma * (0.0625f / kBopStep), static_cast<float>(pulse), before) + u;
  const int code = floor_of(after);
  momentum = static_cast<int8_t>(code < -127 ? -127 : code > 127 ? 127 : code);
  const float along = static_cast<float>(weight ? momentum : -momentum) * kBopStep;
  return along < -threshold;
}

// x rounded to one of the multiples of 1 / levels beside it, up with the probability of its distance from the lower.
QENG_HD float to_grid(float x, float levels, float u) {
  return static_cast<float>(floor_of(blocks::times_plus(x, levels, u))) / levels;
}

}  // namespace qeng
