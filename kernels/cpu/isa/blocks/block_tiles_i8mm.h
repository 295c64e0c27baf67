// Tiles of block formats by SMMLA, which multiplies two rows of eight bytes with two others and adds to 2 x 2 sums: twice
// the products of SDOT. Codes without a sign are below 128, so that they count as bytes with one.
#pragma once
#include "kernels/cpu/isa/blocks/block_panel.h"

namespace qeng::isa::QENG_ISA {

// As group_dots of block_tiles.cpp: of kTogether sides of the panel from first_side on. Sums of rows of x 2 i and 2 i + 1
// with rows of w 2 p and 2 p + 1 are one register; a last row of x without another goes in twice.
template <int kRows, class Block, int kTogether>
inline void dots_of_pairs(const int8_t* codes, int64_t k, const PanelBlock<Block>& w, int begin, int first_side,
                          Ints (&dots)[kSides][kRows]) {
  using D = Dot<Block>;
  constexpr int kXs = (kRows + 1) / 2, kWs = kLanes / 2 * kTogether, kSteps = kActivationGroup<Block> / 4;
  constexpr int kGroupSteps = D::kScaled ? Block::kGroup / 4 : kSteps, kRun = 4;  // 16 codes
  const auto row = [&](int r, int s) { return vld1q_s64(reinterpret_cast<const int64_t*>(codes + r * k + 4 * s)); };
  int32x4_t sums[kXs][kWs] = {};
  for (int step = 0; step < kSteps; step += kGroupSteps) {
    int32x4_t products[kXs][kWs] = {};
    for (int s = step; s < step + kGroupSteps; s += kRun) {
      int8x16_t of_x[2][kXs];
      for (int i = 0; i < kXs; ++i) {
        const int64x2_t even = row(2 * i, s), odd = row(2 * i + 1 < kRows ? 2 * i + 1 : 2 * i, s);
        of_x[0][i] = vreinterpretq_s8_s64(vzip1q_s64(even, odd));
        of_x[1][i] = vreinterpretq_s8_s64(vzip2q_s64(even, odd));
      }
      for (int half = 0; half < 2; ++half) {
        const uint8_t* of_w = w.codes[begin + s + 2 * half][0][0] + first_side * kLanes * 8;
        for (int p = 0; p < kWs; ++p) {
          const int8x16_t pair = with_sign(vld1q_u8(of_w + 16 * p));
          for (int i = 0; i < kXs; ++i) products[i][p] = vmmlaq_s32(products[i][p], of_x[half][i], pair);
        }
      }
    }
    for (int p = 0; p < kWs; ++p) {
      int32x4_t factors = vdupq_n_s32(1);
      if constexpr (D::kScaled) {  // the upper of two equal ones, for each row of x
        const int16_t* pair = w.scales[step / kGroupSteps][first_side + p / (kLanes / 2)][p % (kLanes / 2) * 2];
        const int64x2_t twice = vld1q_dup_s64(reinterpret_cast<const int64_t*>(pair));
        factors = vshrq_n_s32(vreinterpretq_s32_s64(twice), 16);
      }
      for (int i = 0; i < kXs; ++i)
        sums[i][p] = D::kScaled ? vmlaq_s32(sums[i][p], products[i][p], factors) : products[i][p];
    }
  }
  const auto halves = [](int32x4_t a, int32x4_t b, bool upper) {
    const int64x2_t x = vreinterpretq_s64_s32(a), y = vreinterpretq_s64_s32(b);
    return vreinterpretq_s32_s64(upper ? vzip2q_s64(x, y) : vzip1q_s64(x, y));
  };
  for (int side = 0; side < kTogether; ++side)
    for (int r = 0; r < kRows; ++r) {
      const int32x4_t* of_row = sums[r / 2] + side * (kLanes / 2);
      const bool upper = r % 2 == 1;
      dots[first_side + side][r] = {halves(of_row[0], of_row[1], upper), halves(of_row[2], of_row[3], upper)};
    }
}

}  // namespace qeng::isa::QENG_ISA
