// How a linear layer rounds its input where its weight is of a block format (RowLinear in kernels/ops.h).
//
// Each group of consecutive elements of a row of x becomes int8 codes q and one f32 scale d. x is counted in 256ths of
// max|x| / 127 first:
//   t_i = 32512 x_i / max|x| to the nearest integer, halves to even
//   q_i = t_i c / 32768 to the nearest integer, halves up
//   d   = max|x| / 32512 * sum_i t_i q_i / sum_i q_i^2
// d makes the squared error of d q least. c is the one of 128, 127, 126 and 125 that leaves the least of it: steps of
// neighbouring sizes round differently, and the best of four is taken. llama.cpp takes c = 128 and d = max|x| / 127,
// which leaves a fifth more of the squared error in groups of 32 elements, 4 % in those of 256. Everything but t and d
// is an integer: the same on every backend, in every order.
//
// Groups have 256 elements where the weight's blocks have, or where these have no scale (one_bit, ternary, whose last
// group is what is left of the row); else 32, and then d is rounded to the 11 bits that an f16 holds.
//
// A group whose max|x| is below 2^-112 counts as zeros: 32512 / max|x| might overflow. One with a NaN or an infinity
// has d = NaN and all q = 0.
//
// The product of a row with weights  w_k = d_b s_g (c_k - o) - m_b u_g  (codes c, integers s, o, u) is then, over
// groups a of x, each in a block b,
//   y = sum_a (d_b d_a) A_a - (m_b d_a) B_a,   A_a = sum_g s_g sum_k (c_k - o) q_k,   B_a = sum_g u_g sum_k q_k
// where A and B are exact integers: backends may differ in the f32 sum over a alone.
#pragma once
#include "kernels/math/bf16.h"

namespace qeng::blocks {

constexpr int kSmallGroup = 32, kLargeGroup = 256;  // elements that share a scale
constexpr int kSignGroup = kLargeGroup;             // where the weight is one_bit or ternary
// Where the weight is of another format, with so many elements in a block.
constexpr int group_elements(int block) { return block < kLargeGroup ? kSmallGroup : kLargeGroup; }

// step: max|x| / 127. inverse: of a 256th of that. Both are 0 where all codes are; NaN and 0 where x has a NaN or an
// infinity. largest: max|x| of the group, NaN if one of them is.
struct ActivationGroup {
  float step, inverse;
};
QENG_HD ActivationGroup activation_group(float largest) {
  const uint32_t bits = bits_of(largest);
  if (bits >= 0x7f800000u) return {float_of(0x7fc00000u), 0.0f};
  if (bits < 0x07800000u) return {0.0f, 0.0f};  // 2^-112
  return {largest / 127.0f, 127.0f / largest * 256.0f};
}

QENG_HD int activation_count(float x, float inverse) {  // t
  if (inverse == 0.0f) return 0;
#ifdef __CUDA_ARCH__
  return __float2int_rn(x * inverse);
#else
  return static_cast<int>(__builtin_lrintf(x * inverse));
#endif
}

constexpr int kSteps = 4;  // that are tried: c = 128 - step
QENG_HD int activation_code(int count, int step) { return (count * (128 - step) + (1 << 14)) >> 15; }

// Of each step, sums over the elements of a group, 256 at most, each of 127 * 32512 at most: below 2^31.
struct ActivationFit {
  int squares[kSteps] = {}, products[kSteps] = {};  // q^2, t q
};
QENG_HD void add_to_fit(ActivationFit& fit, int count) {
  for (int i = 0; i < kSteps; ++i) {
    const int code = activation_code(count, i);
    fit.squares[i] += code * code;
    fit.products[i] += code * count;
  }
}

// The step whose codes explain the most of x, the first of equals, with its sums.
struct ActivationStep {
  int index, squares, products;
};
QENG_HD ActivationStep best_step(const ActivationFit& fit) {
  ActivationStep best = {0, fit.squares[0], fit.products[0]};
  for (int i = 1; i < kSteps; ++i) {  // products^2 / squares, without dividing; no branch, which chance would decide
    const float product = static_cast<float>(fit.products[i]), most = static_cast<float>(best.products);
    const bool better =
        product * product * static_cast<float>(best.squares) > most * most * static_cast<float>(fit.squares[i]);
    best.index = better ? i : best.index;
    best.squares = better ? fit.squares[i] : best.squares;
    best.products = better ? fit.products[i] : best.products;
  }
  return best;
}
// elements: of a whole group, kSmallGroup or kLargeGroup.
QENG_HD float activation_scale(const ActivationGroup& group, const ActivationStep& step, int elements) {
  if (step.squares == 0) return group.step;
  const float products = static_cast<float>(step.products), squares = static_cast<float>(step.squares);
  uint32_t scale = bits_of(group.step * (products / (256.0f * squares)));
  if (elements == kSmallGroup) scale = (scale + 0xfffu + (scale >> 13 & 1u)) & ~0x1fffu;
  return float_of(scale);
}

}  // namespace qeng::blocks
