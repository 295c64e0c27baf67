// llama.cpp's formats of three bits and less, whose codes are entries of grids (grids.h), of 256 weights:
//   IQ2_XXS, IQ2_XS, IQ2_S   w = d / 8 (2 s + 1) v,   v = +-8, +-25 or +-43
//   d: f16, s: 4 bits of a group of 16, in XXS of 32
//   IQ3_XXS                  w = d / 4 (2 s + 1) v,   v = +-(4, 12, .. 52) or +-62      s: 4 bits of a group of 32
//   IQ3_S                    w = d (2 s + 1) v,       v = +-(1, 3, .. 15)               s: likewise
//   IQ1_S, IQ1_M             w = d / 8 (2 s + 1) v,   v = 8 (-1, 0 or 1) +- 1
//   s: 3 bits of a group of 32, in M of 16
// Products with d are exact, so these are the numbers of the gguf package, which multiplies in another order. The
// formats are read; nothing here writes them: their encoders search grids, and need importances to be worth it.
//
// eight(b, j): the codes v of weights 8 j .. 8 j + 7, each plus 64, as bytes, the first lowest; group_code(b, g): 2 s +
// 1; unit(b): d, over 8 or 4 where the format says so.
#pragma once
#include "kernels/math/blocks/block.h"
#include "kernels/math/blocks/grids.h"

