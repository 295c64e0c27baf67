// A lane's part of a block in a matrix-vector product: 32 codes, cut from the block's bytes with as few instructions as
// may be, and their products with rows of x.
//
// Codes of one and two bits stay where they are in their bytes, masked and not shifted, and products of those that are
// 2^n too large are divided at the end, which is exact. TQ2_0, whose integers are added over the whole block anyway,
// gives a lane eight bytes, all four pairs of bits of them.
#pragma once
#include <cstddef>

#include "kernels/cuda/linear/block_halves.h"
#include "kernels/cuda/ptx/ptx_int8.h"

namespace qeng {
namespace halves {

template <class Block>
constexpr bool kEightBytes = std::is_same_v<Block, TQ2_0>;
template <class Block>
constexpr bool kCrumbs = std::is_same_v<Block, Q2_0> || std::is_same_v<Block, PQ2_0>;
template <class Block>
constexpr bool kWantsSums = kOffset<Block> != 0 || kMinima<Block>;

// Whether all blocks that a lane takes lie as the first does: then only that is asked.
template <class Block>
constexpr bool kEvenParts = kEightBytes<Block> || kCrumbs<Block>;

// Codes of a part; and of its halves the integers that belong to their groups, where there are such.
struct Part {
  uint32_t words[8];
  int factor[2], minimum[2];
};
// odd: that of the block's address.
template <class Block>
__device__ inline void cut_part(const Block& b, int part, bool odd, Part& to) {
  if constexpr (kEvenParts<Block>) {
    uint32_t two[2];
    read_even<3>(b.qs + 8 * part, odd != (offsetof(Block, qs) % 4 == 2), two);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) to.words[2 * pair + i] = two[i] & 0x03030303u << (2 * pair);
  } else if constexpr (kDoubled<Block>) {
    const uint32_t bits = bits_of_part(b, part);
#pragma unroll
    for (int i = 0; i < 8; ++i) to.words[i] = (i < 4 ? bits : bits >> 4) & 0x01010101u << (i % 4);
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t words[4];
      raw_of(b, part, h, words);
#pragma unroll
      for (int i = 0; i < 4; ++i) to.words[4 * h + i] = words[i];
      const int group = first_of(b, part, h) / Block::kGroup;
      if constexpr (kFactors<Block>) to.factor[h] = group_factor(b, group);
      if constexpr (kFactors<Block> && kMinima<Block>) to.minimum[h] = group_minimum(b, group);
    }
  }
}

// What a part meets of a row of x: its codes in the order of Part::words, and sums over the part's halves (where only
// their total counts, over those of the part in natural order).
struct PartOfX {
  uint32_t words[8];
  int sums[2];
};
// codes, sums: of the block.
template <class Block>
__device__ inline void read_x(const Block& b, int part, const int8_t* codes, const int* sums, PartOfX& to) {
  if constexpr (kEightBytes<Block>) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const uint2 two = *reinterpret_cast<const uint2*>(codes + part / 4 * 128 + 32 * pair + part % 4 * 8);
      to.words[2 * pair] = two.x, to.words[2 * pair + 1] = two.y;
    }
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 four = *reinterpret_cast<const uint4*>(codes + first_of(b, part, h));
      const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) to.words[kCrumbs<Block> ? 2 * i + h : 4 * h + i] = words[i];
    }
  }
  if constexpr (kWantsSums<Block>) {
    if constexpr (kFactors<Block>) {
#pragma unroll
      for (int h = 0; h < 2; ++h) to.sums[h] = sums[first_of(b, part, h) / 16];
    } else {
      const int2 two = reinterpret_cast<const int2*>(sums)[part];
      to.sums[0] = two.x, to.sums[1] = two.y;
    }
  }
}

// Products of words [first, first + count), added; kUnsigned: of codes that may be above 127.
template <int first, int count, bool kUnsigned = false>
__device__ inline int dot_words(const uint32_t (&w)[8], const uint32_t (&x)[8], int sum) {
#pragma unroll
  for (int i = first; i < first + count; ++i) {
    const int codes_of_x = static_cast<int>(x[i]);
    sum = kUnsigned ? ptx::dp4a_unsigned(w[i], codes_of_x, sum) : __dp4a(static_cast<int>(w[i]), codes_of_x, sum);
  }
  return sum;
}
// The product of a part's codes, times their groups' factors, with x.
template <class Block>
__device__ inline int dot_part(const Part& w, const PartOfX& x) {
  if constexpr (kEvenParts<Block>) {  // from the highest pairs, 64 times too large, down
    int sum = dot_words<6, 2, true>(w.words, x.words, -64 * (x.sums[0] + x.sums[1]));
    sum = dot_words<4, 2>(w.words, x.words, sum >> 2);
    sum = dot_words<2, 2>(w.words, x.words, sum >> 2);
    return dot_words<0, 2>(w.words, x.words, sum >> 2);
  } else if constexpr (kDoubled<Block>) {  // the same, of bits i and i + 4
    int twice = 0;
#pragma unroll
    for (int i = 3; i > 0; --i) {
      twice = __dp4a(static_cast<int>(w.words[i]), static_cast<int>(x.words[i]), twice >> 1);
      twice = __dp4a(static_cast<int>(w.words[i + 4]), static_cast<int>(x.words[i + 4]), twice);
    }
    const int others = dot_words<4, 1>(w.words, x.words, dot_words<0, 1>(w.words, x.words, 0));
    return twice + 2 * others - (x.sums[0] + x.sums[1]);
  } else {
    constexpr int less = kOffset<Block>;
    if constexpr (!kFactors<Block>)
      return dot_words<0, 8>(w.words, x.words, less == 0 ? 0 : -less * (x.sums[0] + x.sums[1]));
    else
      return w.factor[0] * dot_words<0, 4>(w.words, x.words, less == 0 ? 0 : -less * x.sums[0]) +
             w.factor[1] * dot_words<4, 4>(w.words, x.words, less == 0 ? 0 : -less * x.sums[1]);
  }
}
// Where groups have minima: the sum of x, times them.
template <class Block>
__device__ inline int less_of(const Part& w, const PartOfX& x) {
  if constexpr (kFactors<Block>) return w.minimum[0] * x.sums[0] + w.minimum[1] * x.sums[1];
  return x.sums[0] + x.sums[1];
}

}  // namespace halves
}  // namespace qeng
