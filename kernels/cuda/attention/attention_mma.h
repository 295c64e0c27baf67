// Tiles of bf16 rows in shared memory and their products by mma.m16n8k16, for attention's kernels of sm_80 and later.
#pragma once
#include "kernels/cuda/attention/attention.h"

namespace qeng {

// kRows rows of kDim elements. Columns lie in panels of 64, each [kRows][128 bytes], and within a panel row r's 16-byte
// chunk c lies at c ^ (r % 8), so that neither ldmatrix nor row-wise writes meet bank conflicts. A dim that 64 does not
// divide (96) keeps whole rows and permutes groups of four chunks by r / 2 % 4, to the same effect.
template <int kDim, int kRows>
struct SharedTile {
  static_assert(kDim % 32 == 0 && kRows % 8 == 0);
  static constexpr int kBytes = kRows * kDim * 2;
  static constexpr bool kPanels = kDim % 64 == 0;
  static constexpr int kGroup = kPanels ? 8 : 4;  // chunks that are permuted among themselves
  static constexpr int kRowBytes = kPanels ? 128 : kDim * 2;
  static constexpr int kGroupStride = kPanels ? kRows * 128 : kGroup * 16;

  __device__ static int offset(int row, int chunk) {
    return chunk / kGroup * kGroupStride + row * kRowBytes + ((chunk ^ (kPanels ? row : row >> 1)) & (kGroup - 1)) * 16;
  }
  // offset(row + lane's row, chunk + lane's chunk) from lane = offset(lane's row, lane's chunk), for row a multiple of
  // 8, chunk even, lane's chunk 0 or 1: one exclusive or where row and chunk are constants.
  __device__ static int moved(int lane, int row, int chunk) {
    return (lane ^ (chunk & (kGroup - 1)) * 16) + chunk / kGroup * kGroupStride + row * kRowBytes;
  }

  // Rows [first, first + kRows) of the kDim columns from `column` on of a matrix whose rows are `stride` elements
  // apart; rows from `end` on become zero. Started by all kThreads threads, and not waited for.
  template <int kThreads>
  __device__ static void load(char* tile, const bf16* matrix, int column, int stride, int first, int end,
                              int thread = static_cast<int>(threadIdx.x)) {
    constexpr int kRowsAtOnce = kRows < kThreads / kGroup ? kRows : kThreads / kGroup;
    constexpr int kGroups = kDim / 8 / kGroup, kGroupsAtOnce = kThreads / kGroup / kRowsAtOnce;
    static_assert(kRows % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0 && kGroups % kGroupsAtOnce == 0);
    const int row = thread / kGroup % kRowsAtOnce;
    const int chunk = thread % kGroup + thread / kGroup / kRowsAtOnce * kGroup;
    char* to = tile + offset(row, chunk);
    const bf16* from = matrix + (int64_t{first + row} * stride + column + chunk * 8);
#pragma unroll
    for (int r = 0; r < kRows; r += kRowsAtOnce) {
      const bool real = first + row + r < end;
      const bf16* source = real ? from : matrix;
#pragma unroll
      for (int group = 0; group < kGroups; group += kGroupsAtOnce)
        ptx::cp_async_16(to + group * kGroupStride + r * kRowBytes, source + group * kGroup * 8, real ? 16 : 0);
      from += kRowsAtOnce * stride;
    }
  }
};

// Where a lane points ldmatrix_x4 for 16 rows by 16 columns of a tile. r is then the A operand; with _trans, where k
// runs along the rows, r[0], r[1] and r[2], r[3] are the B operands of two n-tiles; without, where k runs along the
// columns, r[0], r[2] and r[1], r[3] are.
template <class Tile>
__device__ inline int lane_offset(int lane = static_cast<int>(threadIdx.x) % kWarp) {
  return Tile::offset(lane % 16, lane / 16);
}

// Two accumulators of 8 columns each, side by side, as the A operand of a product that runs over those 16 columns.
__device__ inline void pack_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = ptx::pack_bf16(left[0], left[1]), a[1] = ptx::pack_bf16(left[2], left[3]);
  a[2] = ptx::pack_bf16(right[0], right[1]), a[3] = ptx::pack_bf16(right[2], right[3]);
}

__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// Writes rows g and g + 8 of kTiles accumulators side by side as bf16, each row times its factor. Lane t of a quad
// holds columns 2t, 2t + 1 of each accumulator; after a 4 x 4 transposition in the quad of four accumulators it holds 8
// columns of one, which are 16 bytes. to: row g's first column; rows that are not to be written still take part.
template <int kTiles>
__device__ inline void store_rows(const float (&c)[kTiles][4], float factor, float factor8, bf16* to, int64_t stride,
                                  bool write, bool write8) {
  static_assert(kTiles % 4 == 0);
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int tile = 0; tile < kTiles; tile += 4)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float f = half ? factor8 : factor;
      uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) r[i] = ptx::pack_bf16(c[tile + i][2 * half] * f, c[tile + i][2 * half + 1] * f);
#pragma unroll
      for (int distance = 1; distance <= 2; distance *= 2)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i & distance) continue;
          const bool upper = t & distance;
          const uint32_t other = __shfl_xor_sync(kAllLanes, upper ? r[i] : r[i + distance], distance);
          r[i] = upper ? other : r[i];
          r[i + distance] = upper ? r[i + distance] : other;
        }
      if (half ? write8 : write)
        *reinterpret_cast<uint4*>(to + half * 8 * stride + 8 * (tile + t)) = make_uint4(r[0], r[1], r[2], r[3]);
    }
}

}  // namespace qeng
