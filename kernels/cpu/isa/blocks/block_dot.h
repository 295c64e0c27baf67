// How each block format takes part in a dot product with int8 codes of activations (kernels/math/blocks/activations.h).
// Dot<Block> says of a block, in Bytes of 32 codes:
//   codes<i>(b)   its codes 32 i .. 32 i + 31: without sign and at most kMost; or with sign, and kMost is 0
//   kOffset       what to take off each code
//   kScaled       groups of kGroup codes have integer factors, scales(b), and if the format kHasMin, mins(b)
//   factor(b)     its f32 scale (f16 where stored so), without the groups' factors
//   minimum_factor(b)  of formats that has_min(): likewise of mins(b), which are taken off; or, if not kScaled, what is
//                 added to every weight
//   kPlanes       codes are in the order of the stored bytes where that is cheaper: element k of 32 is code
//                 k % kPlanes * (32 / kPlanes) + k / kPlanes; activations are laid out to match
//   kLanes        where several groups of activations meet a block: for few rows of activations its codes are
//                 wide_codes<i>(b), in such an order of all its elements, as it is cheaper; this says of which group
//                 the sums in each lane then are
#pragma once
#include "kernels/cpu/isa/blocks/bytes.h"
#include "kernels/math/blocks/activations.h"
#include "kernels/math/blocks/with_block.h"

