// A group of activations rounded to int8 (kernels/math/blocks/activations.h).
#pragma once
#include "kernels/cpu/isa/blocks/bytes.h"
#include "kernels/math/blocks/activations.h"

namespace qeng::isa::QENG_ISA {

// Codes of x[n], n a multiple of 32 and at most 256; returns their scale. elements: of a whole group.
inline float round_group(const float* x, int64_t n, int elements, int8_t* codes) {
  constexpr int kSteps = blocks::kSteps;
  static_assert(kSteps == 4, "two sums a step fill the eight rows of totals()");
  Largest largest;
  for (int64_t i = 0; i < n; i += 8) largest.add(x + i);
  const blocks::ActivationGroup group = blocks::activation_group(largest.value());
  if (group.inverse == 0.0f) {
    for (int64_t i = 0; i < n; i += 32) store_bytes(codes + i, splat_byte(0));
    return group.step;
  }
  Shorts counts[blocks::kLargeGroup / 16];
  Ints sums[2 * kSteps];
  for (Ints& each : sums) each = splat_int(0);
  for (int64_t i = 0; i < n / 16; ++i) {
    counts[i] = to_shorts(x + 16 * i, group.inverse);
    for (int s = 0; s < kSteps; ++s) {
      const Shorts code = multiply_round(counts[i], 128 - s);
      sums[s] = add(sums[s], multiply_pairs(code, code));
      sums[kSteps + s] = add(sums[kSteps + s], multiply_pairs(code, counts[i]));
    }
  }
  int32_t all[2 * kSteps];
  store_ints(all, totals(sums));
  blocks::ActivationFit fit;
  for (int s = 0; s < kSteps; ++s) fit.squares[s] = all[s], fit.products[s] = all[kSteps + s];
  const blocks::ActivationStep step = blocks::best_step(fit);
  for (int64_t i = 0; i < n / 32; ++i)
    store_bytes(codes + 32 * i, to_bytes(multiply_round(counts[2 * i], 128 - step.index),
                                         multiply_round(counts[2 * i + 1], 128 - step.index)));
  return blocks::activation_scale(group, step, elements);
}

}  // namespace qeng::isa::QENG_ISA
