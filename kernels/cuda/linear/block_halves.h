// How a lane reads its part of a block for an integer dot product: 32 codes in two halves of 16, each of which lies in
// one group and runs along k. Which 32 those are is for the format to say, so that a half is cut from bytes that lie
// together:
//   first_of(b, part, h)             the place in the block of half h of part `part`
//   codes_of(b, part, h, words)      its codes, four to a word, as signed bytes
//   factor_of(b), minimum_of(b)      the block's f32 scale, and for formats with group minima the one that is taken off
//   group_factor(b, g), group_minimum(b, g)   integers that belong to group g of 16 or 32
//   w[k] = factor group_factor code[k] - minimum group_minimum
// Blocks lie in shared memory, at multiples of kAlign bytes where their size is one.
#pragma once
#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/math/blocks/activations.h"
#include "kernels/math/blocks/with_block.h"

namespace qeng {
namespace halves {

using namespace blocks;

template <class Block>
constexpr int kAlign = sizeof(Block) % 16 == 0  ? 16
                       : sizeof(Block) % 4 == 0 ? 4
                       : sizeof(Block) % 2 == 0 ? 2
                                                : 1;

// Sixteen bytes of a block, aligned as far as the block is.
template <class Block>
__device__ inline void read_16(const Block&, const uint8_t* from, uint32_t (&words)[4]) {
  if constexpr (kAlign<Block> == 16) {
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
  } else if constexpr (kAlign<Block> == 4) {
    for (int i = 0; i < 4; ++i) words[i] = reinterpret_cast<const uint32_t*>(from)[i];
  } else if constexpr (kAlign<Block> == 2) {
    for (int i = 0; i < 4; ++i) {
      const uint16_t* pair = reinterpret_cast<const uint16_t*>(from) + 2 * i;
      words[i] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
    }
  } else {
    for (int i = 0; i < 4; ++i)
      words[i] = from[4 * i] | static_cast<uint32_t>(from[4 * i + 1]) << 8 |
                 static_cast<uint32_t>(from[4 * i + 2]) << 16 | static_cast<uint32_t>(from[4 * i + 3]) << 24;
  }
}
// Four, or two, bytes at an even address.
__device__ inline uint32_t read_4(const uint8_t* from) {
  const uint16_t* pair = reinterpret_cast<const uint16_t*>(from);
  return pair[0] | static_cast<uint32_t>(pair[1]) << 16;
}
__device__ inline uint32_t read_2(const uint8_t* from) { return *reinterpret_cast<const uint16_t*>(from); }

// Each byte, less than 128, minus `less`.
__device__ inline uint32_t take_off(uint32_t bytes, uint32_t less) {
  return ((bytes | 0x80808080u) - less * 0x01010101u) ^ 0x80808080u;
}
// Bits 0 to 3 as the low bits of four bytes; four pairs of bits of a byte as bytes.
__device__ inline uint32_t spread_bits(uint32_t four) { return (four & 15u) * 0x00204081u & 0x01010101u; }
__device__ inline uint32_t spread_pairs(uint32_t byte) {
  return (byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303u;
}
__device__ inline uint32_t nibbles(uint32_t bytes, int h) { return bytes >> (4 * h) & 0x0f0f0f0fu; }

// The values of a table of 16 signed bytes for the four nibbles that the bytes hold.
__device__ inline uint32_t look_up(uint64_t first_eight, uint64_t others, uint32_t bytes) {
  const uint32_t selector = (bytes & 7u) | (bytes >> 4 & 0x70u) | (bytes >> 8 & 0x700u) | (bytes >> 12 & 0x7000u);
  const uint32_t low =
      __byte_perm(static_cast<uint32_t>(first_eight), static_cast<uint32_t>(first_eight >> 32), selector);
  const uint32_t high = __byte_perm(static_cast<uint32_t>(others), static_cast<uint32_t>(others >> 32), selector);
  const uint32_t upper = (bytes >> 3 & 0x01010101u) * 255u;
  return (high & upper) | (low & ~upper);
}

// ---- where halves lie. Blocks of 32, and formats whose codes follow each other: in order.

template <class Block>
__device__ inline int first_of(const Block&, int part, int h) {
  return 32 * part + 16 * h;
}
template <class Block>
constexpr bool kPairedNibbles = std::is_same_v<Block, Q4_K> || std::is_same_v<Block, Q5_K>;
template <class Block>
constexpr bool kPairsOfBits =
    std::is_same_v<Block, Q2_K> || std::is_same_v<Block, Q3_K> || std::is_same_v<Block, TQ2_0>;

// ---- codes

// By the format's own words, a code at a time: for digits of base 3.
template <class Block>
__device__ inline void codes_of(const Block& b, int part, int h, uint32_t (&words)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e)
      words[i] |= (static_cast<uint32_t>(code(b, first_of(b, part, h) + 4 * i + e)) & 255u) << (8 * e);
  }
}

__device__ inline void codes_of(const Q8_0& b, int, int h, uint32_t (&words)[4]) {
  read_16(b, reinterpret_cast<const uint8_t*>(b.qs) + 16 * h, words);
}
// Blocks of 32 with nibbles: the first 16 are low, the others high.
template <class Block>
__device__ inline void nibbles_of(const Block& b, int h, uint32_t (&words)[4]) {
  read_16(b, b.qs, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = nibbles(words[i], h);
}
__device__ inline void codes_of(const Q4_0& b, int, int h, uint32_t (&words)[4]) {
  nibbles_of(b, h, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = take_off(words[i], 8);
}
__device__ inline void codes_of(const Q4_1& b, int, int h, uint32_t (&words)[4]) { nibbles_of(b, h, words); }
__device__ inline void codes_of(const Int4& b, int, int h, uint32_t (&words)[4]) { nibbles_of(b, h, words); }
template <class Block>
__device__ inline void five_bits_of(const Block& b, int h, uint32_t (&words)[4]) {
  nibbles_of(b, h, words);
  const uint32_t high = read_2(b.qh + 2 * h);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] |= spread_bits(high >> (4 * i)) << 4;
}
__device__ inline void codes_of(const Q5_0& b, int, int h, uint32_t (&words)[4]) {
  five_bits_of(b, h, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = take_off(words[i], 16);
}
__device__ inline void codes_of(const Q5_1& b, int, int h, uint32_t (&words)[4]) { five_bits_of(b, h, words); }
__device__ inline void codes_of(const IQ4_NL& b, int, int h, uint32_t (&words)[4]) {
  nibbles_of(b, h, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = look_up(kIq4First, kIq4Others, words[i]);
}
__device__ inline void codes_of(const MXFP4& b, int, int h, uint32_t (&words)[4]) {
  nibbles_of(b, h, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = look_up(kFp4First, kFp4Others, words[i]);
}

__device__ inline void codes_of(const IQ4_XS& b, int part, int h, uint32_t (&words)[4]) {
  read_16(b, b.qs + 16 * part, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = look_up(kIq4First, kIq4Others, nibbles(words[i], h));
}

// Entries of grids, eight codes of which each is 64 too large.
template <class Block>
requires(Block::kFromGrid) __device__ inline void codes_of(const Block& b, int part, int h, uint32_t (&words)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint64_t codes = eight(b, 4 * part + 2 * h + i);
    words[2 * i] = take_off(static_cast<uint32_t>(codes), 64);
    words[2 * i + 1] = take_off(static_cast<uint32_t>(codes >> 32), 64);
  }
}

// Q4_K, Q5_K: sixteen bytes are 16 codes of a group low, and 16 of the next group high.
__device__ inline int first_of(const Q4_K&, int part, int h) { return part / 2 * 64 + part % 2 * 16 + 32 * h; }
__device__ inline int first_of(const Q5_K&, int part, int h) { return part / 2 * 64 + part % 2 * 16 + 32 * h; }
__device__ inline void codes_of(const Q4_K& b, int part, int h, uint32_t (&words)[4]) {
  read_16(b, b.qs + 16 * part, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = nibbles(words[i], h);
}
__device__ inline void codes_of(const Q5_K& b, int part, int h, uint32_t (&words)[4]) {
  uint32_t high[4];
  read_16(b, b.qs + 16 * part, words);
  read_16(b, b.qh + part % 2 * 16, high);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = nibbles(words[i], h) | (high[i] >> (part / 2 * 2 + h) & 0x01010101u) << 4;
}

// Two bits 32 apart in a byte: halves are neighbouring pairs of bits of sixteen bytes.
template <class Block>
__device__ inline int first_of_pairs(int part, int h) {
  return part / 4 * 128 + (part / 2 % 2 * 2 + h) * 32 + part % 2 * 16;
}
template <class Block>
__device__ inline void pairs_of(const Block& b, int part, int h, uint32_t (&words)[4]) {
  read_16(b, b.qs + part / 4 * 32 + part % 2 * 16, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = words[i] >> ((part / 2 % 2 * 2 + h) * 2) & 0x03030303u;
}
__device__ inline int first_of(const Q2_K&, int part, int h) { return first_of_pairs<Q2_K>(part, h); }
__device__ inline int first_of(const Q3_K&, int part, int h) { return first_of_pairs<Q3_K>(part, h); }
__device__ inline int first_of(const TQ2_0&, int part, int h) { return first_of_pairs<TQ2_0>(part, h); }
__device__ inline void codes_of(const Q2_K& b, int part, int h, uint32_t (&words)[4]) { pairs_of(b, part, h, words); }
__device__ inline void codes_of(const TQ2_0& b, int part, int h, uint32_t (&words)[4]) {
  pairs_of(b, part, h, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = take_off(words[i], 1);
}
__device__ inline void codes_of(const Q3_K& b, int part, int h, uint32_t (&words)[4]) {
  uint32_t high[4];
  pairs_of(b, part, h, words);
  read_16(b, b.hmask + part % 2 * 16, high);
  const int bit = part / 4 * 4 + part / 2 % 2 * 2 + h;
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = take_off(words[i] | (high[i] >> bit & 0x01010101u) << 2, 4);
}

// Q6_K: sixteen bytes of ql are 16 codes of a group low, and 16 of the group 64 later high.
__device__ inline int first_of(const Q6_K&, int part, int h) { return part / 4 * 128 + part % 4 * 16 + 64 * h; }
__device__ inline void codes_of(const Q6_K& b, int part, int h, uint32_t (&words)[4]) {
  uint32_t high[4];
  read_16(b, b.ql + 16 * part, words);
  read_16(b, b.qh + part / 4 * 32 + part % 2 * 16, high);
  const int shift = (part / 2 % 2 + 2 * h) * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = take_off(nibbles(words[i], h) | (high[i] >> shift & 0x03030303u) << 4, 32);
}

// Two bits and one in order.
template <class Block>
__device__ inline void ordered_pairs(const Block& b, int part, int h, uint32_t (&words)[4]) {
  const uint32_t bytes = read_4(b.qs + 8 * part + 4 * h);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = take_off(spread_pairs(bytes >> (8 * i) & 255u), 1);
}
__device__ inline void codes_of(const Q2_0& b, int part, int h, uint32_t (&words)[4]) {
  ordered_pairs(b, part, h, words);
}
__device__ inline void codes_of(const PQ2_0& b, int part, int h, uint32_t (&words)[4]) {
  ordered_pairs(b, part, h, words);
}
__device__ inline void codes_of(const Q1_0& b, int part, int h, uint32_t (&words)[4]) {
  const uint32_t bits = read_2(b.qs + 4 * part + 2 * h);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = take_off(spread_bits(bits >> (4 * i)) << 1, 1);
}
// With a byte a code there is no borrow: ff - fe is 1, ff - 0 is -1, and one multiply-add makes four of them.
__device__ inline void codes_of(const OneBit& b, int, int h, uint32_t (&words)[4]) {
  const uint32_t bits = read_2(b.qs + 2 * h);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = 0xffffffffu - spread_bits(bits >> (4 * i)) * 0xfeu;
}
// Pairs become nibbles, which choose bytes of a table.
__device__ inline void codes_of(const Ternary& b, int, int h, uint32_t (&words)[4]) {
  constexpr uint32_t table = 0x00ff0100u;
  const uint32_t pairs = *reinterpret_cast<const uint32_t*>(b.qs + 4 * h);
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    uint32_t spread = pairs >> (8 * i) & 0xffffu;
    spread = (spread | spread << 8) & 0x00ff00ffu;
    spread = (spread | spread << 4) & 0x0f0f0f0fu;
    spread = (spread | spread << 2) & 0x33333333u;
    words[i] = __byte_perm(table, 0, spread & 0xffffu);
    words[i + 1] = __byte_perm(table, 0, spread >> 16);
  }
}

// ---- factors

// Elements of x that share a scale, over which integers are added (kernels/math/blocks/activations.h).
template <class Block>
constexpr bool kSigns = std::is_same_v<Block, OneBit> || std::is_same_v<Block, Ternary>;
template <class Block>
constexpr int kGroup = kSigns<Block> ? kSignGroup : group_elements(Block::kElements);

template <class Block>
constexpr bool kGridded = requires {
  Block::kFromGrid;
};
template <class Block>
constexpr bool kFactors =
    kPairedNibbles<Block> || kGridded<Block> || std::is_same_v<Block, IQ4_XS> || std::is_same_v<Block, Q2_K> ||
    std::is_same_v<Block, Q3_K> || std::is_same_v<Block, Q6_K>;  // of groups
template <class Block>
constexpr bool kMinima = Block::kHasMin || std::is_same_v<Block, Int4>;

template <class Block>
__device__ inline float factor_of(const Block& b) {
  if constexpr (kGridded<Block>)
    return unit(b);
  else if constexpr (kFactors<Block>)
    return to_f32(b.d);
  else
    return scale(b, 0);
}
template <class Block>
__device__ inline float minimum_of(const Block& b) {
  if constexpr (std::is_same_v<Block, Int4>)
    return __fmul_rn(scale(b, 0), static_cast<float>(b.zero));  // d (q - zero) as d q - (d zero): zero is any byte
  else if constexpr (kFactors<Block>)
    return to_f32(b.dmin);
  else
    return min(b, 0);
}
__device__ inline int group_factor(const Q4_K& b, int g) { return group_scale(b.scales, g); }
__device__ inline int group_factor(const Q5_K& b, int g) { return group_scale(b.scales, g); }
__device__ inline int group_factor(const Q2_K& b, int g) { return b.scales[g] & 15; }
__device__ inline int group_factor(const Q3_K& b, int g) { return group_code(b, g); }
__device__ inline int group_factor(const Q6_K& b, int g) { return b.scales[g]; }
__device__ inline int group_factor(const IQ4_XS& b, int g) { return group_code(b, g); }
template <class Block>
requires(Block::kFromGrid) __device__ inline int group_factor(const Block& b, int g) { return group_code(b, g); }
__device__ inline int group_minimum(const Q4_K& b, int g) { return group_min(b.scales, g); }
__device__ inline int group_minimum(const Q5_K& b, int g) { return group_min(b.scales, g); }
__device__ inline int group_minimum(const Q2_K& b, int g) { return b.scales[g] >> 4; }

}  // namespace halves
}  // namespace qeng
