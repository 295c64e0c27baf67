// Vectors of small integers, for the dot products of block formats (block_dot.h). All of it is exact, so each
// instruction set gives the same numbers; the baseline is plain C++ and the readable reference.
//   Bytes    32 bytes, with or without sign: codes of weights, codes of activations
//   Shorts   16 int16: scales or sums of groups of 16 codes of 256, in two halves of 8. Entry i of the low half is of
//            the first 16 codes of the i-th Bytes, entry i of the high half of the last 16
//   Ints     8 int32;  Floats: 8 f32
//   Products running sums of products of Bytes, which must stay below 2^15 per pair of elements: int16 on AVX2, whose
//            product of bytes adds pairs; int32 elsewhere
#pragma once
#include <cstdint>

#include "kernels/math/bf16.h"

namespace qeng::isa::QENG_ISA {

// Of what groups eight sums in lanes are.
enum class GroupLanes {
  one_group,
  pairs_of_two,    // 0 0 1 1  0 0 1 1
  pairs_of_four,   // 0 0 1 1  2 2 3 3
  singles_of_four  // 0 1 2 3  0 1 2 3
};
constexpr int groups_of(GroupLanes lanes) {
  return lanes == GroupLanes::one_group ? 1 : lanes == GroupLanes::pairs_of_two ? 2 : 4;
}

}  // namespace qeng::isa::QENG_ISA

#if defined(QENG_ISA_avx2) || defined(QENG_ISA_avx512)
#include "kernels/cpu/isa/blocks/bytes_avx2.h"
#elif defined(QENG_ISA_neon)
#include "kernels/cpu/isa/blocks/bytes_neon.h"
#else
#include "kernels/cpu/isa/blocks/bytes_baseline.h"
#endif
