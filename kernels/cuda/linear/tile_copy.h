// Copies of tiles from global to shared memory, 16 bytes at a time (cp.async), zeros where there is nothing to copy.
// What a thread copies of a tile lies a constant apart, so that a loop over tiles makes one address for each.
#pragma once
#include "kernels/cuda/attention/attention_mma.h"

namespace qeng {

// The part of one of kThreads threads, of tiles of kAcross chunks of 16 bytes a row: chunk() of rows row(), row() +
// kAtOnce, ...
template <int kThreads, int kAcross>
struct TileCopy {
  static constexpr int kAtOnce = kThreads / kAcross;
  static_assert(kAtOnce % 8 == 0);  // after which SharedTile swizzles alike
  __device__ static int row() { return static_cast<int>(threadIdx.x) / kAcross; }
  __device__ static int chunk() { return static_cast<int>(threadIdx.x) % kAcross; }

  // Starts copying kRows rows to a SharedTile. from: where row() and chunk() lie, 16-byte aligned, `stride` elements before
  // the next row; rows: how many there are from the tile's first on; real: whether there is that chunk of them.
  template <class Tile, int kRows, class T, class Count>
  __device__ static void start(char* tile, const T* from, int64_t stride, Count rows, bool real) {
    static_assert(kRows % kAtOnce == 0);
    char* const to = tile + Tile::offset(row(), chunk());
    const Count left = real ? rows - row() : 0;
#pragma unroll
    for (int r = 0; r < kRows; r += kAtOnce)
      ptx::cp_async_16(to + r * Tile::kRowBytes, r < left ? from + r * stride : from, r < left ? 16 : 0);
  }
};

}  // namespace qeng
