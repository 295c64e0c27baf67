// How a lane reads its part of a block for an integer dot product: 32 codes in two halves of 16, each of which lies in
// one group and runs along k, in the order in which x lies for the format (CodeOrder in row_linear.h). Which 32 those are
// is for the format to say, so that a half is cut from bytes that lie together:
//   first_of(b, part, h)             the place in the block of half h of part `part`
//   raw_of(b, part, h, words)        its codes, four to a word, each kOffset<Block> too large
//   codes_of(b, part, h, words)      its codes, four to a word, as signed bytes
//   factor_of(b), minimum_of(b)      the block's f32 scale, and for formats with group minima the one that is taken off
//   group_factor(b, g), group_minimum(b, g)   integers that belong to group g of 16 or 32
//   w[k] = factor group_factor code[k] - minimum group_minimum
// Blocks lie in shared memory, at multiples of kAlign bytes where their size is one.
#pragma once
#include <type_traits>

#include "kernels/cuda/ptx/ptx.h"
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

// The n words around 4 (n - 1) bytes at an even address, of which a word may lie behind all that is wanted, shifted to
// begin with the first byte. odd: whether the address is no multiple of 4.
template <int n>
__device__ inline void read_even(const uint8_t* from, bool odd, uint32_t (&words)[n - 1]) {
  uint32_t around[n];
  const auto* first = reinterpret_cast<const uint32_t*>(from - 2 * odd);
#pragma unroll
  for (int i = 0; i < n; ++i) around[i] = first[i];
#pragma unroll
  for (int i = 0; i + 1 < n; ++i) words[i] = __funnelshift_r(around[i], around[i + 1], 16u * odd);
}
__device__ inline bool is_odd(const void* address) { return reinterpret_cast<uintptr_t>(address) & 2; }
// Sixteen bytes of a block, aligned as far as the block is.
template <class Block>
__device__ inline void read_16(const Block&, const uint8_t* from, uint32_t (&words)[4]) {
  if constexpr (kAlign<Block> == 16) {
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
  } else if constexpr (kAlign<Block> == 4) {
    for (int i = 0; i < 4; ++i) words[i] = reinterpret_cast<const uint32_t*>(from)[i];
  } else if constexpr (kAlign<Block> == 2) {
    read_even<5>(from, is_odd(from), words);
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
// Bits 0 to 3 as the low bits of four bytes.
__device__ inline uint32_t spread_bits(uint32_t four) { return (four & 15u) * 0x00204081u & 0x01010101u; }
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

// ---- codes. Raw ones are kOffset too large: products with x take off kOffset times the sum of x. A raw bit of
// kDoubled formats stands for twice as much.
template <class Block>
constexpr bool kDoubled = std::is_same_v<Block, OneBit> || std::is_same_v<Block, Q1_0>;
template <class Block>
constexpr int offset_of() {
  if constexpr (requires { Block::kFromGrid; }) return 64;
  if (std::is_same_v<Block, Q4_0>) return 8;
  if (std::is_same_v<Block, Q5_0>) return 16;
  if (std::is_same_v<Block, Q3_K>) return 4;
  if (std::is_same_v<Block, Q6_K>) return 32;
  return std::is_same_v<Block, TQ2_0> || std::is_same_v<Block, Q2_0> || std::is_same_v<Block, PQ2_0> || kDoubled<Block>;
}
template <class Block>
constexpr int kOffset = offset_of<Block>();

// By the format's own words, a code at a time: for digits of base 3.
template <class Block>
__device__ inline void raw_of(const Block& b, int part, int h, uint32_t (&words)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e)
      words[i] |= (static_cast<uint32_t>(code(b, first_of(b, part, h) + 4 * i + e)) & 255u) << (8 * e);
  }
}

