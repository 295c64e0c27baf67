// The functions that a Pointwise program (kernels/pointwise.h) is made of.
#pragma once
#include <cstdint>

namespace qeng {

// Each function, and how many nodes it takes. input: element of the view `a`; constant: `value`. Comparisons give 1 or
// 0, where(a, b, c) is b where a is not 0, else c. min and max are NaN where an operand is. What begins with row_ is of
// a whole row (all columns) and the same in each of its elements.
// clang-format off
#define QENG_POINTWISE(F) \
  F(input, 0) F(constant, 0) \
  F(neg, 1) F(abs, 1) F(sign, 1) F(exp, 1) F(expm1, 1) F(log, 1) F(log1p, 1) F(sqrt, 1) F(rsqrt, 1) F(sin, 1) F(cos, 1) \
  F(tanh, 1) F(erf, 1) F(sigmoid, 1) \
  F(add, 2) F(sub, 2) F(mul, 2) F(div, 2) F(pow, 2) F(min, 2) F(max, 2) F(less, 2) F(less_equal, 2) F(equal, 2) \
  F(not_equal, 2) F(where, 3) \
  F(row_sum, 1) F(row_max, 1) F(row_min, 1)
// clang-format on

enum class Fn : uint8_t {
#define QENG_ENUMERATOR(name, operands) name,
  QENG_POINTWISE(QENG_ENUMERATOR)
#undef QENG_ENUMERATOR
};

// Register `to` = fn of registers.
struct PointwiseStep {
  Fn fn;
  uint8_t to, a, b, c;
  float value;
};

}  // namespace qeng
