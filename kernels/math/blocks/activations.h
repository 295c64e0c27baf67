// How a linear layer rounds its input where its weight is of a block format (RowLinear in kernels/ops.h).
// Each group of consecutive elements of a row of x becomes int8 codes q and one scale d:
//   d = max|x| / 127,   q_i = x_i * (127 / max|x|) to the nearest integer, halves to even
// Groups have 256 elements where the weight's blocks have, or where these have no scale (one_bit, ternary, whose last group is
// what is left of the row); else 32, and then d is rounded to the 11 bits that an f16 holds. That is how llama.cpp rounds x, so
// that a file gives the same numbers there and here.
// A group whose max|x| is below 2^-120 counts as zeros: 127 / max|x| might overflow. One with a NaN or an infinity has
// d = NaN and all q = 0.
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

// What a group's codes and scale are made of. largest: max|x| of the group, NaN if one of them is.
struct ActivationGroup {
  float scale, inverse;  // codes are x * inverse, rounded; inverse is 0 where all codes are
};
QENG_HD ActivationGroup activation_group(float largest, int elements) {
  const uint32_t bits = bits_of(largest);
  if (bits >= 0x7f800000u) return {float_of(0x7fc00000u), 0.0f};
  if (bits < 0x03800000u) return {0.0f, 0.0f};  // 2^-120
  uint32_t scale = bits_of(largest / 127.0f);
  if (elements == kSmallGroup) scale = (scale + 0xfffu + (scale >> 13 & 1u)) & ~0x1fffu;
  return {float_of(scale), 127.0f / largest};
}
QENG_HD int activation_code(float x, float inverse) {
  if (inverse == 0.0f) return 0;
#ifdef __CUDA_ARCH__
  return __float2int_rn(x * inverse);
#else
  return static_cast<int>(__builtin_lrintf(x * inverse));
#endif
}

}  // namespace qeng::blocks
