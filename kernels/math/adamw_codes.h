// AdamW's moments in 8 bits. Of each 256 elements of a parameter in order, the last block perhaps fewer, the largest |m|
// and the largest v are kept in f32, and of an element the root of its share in 127 steps with its sign, and the fourth
// root in 255:
//   m = largest |m| * t |t|  with t = (q - 128) / 127        v = largest v * t^4  with t = q / 255
// Roots, because moments of a block span many powers of ten and an update divides by the root of v. A v that is not 0
// never gets the code of 0, which would make an update without bounds; at the least one it is 2e-10 of the largest.
#pragma once
#include "kernels/math/host_device.h"

namespace qeng {

constexpr int kMomentBlock = 256;

QENG_HD float decode_first_moment(int q, float largest) {
  const float t = static_cast<float>(q - 128) * (1.0f / 127.0f);
  return largest * (t * (t < 0 ? -t : t));
}
QENG_HD float decode_second_moment(int q, float largest) {
  const float t = static_cast<float>(q) * (1.0f / 255.0f), square = t * t;
  return largest * (square * square);
}

// inverse: 1 / the largest of the block, 0 where that is 0.
QENG_HD int encode_first_moment(float m, float inverse) {
  const int steps = static_cast<int>(127.0f * __builtin_sqrtf((m < 0 ? -m : m) * inverse) + 0.5f);
  return 128 + (m < 0 ? -1 : 1) * (steps < 127 ? steps : 127);
}
QENG_HD int encode_second_moment(float v, float inverse) {
  const int steps = static_cast<int>(255.0f * __builtin_sqrtf(__builtin_sqrtf(v * inverse)) + 0.5f);
  return steps > 255 ? 255 : steps > 0 ? steps : v > 0 ? 1 : 0;
}
// Of the largest, which may be a subnormal number.
QENG_HD float inverse_of_largest(float largest) {
  const float inverse = 1.0f / largest;
  return inverse < 3.0e38f ? inverse : largest > 0 ? 3.0e38f : 0.0f;
}

}  // namespace qeng