__device__ inline void raw_of(const Q8_0& b, int, int h, uint32_t (&words)[4]) {
  read_16(b, reinterpret_cast<const uint8_t*>(b.qs) + 16 * h, words);
}
// Blocks of 32 with nibbles: the first 16 are low, the others high.
template <class Block>
__device__ inline void nibbles_of(const Block& b, int h, uint32_t (&words)[4]) {
  read_16(b, b.qs, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = nibbles(words[i], h);
}
__device__ inline void raw_of(const Q4_0& b, int, int h, uint32_t (&words)[4]) { nibbles_of(b, h, words); }
__device__ inline void raw_of(const Q4_1& b, int, int h, uint32_t (&words)[4]) { nibbles_of(b, h, words); }
__device__ inline void raw_of(const Int4& b, int, int h, uint32_t (&words)[4]) { nibbles_of(b, h, words); }
template <class Block>
__device__ inline void five_bits_of(const Block& b, int h, uint32_t (&words)[4]) {
  nibbles_of(b, h, words);
  const uint32_t high = read_2(b.qh + 2 * h);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] |= spread_bits(high >> (4 * i)) << 4;
}
__device__ inline void raw_of(const Q5_0& b, int, int h, uint32_t (&words)[4]) { five_bits_of(b, h, words); }
__device__ inline void raw_of(const Q5_1& b, int, int h, uint32_t (&words)[4]) { five_bits_of(b, h, words); }
__device__ inline void raw_of(const IQ4_NL& b, int, int h, uint32_t (&words)[4]) {
  nibbles_of(b, h, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = look_up(kIq4First, kIq4Others, words[i]);
}
__device__ inline void raw_of(const MXFP4& b, int, int h, uint32_t (&words)[4]) {
  nibbles_of(b, h, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = look_up(kFp4First, kFp4Others, words[i]);
}

__device__ inline void raw_of(const IQ4_XS& b, int part, int h, uint32_t (&words)[4]) {
  read_16(b, b.qs + 16 * part, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = look_up(kIq4First, kIq4Others, nibbles(words[i], h));
}

// Entries of grids, eight codes of which each is 64 too large.
template <class Block>
requires(Block::kFromGrid) __device__ inline void raw_of(const Block& b, int part, int h, uint32_t (&words)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint64_t codes = eight(b, 4 * part + 2 * h + i);
    words[2 * i] = static_cast<uint32_t>(codes);
    words[2 * i + 1] = static_cast<uint32_t>(codes >> 32);
  }
}

// Q4_K, Q5_K: sixteen bytes are 16 codes of a group low, and 16 of the next group high.
__device__ inline int first_of(const Q4_K&, int part, int h) { return part / 2 * 64 + part % 2 * 16 + 32 * h; }
__device__ inline int first_of(const Q5_K&, int part, int h) { return part / 2 * 64 + part % 2 * 16 + 32 * h; }
__device__ inline void raw_of(const Q4_K& b, int part, int h, uint32_t (&words)[4]) {
  read_16(b, b.qs + 16 * part, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = nibbles(words[i], h);
}
__device__ inline void raw_of(const Q5_K& b, int part, int h, uint32_t (&words)[4]) {
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
__device__ inline void raw_of(const Q2_K& b, int part, int h, uint32_t (&words)[4]) { pairs_of(b, part, h, words); }
__device__ inline void raw_of(const TQ2_0& b, int part, int h, uint32_t (&words)[4]) { pairs_of(b, part, h, words); }
__device__ inline void raw_of(const Q3_K& b, int part, int h, uint32_t (&words)[4]) {
  uint32_t high[4];
  pairs_of(b, part, h, words);
  read_16(b, b.hmask + part % 2 * 16, high);
  const int bit = part / 4 * 4 + part / 2 % 2 * 2 + h;
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] |= (high[i] >> bit & 0x01010101u) << 2;
}

// Q6_K: sixteen bytes of ql are 16 codes of a group low, and 16 of the group 64 later high.
__device__ inline int first_of(const Q6_K&, int part, int h) { return part / 4 * 128 + part % 4 * 16 + 64 * h; }
__device__ inline void raw_of(const Q6_K& b, int part, int h, uint32_t (&words)[4]) {
  uint32_t high[4];
  read_16(b, b.ql + 16 * part, words);
  read_16(b, b.qh + part / 4 * 32 + part % 2 * 16, high);
  const int shift = (part / 2 % 2 + 2 * h) * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = nibbles(words[i], h) | (high[i] >> shift & 0x03030303u) << 4;
}

// Two bits and one in order: every fourth, or eighth, in a word, as x is ordered for them.
template <class Block>
__device__ inline void crumbs_of(const Block& b, int part, int h, uint32_t (&words)[4]) {
  const uint32_t bytes = read_4(b.qs + 8 * part + 4 * h);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = bytes >> (2 * i) & 0x03030303u;
}
__device__ inline void raw_of(const Q2_0& b, int part, int h, uint32_t (&words)[4]) { crumbs_of(b, part, h, words); }
__device__ inline void raw_of(const PQ2_0& b, int part, int h, uint32_t (&words)[4]) { crumbs_of(b, part, h, words); }
template <class Block>
__device__ inline uint32_t bits_of_part(const Block& b, int part) {
  if constexpr (kAlign<Block> == 4) return *reinterpret_cast<const uint32_t*>(b.qs + 4 * part);
  return read_4(b.qs + 4 * part);
}
template <class Block>
requires(kDoubled<Block>) __device__ inline void raw_of(const Block& b, int part, int h, uint32_t (&words)[4]) {
  const uint32_t bits = bits_of_part(b, part);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = bits >> (4 * h + i) & 0x01010101u;
}
// Pairs become nibbles, which choose bytes of a table.
__device__ inline void raw_of(const Ternary& b, int, int h, uint32_t (&words)[4]) {
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

template <class Block>
__device__ inline void codes_of(const Block& b, int part, int h, uint32_t (&words)[4]) {
  raw_of(b, part, h, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kDoubled<Block>) words[i] <<= 1;
    if constexpr (kOffset<Block> != 0) words[i] = take_off(words[i], kOffset<Block>);
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

// By the instruction, where to_f32 has a dozen.
__device__ inline float half_value(f16 x) {
  float value, unused;
  ptx::unpack_f16(x.bits, value, unused);
  return value;
}
template <class Block>
__device__ inline float factor_of(const Block& b) {
  if constexpr (kGridded<Block>)
    return unit(b);
  else if constexpr (requires { b.d.bits; })
    return half_value(b.d);
  else
    return scale(b, 0);
}
template <class Block>
__device__ inline float minimum_of(const Block& b) {
  if constexpr (std::is_same_v<Block, Int4>)
    return __fmul_rn(half_value(b.d), static_cast<float>(b.zero));  // d (q - zero) as d q - (d zero): zero is any byte
  else if constexpr (kFactors<Block>)
    return half_value(b.dmin);
  else
    return -half_value(b.m);
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