namespace qeng::blocks {

struct GridFormat {
  static constexpr int kElements = 256;
  static constexpr bool kHasMin = false, kFromGrid = true;
};

struct IQ2_XXS : GridFormat {
  static constexpr int kGroup = 32;
  f16 d;
  uint16_t qs[32];  // of a group: four entries, a byte each, then four signs of 7 bits and s on top
};
static_assert(sizeof(IQ2_XXS) == 66);

struct IQ2_XS : GridFormat {
  static constexpr int kGroup = 16;
  f16 d;
  uint16_t qs[32];  // of eight weights: 9 bits of an entry, 7 of signs
  uint8_t scales[8];
};
static_assert(sizeof(IQ2_XS) == 74);

struct IQ2_S : GridFormat {
  static constexpr int kGroup = 16;
  f16 d;
  uint8_t qs[32], signs[32], qh[8], scales[8];
};
static_assert(sizeof(IQ2_S) == 82);

struct IQ3_XXS : GridFormat {
  static constexpr int kGroup = 32;
  f16 d;
  uint8_t qs[64];
  uint16_t signs[16];  // of a group: as the second half of IQ2_XXS'
};
static_assert(sizeof(IQ3_XXS) == 98);

struct IQ3_S : GridFormat {
  static constexpr int kGroup = 32;
  f16 d;
  uint8_t qs[64], qh[8], signs[32], scales[4];
};
static_assert(sizeof(IQ3_S) == 110);

struct IQ1_S : GridFormat {
  static constexpr int kGroup = 32;
  f16 d;
  uint8_t qs[32];
  uint16_t qh[8];  // of a group: 3 high bits of each of four entries, s, and whether 1/8 is taken off
};
static_assert(sizeof(IQ1_S) == 50);

struct IQ1_M : GridFormat {
  static constexpr int kGroup = 16;
  uint8_t qs[32], qh[16];  // qh, of eight weights: 3 high bits of the entry, and whether 1/8 is taken off
  uint16_t scales[4];      // four s each; their top four bits are d, the lowest first
};
static_assert(sizeof(IQ1_M) == 56);

// ---------------------------------------------------------------- codes

constexpr uint64_t kOnes = 0x0101010101010101u;

// Eight pairs of bits as bytes; four triples.
QENG_HD uint64_t spread_pairs(uint32_t word) {
  uint64_t x = word;
  x = (x | x << 24) & 0x000000ff000000ffu;
  x = (x | x << 12) & 0x000f000f000f000fu;
  return (x | x << 6) & 0x0303030303030303u;
}
QENG_HD uint64_t spread_triples(uint32_t word) {
  return (word & 7u) | (word & 0x38u) << 5 | (word & 0x1c0u) << 10 | static_cast<uint64_t>(word & 0xe00u) << 15;
}

// 64 + v, or 64 - v where a bit of `negative` is set. v: bytes of at most 63
QENG_HD uint64_t with_signs(uint64_t v, uint32_t negative) {
  const uint64_t bits = (negative & 255u) * kOnes & 0x8040201008040201u;  // bit i in byte i
  const uint64_t mask = ((bits + 127 * kOnes) >> 7 & kOnes) * 255u;
  return 64 * kOnes + v - (2 * v & mask);
}
// Seven signs, the eighth is what makes their number even.
QENG_HD uint32_t eight_signs(uint32_t seven) {
  seven &= 127u;
  return seven | (0x6996u >> ((seven ^ seven >> 4) & 15u) & 1u) << 7;
}

QENG_HD uint64_t iq2_values(uint32_t word) {  // 0, 1, 2: 8, 25, 43
  const uint64_t places = spread_pairs(word);
  return 8 * kOnes + 17 * places + (places >> 1 & kOnes);
}
QENG_HD uint64_t iq3_xxs_values(uint32_t first, uint32_t second) {  // 4, 12 .. 52, 62
  const uint64_t places = spread_triples(first) | spread_triples(second) << 32;
  return 4 * kOnes + 8 * places + ((places + kOnes) >> 3 & kOnes) * 2;
}
QENG_HD uint64_t iq1_codes(uint32_t word, bool less) {  // 64 + 8 (place - 1) +- 1
  return (less ? 55 : 57) * kOnes + 8 * spread_pairs(word);
}
QENG_HD uint32_t signs_word(const uint16_t* halves) { return halves[0] | static_cast<uint32_t>(halves[1]) << 16; }

QENG_HD uint64_t eight(const IQ2_XXS& b, int j) {
  const uint16_t* group = b.qs + j / 4 * 4;
  const int entry = group[j % 4 / 2] >> (j % 2 * 8) & 255;
  return with_signs(iq2_values(iq2_xxs_word(entry)), eight_signs(signs_word(group + 2) >> (j % 4 * 7)));
}
QENG_HD uint64_t eight(const IQ2_XS& b, int j) {
  return with_signs(iq2_values(iq2_xs_word(b.qs[j] & 511)), eight_signs(b.qs[j] >> 9));
}
QENG_HD uint64_t eight(const IQ2_S& b, int j) {
  const int high = b.qh[j / 4] >> (j % 4 * 2) & 3;
  return with_signs(iq2_values(iq2_s_word(b.qs[j] | high << 8)), b.signs[j]);
}
QENG_HD uint64_t eight(const IQ3_XXS& b, int j) {
  const uint64_t values = iq3_xxs_values(iq3_xxs_word(b.qs[2 * j]), iq3_xxs_word(b.qs[2 * j + 1]));
  return with_signs(values, eight_signs(signs_word(b.signs + j / 4 * 2) >> (j % 4 * 7)));
}
QENG_HD uint64_t eight(const IQ3_S& b, int j) {
  const int high = b.qh[j / 4] >> (j % 4 * 2);
  const uint64_t first = spread_triples(iq3_s_word(b.qs[2 * j] | (high & 1) << 8));
  const uint64_t second = spread_triples(iq3_s_word(b.qs[2 * j + 1] | (high & 2) << 7));
  return with_signs(kOnes + 2 * (first | second << 32), b.signs[j]);
}
QENG_HD uint64_t eight(const IQ1_S& b, int j) {
  const int qh = b.qh[j / 4];
  return iq1_codes(iq1_word(b.qs[j] | (qh >> (j % 4 * 3) & 7) << 8), qh >> 15);
}
QENG_HD uint64_t eight(const IQ1_M& b, int j) {
  const int qh = b.qh[j / 2] >> (j % 2 * 4);
  return iq1_codes(iq1_word(b.qs[j] | (qh & 7) << 8), qh & 8);
}

// ---------------------------------------------------------------- factors

QENG_HD int group_code(const IQ2_XXS& b, int g) { return 2 * (b.qs[4 * g + 3] >> 12) + 1; }
QENG_HD int group_code(const IQ2_XS& b, int g) { return 2 * (b.scales[g / 2] >> (g % 2 * 4) & 15) + 1; }
QENG_HD int group_code(const IQ2_S& b, int g) { return 2 * (b.scales[g / 2] >> (g % 2 * 4) & 15) + 1; }
QENG_HD int group_code(const IQ3_XXS& b, int g) { return 2 * (b.signs[2 * g + 1] >> 12) + 1; }
QENG_HD int group_code(const IQ3_S& b, int g) { return 2 * (b.scales[g / 2] >> (g % 2 * 4) & 15) + 1; }
QENG_HD int group_code(const IQ1_S& b, int g) { return 2 * (b.qh[g] >> 12 & 7) + 1; }
QENG_HD int group_code(const IQ1_M& b, int g) { return 2 * (b.scales[g / 4] >> (g % 4 * 3) & 7) + 1; }

QENG_HD float unit(const IQ2_XXS& b) { return 0.125f * to_f32(b.d); }
QENG_HD float unit(const IQ2_XS& b) { return 0.125f * to_f32(b.d); }
QENG_HD float unit(const IQ2_S& b) { return 0.125f * to_f32(b.d); }
QENG_HD float unit(const IQ3_XXS& b) { return 0.25f * to_f32(b.d); }
QENG_HD float unit(const IQ3_S& b) { return to_f32(b.d); }
QENG_HD float unit(const IQ1_S& b) { return 0.125f * to_f32(b.d); }
QENG_HD float unit(const IQ1_M& b) {
  const int d = b.scales[0] >> 12 | (b.scales[1] >> 8 & 0xf0) | (b.scales[2] >> 4 & 0xf00) | (b.scales[3] & 0xf000);
  return 0.125f * to_f32(f16{static_cast<uint16_t>(d)});
}

template <class Block>
requires(Block::kFromGrid) QENG_HD float scale(const Block& b, int g) {
  return unit(b) * static_cast<float>(group_code(b, g));
}
template <class Block>
requires(Block::kFromGrid) QENG_HD int code(const Block& b, int k) {
  return static_cast<int>(eight(b, k / 8) >> (k % 8 * 8) & 255u) - 64;
}

}  // namespace qeng::blocks
