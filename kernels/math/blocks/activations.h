// How a linear layer rounds its input where its weight is of a block format (RowLinear in kernels/ops.h).
// Each group of consecutive elements of a row of x, as many as a block of the weight holds, becomes int8 codes q and
// one f32 scale d; for one_bit and ternary weights, whose blocks have no scale, 256 elements, or what is left of the row:
//   d = max|x| / 127,   q_i = x_i * (127 / max|x|) to the nearest integer, halves to even
// A group whose max|x| is below 2^-120 counts as zeros: 127 / max|x| might overflow. One with a NaN or an infinity has
// d = NaN and all q = 0.
// The product of a row with weights  w_k = d_b s_g (c_k - o) - m_b u_g  (codes c, integers s, o, u) is then, over
// blocks b,
//   y = sum_b (d_b d) A_b - (m_b d) B_b,   A_b = sum_g s_g sum_k (c_k - o) q_k,   B_b = sum_g u_g sum_k q_k
// where A and B are exact integers: backends may differ in the f32 sum over b alone.
#pragma once
#include "kernels/math/bf16.h"

namespace qeng::blocks {

constexpr int kSignGroup = 256;  // elements that share a scale where the weight is one_bit or ternary

// What a group's codes and scale are made of. largest: max|x| of the group, NaN if one of them is.
struct ActivationGroup {
  float scale, inverse;  // codes are x * inverse, rounded; inverse is 0 where all codes are
};
QENG_HD ActivationGroup activation_group(float largest) {
  const uint32_t bits = bits_of(largest);
  if (bits >= 0x7f800000u) return {float_of(0x7fc00000u), 0.0f};
  if (bits < 0x03800000u) return {0.0f, 0.0f};  // 2^-120
  return {largest / 127.0f, 127.0f / largest};
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