namespace qeng::isa::QENG_ISA {

struct PlainDot {
  static constexpr int kOffset = 0, kPlanes = 1;
  static constexpr GroupLanes kLanes = GroupLanes::one_group;
  static constexpr bool kScaled = false;
};
template <class Block>
struct Dot;

// ---- two bits and less
template <int i>
inline Bytes two_bits(const uint8_t* qs) {
  return bits<i % 4 * 2, 3>(load_bytes(qs + i / 4 * 32));
}

template <>
struct Dot<blocks::TQ2_0> : PlainDot {
  static constexpr int kMost = 3, kOffset = 1;
  template <int i>
  static Bytes codes(const blocks::TQ2_0& b) {
    return two_bits<i>(b.qs);
  }
  static f16 factor(const blocks::TQ2_0& b) { return b.d; }
};

template <class Block>  // PQ2_0, Q2_0
struct OrderedPairs : PlainDot {
  static constexpr int kMost = 3, kOffset = 1, kPlanes = 4;
  template <int i>
  static Bytes codes(const Block& b) {
    return bits<0, 3>(shift_quarters<2>(splat_eight(b.qs + 8 * i)));
  }
  static f16 factor(const Block& b) { return b.d; }
};
template <>
struct Dot<blocks::PQ2_0> : OrderedPairs<blocks::PQ2_0> {
  static constexpr GroupLanes kLanes = GroupLanes::pairs_of_four;
  template <int i>
  static Bytes wide_codes(const blocks::PQ2_0& b) {
    return two_bits<i>(b.qs);
  }
};
template <>
struct Dot<blocks::Q2_0> : OrderedPairs<blocks::Q2_0> {
  static constexpr GroupLanes kLanes = GroupLanes::pairs_of_two;
  template <int i>
  static Bytes wide_codes(const blocks::Q2_0& b) {
    return bits<4 * i, 3>(shift_halves<0, 2>(load_twice(b.qs)));
  }
};

template <>
struct Dot<blocks::Q1_0> : PlainDot {  // +-d = 2 d (q - 1/2): codes 0 and 2 less 1
  static constexpr int kMost = 2, kOffset = 1, kPlanes = 8;
  template <int i>
  static Bytes codes(const blocks::Q1_0& b) {
    const Bytes plane = bits<0, 1>(shift_eighths<1>(splat_four(b.qs + 4 * i)));
    return add_bytes(plane, plane);
  }
  static constexpr GroupLanes kLanes = GroupLanes::singles_of_four;
  template <int i>
  static Bytes wide_codes(const blocks::Q1_0& b) {
    const Bytes plane = bits<2 * i, 1>(shift_halves<0, 1>(load_twice(b.qs)));
    return add_bytes(plane, plane);
  }
  static f16 factor(const blocks::Q1_0& b) { return b.d; }
};

// ---- digits of base 3. Bytes are kept less 128, so that comparisons are of bytes with sign; 3 x of such a byte is
// again one, as 3 * 128 and 128 agree modulo 256. The digit 3 x / 256 then says which third of the range x is in: 85
// and less is -43 and less, 171 and more is 43 and more.
inline Bytes less_128(Bytes a) { return add_bytes(a, splat_byte(-128)); }
inline Bytes first_digit(Bytes a) { return third_of_range<42>(a); }
template <int n>
inline Bytes shift_digits(Bytes a) {  // times 3^n
  if constexpr (n == 0)
    return a;
  else {
    const Bytes before = shift_digits<n - 1>(a);
    return add_bytes(before, add_bytes(before, before));
  }
}
template <>
struct Dot<blocks::TQ1_0> : PlainDot {
  static constexpr int kMost = 2, kOffset = 1;
  template <int i>
  static Bytes codes(const blocks::TQ1_0& b) {
    if constexpr (i < 5) {
      return first_digit(shift_digits<i>(less_128(load_bytes(b.qs))));
    } else {  // pairs of digits of 16 bytes; the last with four digits of qh
      const Bytes run = less_128(load_twice(b.qs + 32)), pair = low_of_first_high_of_second(run, shift_digits<1>(run));
      if constexpr (i < 7) return first_digit(shift_digits<2 * (i - 5)>(pair));
      const Bytes last = multiply_bytes(splat_four(b.qh), words(0, 0, 0x0303030301010101, 0x1b1b1b1b09090909));
      return first_digit(low_of_first_high_of_second(shift_digits<4>(pair), less_128(last)));
    }
  }
  static f16 factor(const blocks::TQ1_0& b) { return b.d; }
};

template <>
struct Dot<blocks::PTQ1_0> : PlainDot {
  static constexpr int kMost = 2, kOffset = 1;
  template <int i>
  static Bytes codes(const blocks::PTQ1_0& b) {
    const Bytes run = less_128(load_twice(b.qs)), pair = low_of_first_high_of_second(run, shift_digits<1>(run));
    if constexpr (i < 2) return first_digit(shift_digits<2 * i>(pair));
    uint64_t half;  // the run of 8 bytes: two digits beside the long run's last, then three beside those of qh
    __builtin_memcpy(&half, b.qs + 16, 8);
    if constexpr (i == 2) {
      const Bytes two = multiply_bytes(words(0, 0, half, half), words(0, 0, 0x0101010101010101, 0x0303030303030303));
      return first_digit(low_of_first_high_of_second(shift_digits<4>(run), less_128(two)));
    }
    const uint64_t last = (b.qh[0] | static_cast<uint64_t>(b.qh[1]) << 8) * 0x0001000100010001;
    return first_digit(
        less_128(multiply_bytes(words(half, half, half, last), words(0x0909090909090909, 0x1b1b1b1b1b1b1b1b,
                                                                     0x5151515151515151, 0x1b1b090903030101))));
  }
  static f16 factor(const blocks::PTQ1_0& b) { return b.d; }
};

// ---- four and five bits in blocks of 32
inline Bytes nibbles(const uint8_t* qs) { return bits<0, 15>(shift_halves<0, 4>(load_twice(qs))); }
inline Bytes five_bits(const uint8_t* qs, const uint8_t* qh) {
  uint32_t high;
  __builtin_memcpy(&high, qh, 4);
  return either(nibbles(qs), spread_bits(high, 16));
}

template <>
struct Dot<blocks::Q4_0> : PlainDot {
  static constexpr int kMost = 15, kOffset = 8;
  template <int>
  static Bytes codes(const blocks::Q4_0& b) {
    return nibbles(b.qs);
  }
  static f16 factor(const blocks::Q4_0& b) { return b.d; }
};

template <>
struct Dot<blocks::Q4_1> : PlainDot {
  static constexpr int kMost = 15;
  template <int>
  static Bytes codes(const blocks::Q4_1& b) {
    return nibbles(b.qs);
  }
  static f16 factor(const blocks::Q4_1& b) { return b.d; }
  static f16 minimum_factor(const blocks::Q4_1& b) { return b.m; }
};

template <>
struct Dot<blocks::Int4> : PlainDot {
  static constexpr int kMost = 15;
  static constexpr bool kHasMin = true;  // d times the zero point, which is exact in f32
  template <int>
  static Bytes codes(const blocks::Int4& b) {
    return nibbles(b.qs);
  }
  static f16 factor(const blocks::Int4& b) { return b.d; }
  static float minimum_factor(const blocks::Int4& b) { return -(to_float(b.d) * static_cast<float>(b.zero)); }
};

template <>
struct Dot<blocks::Q5_0> : PlainDot {
  static constexpr int kMost = 31, kOffset = 16;
  template <int>
  static Bytes codes(const blocks::Q5_0& b) {
    return five_bits(b.qs, b.qh);
  }
  static f16 factor(const blocks::Q5_0& b) { return b.d; }
};

template <>
struct Dot<blocks::Q5_1> : PlainDot {
  static constexpr int kMost = 31;
  template <int>
  static Bytes codes(const blocks::Q5_1& b) {
    return five_bits(b.qs, b.qh);
  }
  static f16 factor(const blocks::Q5_1& b) { return b.d; }
  static f16 minimum_factor(const blocks::Q5_1& b) { return b.m; }
};

// ---- codes with sign
template <>
struct Dot<blocks::Q8_0> : PlainDot {
  static constexpr int kMost = 0;
  template <int>
  static Bytes codes(const blocks::Q8_0& b) {
    return load_bytes(b.qs);
  }
  static f16 factor(const blocks::Q8_0& b) { return b.d; }
};

constexpr uint64_t kIq4Values[2] = {0xf6eaddcfbfad9881, 0x7159453526190d01};  // of kernels/math/blocks/tables.h
constexpr uint64_t kFp4Values[2] = {0x0c08060403020100, 0xf4f8fafcfdfeff00};

template <>
struct Dot<blocks::IQ4_NL> : PlainDot {
  static constexpr int kMost = 0;
  template <int>
  static Bytes codes(const blocks::IQ4_NL& b) {
    return look_up(kIq4Values, nibbles(b.qs));
  }
  static f16 factor(const blocks::IQ4_NL& b) { return b.d; }
};

template <>
struct Dot<blocks::MXFP4> : PlainDot {
  static constexpr int kMost = 0;
  template <int>
  static Bytes codes(const blocks::MXFP4& b) {
    return look_up(kFp4Values, nibbles(b.qs));
  }
  static float factor(const blocks::MXFP4& b) { return scale(b, 0); }
};

// ---- groups with integer factors
struct ScaledDot : PlainDot {
  static constexpr bool kScaled = true;
};
template <int i>
inline Bytes paired_nibbles(const uint8_t* qs) {
  return bits<i % 2 * 4, 15>(load_bytes(qs + i / 2 * 32));
}
// Bit i of each byte as `value`, a power of two.
template <int i, int value>
inline Bytes bit_plane(const uint8_t* p) {
  constexpr int to = value == 16 ? 4 : 2;
  const Bytes a = load_bytes(p);
  if constexpr (i >= to) return bits<i - to, value>(a);
  if constexpr (i < to) return shift_bits_left<to - i>(bits<0, 1 << i>(a));
}

template <>
struct Dot<blocks::Q2_K> : ScaledDot {
  static constexpr int kMost = 3;
  template <int i>
  static Bytes codes(const blocks::Q2_K& b) {
    return two_bits<i>(b.qs);
  }
  static Shorts scales(const blocks::Q2_K& b) { return unsigned_groups_of_16<0, 15>(b.scales); }
  static Shorts mins(const blocks::Q2_K& b) { return unsigned_groups_of_16<4, 15>(b.scales); }
  static f16 factor(const blocks::Q2_K& b) { return b.d; }
  static f16 minimum_factor(const blocks::Q2_K& b) { return b.dmin; }
};

template <>
struct Dot<blocks::Q3_K> : ScaledDot {
  static constexpr int kMost = 7, kOffset = 4;
  template <int i>
  static Bytes codes(const blocks::Q3_K& b) {
    return either(two_bits<i>(b.qs), bit_plane<i, 4>(b.hmask));
  }
  static Shorts scales(const blocks::Q3_K& b) {
    uint64_t low;
    uint32_t high;
    __builtin_memcpy(&low, b.scales, 8), __builtin_memcpy(&high, b.scales + 8, 4);
    const uint64_t nibble = 0x0f0f0f0f0f0f0f0fu, sign = 0x8080808080808080u, offset = 0x2020202020202020u;
    const auto top = [&](int shift) { return static_cast<uint64_t>(high >> shift & 0x03030303u) << 4; };
    const uint64_t codes[2] = {(low & nibble) | top(0) | top(2) << 32, (low >> 4 & nibble) | top(4) | top(6) << 32};
    const uint64_t groups[2] = {((codes[0] | sign) - offset) ^ sign, ((codes[1] | sign) - offset) ^ sign};  // of bytes
    return signed_groups_of_16(groups);
  }
  static f16 factor(const blocks::Q3_K& b) { return b.d; }
};

// The 6-bit scales (first) and minimums of Q4_K and Q5_K, a byte for each of 8 groups.
struct SixBits {
  uint64_t scales, mins;
};
inline SixBits six_bits(
    const uint8_t* packed) {  // of groups 0 to 3: low six bits; of 4 to 7: nibbles, and the high two bits
  uint64_t first;
  uint32_t nibbles;
  __builtin_memcpy(&first, packed, 8), __builtin_memcpy(&nibbles, packed + 8, 4);
  const uint64_t apart = (nibbles | static_cast<uint64_t>(nibbles) << 28) & 0x0f0f0f0f0f0f0f0fu;
  const uint64_t low = first & 0x3f3f3f3f3f3f3f3fu, high = apart | (first >> 2 & 0x3030303030303030u);
  return {static_cast<uint32_t>(low) | high << 32, low >> 32 | high >> 32 << 32};
}

template <>
struct Dot<blocks::Q4_K> : ScaledDot {
  static constexpr int kMost = 15;
  template <int i>
  static Bytes codes(const blocks::Q4_K& b) {
    return paired_nibbles<i>(b.qs);
  }
  static Shorts scales(const blocks::Q4_K& b) { return groups_of_32(six_bits(b.scales).scales); }
  static Shorts mins(const blocks::Q4_K& b) { return groups_of_32(six_bits(b.scales).mins); }
  static f16 factor(const blocks::Q4_K& b) { return b.d; }
  static f16 minimum_factor(const blocks::Q4_K& b) { return b.dmin; }
};

template <>
struct Dot<blocks::Q5_K> : ScaledDot {
  static constexpr int kMost = 31;
  template <int i>
  static Bytes codes(const blocks::Q5_K& b) {
    return either(paired_nibbles<i>(b.qs), bit_plane<i, 16>(b.qh));
  }
  static Shorts scales(const blocks::Q5_K& b) { return groups_of_32(six_bits(b.scales).scales); }
  static Shorts mins(const blocks::Q5_K& b) { return groups_of_32(six_bits(b.scales).mins); }
  static f16 factor(const blocks::Q5_K& b) { return b.d; }
  static f16 minimum_factor(const blocks::Q5_K& b) { return b.dmin; }
};

template <>
struct Dot<blocks::Q6_K> : ScaledDot {
  static constexpr int kMost = 63, kOffset = 32;
  template <int i>
  static Bytes codes(const blocks::Q6_K& b) {  // 128 weights: two vectors of low nibbles, two of high ones
    const Bytes low = bits<i % 4 / 2 * 4, 15>(load_bytes(b.ql + i / 4 * 64 + i % 2 * 32)),
                high = load_bytes(b.qh + i / 4 * 32);
    if constexpr (i % 4 == 0) return either(low, shift_bits_left<4>(bits<0, 3>(high)));
    if constexpr (i % 4 == 1) return either(low, shift_bits_left<2>(bits<0, 12>(high)));
    if constexpr (i % 4 == 2) return either(low, bits<0, 48>(high));
    if constexpr (i % 4 == 3) return either(low, bits<2, 48>(high));
  }
  static Shorts scales(const blocks::Q6_K& b) { return signed_groups_of_16(b.scales); }
  static f16 factor(const blocks::Q6_K& b) { return b.d; }
};

template <>
struct Dot<blocks::IQ4_XS> : ScaledDot {
  static constexpr int kMost = 0;
  template <int i>
  static Bytes codes(const blocks::IQ4_XS& b) {
    return look_up(kIq4Values, nibbles(b.qs + 16 * i));
  }
  static Shorts scales(const blocks::IQ4_XS& b) {
    uint64_t groups = 0;
    for (int g = 0; g < 8; ++g) groups |= static_cast<uint64_t>(group_code(b, g) & 255) << (8 * g);
    return signed_groups_of_32(groups);
  }
  static f16 factor(const blocks::IQ4_XS& b) { return b.d; }
};

// Entries of grids, eight codes at a time.
template <class Block>
requires(Block::kFromGrid) struct Dot<Block> : ScaledDot {
  static constexpr int kMost = 126, kOffset = 64;
  template <int i>
  static Bytes codes(const Block& b) {
    return words(eight(b, 4 * i), eight(b, 4 * i + 1), eight(b, 4 * i + 2), eight(b, 4 * i + 3));
  }
  static Shorts scales(const Block& b) {
    constexpr int kGroups = Block::kElements / Block::kGroup;
    uint64_t groups[kGroups / 8] = {};
    for (int g = 0; g < kGroups; ++g) groups[g / 8] |= static_cast<uint64_t>(group_code(b, g)) << (g % 8 * 8);
    if constexpr (kGroups == 8)
      return groups_of_32(groups[0]);
    else
      return signed_groups_of_16(groups);
  }
  static float factor(const Block& b) { return unit(b); }
};

// blocks::with_block of the formats that have a Dot: all but one_bit and ternary (sign_dots.cpp).
template <class F>
inline void with_dot_block(DType format, F f) {
  blocks::with_block(format, [&](auto block) {
    if constexpr (requires { Dot<decltype(block)>::kMost; })
      f(block);
    else
      __builtin_trap();
  });
}

// f(0) to f(n - 1), unrolled
template <int n, class F>
inline __attribute__((always_inline)) void repeat(F f) {
  if constexpr (n > 0) {
    repeat<n - 1>(f);
    f(n - 1);
  }
}

// Elements of a row of x that share a scale, and how many such groups a block meets.
template <class Block>
constexpr int kActivationGroup = blocks::group_elements(Block::kElements);
template <class Block>
constexpr int kActivationGroups = Block::kElements / kActivationGroup<Block>;

// Whether y gains a second term.
template <class Block>
constexpr bool has_min() {
  if constexpr (requires { Dot<Block>::kHasMin; })
    return Dot<Block>::kHasMin;
  else
    return Block::kHasMin;
}

}  // namespace qeng::isa::QENG_ISA
