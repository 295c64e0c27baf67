// Groups of activations rounded to int8 (kernels/math/blocks/activations.h).
#pragma once
#include "kernels/cpu/isa/blocks/bytes.h"
#include "kernels/math/blocks/activations.h"

namespace qeng::isa::QENG_ISA {

// Eight groups together: sums over a group end in a lane each, and what is done once a group is done in lanes.
constexpr int kGroupsTogether = 8;

// Codes of `count` groups of x, at most eight, of n elements each: a multiple of 32, at most 256. elements: of a whole
// group. scales, sums of the codes: [count].
inline void round_groups(const float* x, int64_t n, int count, int elements, int8_t* codes, float* scales,
                         int32_t* sums) {
  constexpr int kSteps = blocks::kSteps, kGroups = kGroupsTogether, kPairs = blocks::kLargeGroup / 32;
  Ints rows[kGroups], squares[kSteps][kGroups], products[kSteps][kGroups];  // a group each, sums still in lanes
  for (int g = 0; g < kGroups; ++g) {
    rows[g] = splat_int(0);
    if (g < count)
      for (int64_t i = 0; i < n; i += 8) rows[g] = largest(rows[g], size_bits(x + g * n + i));
  }
  int32_t sizes[kGroups];
  store_ints(sizes, largest_of(rows));
  float steps[kGroups], inverses[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    const blocks::ActivationGroup group = blocks::activation_group(float_of(static_cast<uint32_t>(sizes[g])));
    steps[g] = group.step, inverses[g] = group.inverse;
  }

  Shorts counts[kGroups][2 * kPairs];
  for (int g = 0; g < kGroups; ++g) {
    Ints square[kSteps], product[kSteps];
    for (int s = 0; s < kSteps; ++s) square[s] = product[s] = splat_int(0);
    if (g < count && inverses[g] != 0.0f)
      for (int64_t i = 0; i < n / 16; ++i) {
        const Shorts t = counts[g][i] = to_shorts(x + g * n + 16 * i, inverses[g]);
        for (int s = 0; s < kSteps; ++s) {
          const Shorts code = multiply_round(t, 128 - s);
          square[s] = add_pairs(square[s], code, code);
          product[s] = add_pairs(product[s], code, t);
        }
      }
    for (int s = 0; s < kSteps; ++s) squares[s][g] = square[s], products[s][g] = product[s];
  }
  int32_t all_squares[kSteps][kGroups], all_products[kSteps][kGroups];
  for (int s = 0; s < kSteps; ++s) {
    store_ints(all_squares[s], totals(squares[s]));
    store_ints(all_products[s], totals(products[s]));
  }
  int32_t factors[kGroups];
  float all_scales[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    blocks::ActivationFit fit;
    for (int s = 0; s < kSteps; ++s) fit.squares[s] = all_squares[s][g], fit.products[s] = all_products[s][g];
    const blocks::ActivationStep step = blocks::best_step(fit);
    factors[g] = 128 - step.index;
    all_scales[g] = blocks::activation_scale({steps[g], inverses[g]}, step, elements);
  }

  for (int g = 0; g < kGroups; ++g) {
    rows[g] = splat_int(0);
    if (g >= count) continue;
    for (int64_t i = 0; i < n / 32; ++i) {
      const Bytes some = inverses[g] == 0.0f ? splat_byte(0)
                                             : to_bytes(multiply_round(counts[g][2 * i], factors[g]),
                                                        multiply_round(counts[g][2 * i + 1], factors[g]));
      store_bytes(codes + g * n + 32 * i, some);
      rows[g] = add(rows[g], sum_of_bytes(some));
    }
  }
  int32_t all_sums[kGroups];
  store_ints(all_sums, totals(rows));
  for (int g = 0; g < count; ++g) scales[g] = all_scales[g], sums[g] = all_sums[g];
}

}  // namespace qeng::isa::QENG_ISA
