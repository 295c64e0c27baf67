// Codes of keys and values in a paged cache: a vector x of a head is scale * level(code) in each dimension. Levels are
// the best ones of a coordinate of a random vector of length sqrt(dim) (TurboQuant's first stage: Zandieh et al. 2025,
// arXiv 2504.19874), and the scale gives back the length of x. Whoever stores x turns it first, so that it looks random.
//
// A tile holds 16 slots of one head: for each run of 32 dimensions 16 lanes of 32 codes, and behind them the 16 scales
// in f16. A lane is a string of bits, code i from bit i * bits on, cut in words; word w of lane l is word 16 w + l.
//   keys:   lane = slot, code i = dimension i of the run       so 16 lanes of a code are 16 keys in one dimension,
//   values: lane l, code 16 h + slot = dimension 16 h + l      or 16 dimensions of one value
// The first `wide` dimensions have one bit more than the others, and levels of their own.
#pragma once
#include "kernels/math/bf16.h"
#include "kernels/math/host_device.h"

namespace qeng::kv_codes {

constexpr int kLanes = 16, kRun = 32;
constexpr int kMostBits = 4;  // the levels of a width fit one register of 16 lanes

struct Shape {
  int dim = 0, bits = 0, wide = 0;  // dim and wide: multiples of kRun
};
QENG_HD int bits_of(const Shape& shape, int run) { return shape.bits + (run * kRun < shape.wide); }
// Words of a tile before those of a run.
QENG_HD int words_before(const Shape& shape, int run) {
  const int wide = shape.wide / kRun;
  return kLanes * (run * shape.bits + (run < wide ? run : wide));
}
QENG_HD int tile_words(const Shape& shape) { return words_before(shape, shape.dim / kRun); }
QENG_HD int tile_bytes(const Shape& shape) { return 4 * tile_words(shape) + 2 * kLanes; }
// Levels lie behind each other: 2^bits of the narrow width, then, where there are wide dimensions, twice as many.
QENG_HD int levels_of(const Shape& shape) { return (shape.wide ? 3 : 1) << shape.bits; }

// Where a code stands: lane and position, from 0 to 31, of its run.
struct Place {
  int lane, position;
};
QENG_HD Place key_place(int slot, int dimension) { return {slot, dimension % kRun}; }
QENG_HD Place value_place(int slot, int dimension) {
  return {dimension % kLanes, dimension % kRun / kLanes * kLanes + slot};
}

// run: the words of a run.
QENG_HD unsigned read_code(const unsigned* run, Place place, int bits) {
  const int first = place.position * bits, word = first / 32, shift = first % 32;
  unsigned code = run[kLanes * word + place.lane] >> shift;
  if (shift + bits > 32) code |= run[kLanes * (word + 1) + place.lane] << (32 - shift);
  return code & ((1u << bits) - 1);
}
QENG_HD void write_code(unsigned* run, Place place, int bits, unsigned code) {
  const int first = place.position * bits, word = first / 32, shift = first % 32;
  const unsigned mask = (1u << bits) - 1;
  unsigned& low = run[kLanes * word + place.lane];
  low = (low & ~(mask << shift)) | code << shift;
  if (shift + bits <= 32) return;
  unsigned& high = run[kLanes * (word + 1) + place.lane];
  high = (high & ~(mask >> (32 - shift))) | code >> (32 - shift);
}

// The code of y, where x is y * |x| / sqrt(dim): of the nearest of ascending levels, half way of the lower one.
QENG_HD unsigned nearest(float y, const float* levels, int count) {
  unsigned code = 0;
  for (int i = 0; i + 1 < count; ++i) code += y > 0.5f * (levels[i] + levels[i + 1]);
  return code;
}

}  // namespace qeng::kv_codes
