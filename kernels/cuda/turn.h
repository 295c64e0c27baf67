// A pair of elements turned by an angle, rounded as written here wherever it is inlined: rope.cu and linear/row_end.h.
#pragma once
#include "kernels/cuda/cuda.h"
#include "kernels/math/sincos.h"

namespace qeng {

__device__ inline float turned_low(float low, float high, float c, float s) {
  return __fmaf_rn(low, c, -__fmul_rn(high, s));
}
__device__ inline float turned_high(float low, float high, float c, float s) {
  return __fmaf_rn(low, s, __fmul_rn(high, c));
}

}  // namespace qeng
