// Panels of block_tiles.cpp: kPanelRows rows of a weight, codes interleaved so that each lane of a vector works for a
// row of its own: four codes of each row after one another, eight where products are of those (block_tiles_i8mm.h).
#pragma once
#include "kernels/cpu/isa/blocks/block_dot.h"
#include "kernels/cpu/isa/table.h"

namespace qeng::isa::QENG_ISA {

constexpr int kSides = 2, kLanes = 8;  // a panel: two vectors' lanes of rows
static_assert(kPanelRows == kSides * kLanes);

// Block b of the panel's rows. Groups' integers come in pairs, as multiply_pairs takes them.
template <class Block>
struct alignas(64) PanelBlock {
  static constexpr int kSteps = Block::kElements / 4;
  static constexpr int kGroups = Dot<Block>::kScaled ? Block::kElements / Block::kGroup : 0;
  static constexpr bool kSums = kGroups > 0 && (Dot<Block>::kOffset || has_min<Block>());
  uint8_t codes[kSteps][kSides][kLanes][4];
  uint8_t* codes_at(int step, int side, int lane) {
#if defined(QENG_I8MM)
    return codes[0][0][0] + ((step / 2 * kSides + side) * kLanes + lane) * 8 + step % 2 * 4;
#else
    return codes[step][side][lane];
#endif
  }
  int16_t scales[kGroups ? kGroups : 1][kSides][kLanes][2];  // each twice
  int16_t mins[kSums ? kGroups / 2 : 1][kSides][kLanes][2];  // offset * scale, or minimum: for the sums of x
  float factor[kSides][kLanes], minimum_factor[kSides][kLanes];
};

}  // namespace qeng::isa::QENG_ISA
