// Sine and cosine of an f32 angle of any size below 2^31, to about one unit of the last place of 1: for rotary angles,
// which reach the longest position. CUDA's sinf turns to a table in local memory above 105615.
#pragma once
#include <cstdint>

#include "kernels/math/host_device.h"

namespace qeng {

// angle = turns * pi/2 + r, |r| <= pi/4: exact but for the rounding of r, for turns * kPiHalf differs from the angle by
// less than 1 in multiples of 2^-52. Then least-maximum polynomials in r (errors 4e-9 and 1e-10).
QENG_HD void sin_cos(float angle, float* sine, float* cosine) {
  constexpr double kPiHalf = 0x1.921fb54442d18p+0, kPiHalfRest = 0x1.1a62633145c07p-54;
  const double x = static_cast<double>(angle), turns = __builtin_rint(x * (1 / kPiHalf));
  const auto r = static_cast<float>(__builtin_fma(-turns, kPiHalfRest, __builtin_fma(-turns, kPiHalf, x)));
  const float z = r * r;
  float s = r + r * z * (-1.6666655242e-1f + z * (8.3321761340e-3f + z * -1.9516977773e-4f));
  float c = 1.0f - 0.5f * z + z * z * (4.1666645556e-2f + z * (-1.3887364184e-3f + z * 2.4438091714e-5f));
  const auto quarter = static_cast<int32_t>(turns);
  if (quarter & 1) {
    const float other = s;
    s = c, c = -other;
  }
  if (quarter & 2) s = -s, c = -c;
  *sine = s, *cosine = c;
}

}  // namespace qeng
