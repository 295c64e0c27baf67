// Blocks of 32 rows of a matrix, interleaved: a vector's lanes are rows, so that a dot product needs no sums across
// lanes and one load of activations serves four rows. What a row's blocks hold is unchanged, and so are the bytes.
//
// The matrix is groups of 32 rows; a group is its columns' Interleaved<Block> one after the other. Elements go in steps
// of four: the codes of elements 4 s + j of rows 8 p + l, p < 4, share byte [l][j] of step s.
#pragma once
#include "kernels/dtype.h"
#include "kernels/math/blocks/q6_k.h"
#include "kernels/math/blocks/ternary.h"

namespace qeng {
constexpr int kInterleavedRows = 32;  // of a group
}

namespace qeng::blocks {

template <class Block>
struct Interleaved;

template <>
struct Interleaved<TQ2_0> {
  using Plain = TQ2_0;
  uint8_t steps[64][8][4];  // two bits a row, p = 0 lowest
  f16 d[32];
};
static_assert(sizeof(Interleaved<TQ2_0>) == 32 * sizeof(TQ2_0));

template <>
struct Interleaved<Q6_K> {
  using Plain = Q6_K;
  struct Step {
    uint8_t low[2][8][4];  // low four bits: of p = 0 and 1, of p = 2 and 3
    uint8_t high[8][4];    // high two bits, p = 0 lowest
  };
  // Of 16 elements, with their scales, in the order in which it is read: scales elsewhere would be a second stream of
  // memory, which processors do not fetch ahead.
  struct Sixteen {
    int8_t scales[32];
    Step steps[4];
  };
  Sixteen sixteens[16];
  f16 d[32];
};
static_assert(sizeof(Interleaved<Q6_K>) == 32 * sizeof(Q6_K));

// Calls f with the Interleaved of a format, which has one.
template <class F>
static inline auto with_interleaved(DType dtype, F f) {
  switch (dtype) {
    case DType::tq2_0: return f(Interleaved<TQ2_0>{});
    case DType::q6_k: return f(Interleaved<Q6_K>{});
    default: __builtin_trap();
  }
}

}  // namespace qeng::blocks
